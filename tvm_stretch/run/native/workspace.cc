#include "workspace.h"

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "errors.h"
#include "graph.h"

namespace tvm_stretch {
namespace {

constexpr const char* kMissing = "expected memory for a kernel's temporaries";

// Memory that the kernels of one thread allocated, kept for the next ones.
class Workspaces {
 public:
  ~Workspaces() {
    for (const Block& block : blocks_) std::free(block.data);
  }

  // Null if there is no memory.
  void* Take(size_t bytes) {
    Block* best = nullptr;  // the smallest of those that are large enough; else the largest
    for (Block& block : blocks_) {
      if (!block.is_used && (best == nullptr || IsBetter(block, *best, bytes))) best = &block;
    }
    if (best == nullptr) best = &blocks_.emplace_back();
    if (best->bytes < bytes) Grow(best, bytes);
    best->is_used = best->data != nullptr;
    return best->data;
  }

  void GiveBack(void* data) {
    const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                    [data](const Block& block) { return block.data == data; });
    if (found != blocks_.end()) found->is_used = false;
  }

 private:
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
    bool is_used = false;
  };

  static bool IsBetter(const Block& one, const Block& other, size_t bytes) {
    const bool fits = one.bytes >= bytes;
    if (fits != (other.bytes >= bytes)) return fits;
    return fits ? one.bytes < other.bytes : one.bytes > other.bytes;
  }

  static void Grow(Block* block, size_t bytes) {
    std::free(block->data);
    *block = Block();
    if (posix_memalign(&block->data, kAlignment, bytes) == 0) {
      block->bytes = bytes;
    } else {
      block->data = nullptr;
    }
  }

  std::vector<Block> blocks_;
};

Workspaces& OfThisThread() {
  thread_local Workspaces workspaces;
  return workspaces;
}

// The signatures are TVM's: type and number of the device, bytes, and the elements' type.
void* Allocate(int, int, uint64_t bytes, int, int) noexcept {
  try {
    // A kernel may ask for nothing, but null means that there is no memory.
    if (void* memory = OfThisThread().Take(std::max<size_t>(bytes, 1))) return memory;
  } catch (...) {  // no exception may leave this function
  }
  TVMFFIErrorSetRaisedFromCStr(kRunError, kMissing);
  return nullptr;
}

int Free(int, int, void* memory) noexcept {
  OfThisThread().GiveBack(memory);
  return 0;
}

}  // namespace

void ProvideWorkspaces() {
  // The last registration counts.
  TVMFFIEnvModRegisterContextSymbol("__TVMBackendAllocWorkspace",
                                    reinterpret_cast<void*>(&Allocate));
  TVMFFIEnvModRegisterContextSymbol("__TVMBackendFreeWorkspace", reinterpret_cast<void*>(&Free));
}

bool IsMissingWorkspace(const std::string& message) {
  return message.find(kMissing) != std::string::npos;
}

TVM_FFI_STATIC_INIT_BLOCK() { ProvideWorkspaces(); }

}  // namespace tvm_stretch
