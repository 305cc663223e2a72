#include "workspace.h"

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>

#include "errors.h"

namespace tvm_stretch {

namespace ffi = tvm::ffi;

namespace {

using Allocate = void* (*)(int, int, uint64_t, int, int);

constexpr const char* kSymbol = "__TVMBackendAllocWorkspace";
constexpr const char* kMissing = "expected memory for a kernel's temporaries";

std::atomic<Allocate> tvm_allocate{nullptr};

void* AllocateOrNull(int device_type, int device, uint64_t bytes, int code, int bits) noexcept {
  try {
    void* memory = tvm_allocate.load()(device_type, device, bytes, code, bits);
    if (memory != nullptr) return memory;
  } catch (...) {  // no exception may leave this function
  }
  TVMFFIErrorSetRaisedFromCStr(kRunError, kMissing);
  return nullptr;
}

}  // namespace

void CatchMissingWorkspaces() {
  void* last = nullptr;  // the last library found
  ffi::Module::VisitContextSymbols(ffi::TypedFunction<void(ffi::String, void*)>(
      [&last](const ffi::String& name, void* symbol) { last = name == kSymbol ? symbol : last; }));
  void* own = reinterpret_cast<void*>(&AllocateOrNull);
  if (last == nullptr || last == own) return;
  tvm_allocate.store(reinterpret_cast<Allocate>(last));
  TVMFFIEnvModRegisterContextSymbol(kSymbol, own);
}

bool IsMissingWorkspace(const std::string& message) {
  return message.find(kMissing) != std::string::npos;
}

TVM_FFI_STATIC_INIT_BLOCK() { CatchMissingWorkspaces(); }

}  // namespace tvm_stretch
