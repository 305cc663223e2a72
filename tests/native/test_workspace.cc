// Kernels that get no memory: one RunError, wherever they run, and the next run works.
#include <gtest/gtest.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>

#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "errors.h"
#include "graphs.h"
#include "kernels.h"
#include "workspace.h"

// The address sanitizer ends the process where the C library says that there is no memory.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tvm_stretch::testing {
namespace {

size_t needed = 64;
constexpr size_t kTooMuch = size_t{1} << 60;

// A function of TVM's that a library which is loaded now would call.
void* Symbol(const char* wanted) {
  void* last = nullptr;
  ffi::Module::VisitContextSymbols(
      ffi::TypedFunction<void(ffi::String, void*)>([&](const ffi::String& name, void* symbol) {
        if (name == wanted) last = symbol;
      }));
  return last;
}

char* Take(size_t bytes) {
  using Allocate = char* (*)(int, int, uint64_t, int, int);
  const auto allocate = reinterpret_cast<Allocate>(Symbol("__TVMBackendAllocWorkspace"));
  return allocate(kDLCPU, 0, bytes, kDLFloat, 32);
}

void GiveBack(void* memory) {
  using Free = int (*)(int, int, void*);
  reinterpret_cast<Free>(Symbol("__TVMBackendFreeWorkspace"))(kDLCPU, 0, memory);
}

// As compiled kernels do: -1 where there is no memory, and whoever gave none has said why.
int NeedsMemory(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  char* temporary = Take(needed);
  if (temporary == nullptr) return -1;
  temporary[needed - 1] = 1;
  static_cast<float*>(static_cast<DLTensor*>(args[count - 1].v_ptr)->data)[0] = 7;
  GiveBack(temporary);
  return 0;
}

// A kernel of which TVM's pool runs a part: it tells the error of the part in an error of its own.
int NeedsMemoryInThePool(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  if (NeedsMemory(self, args, count, result) == 0) return 0;
  const ffi::Error part = ffi::details::MoveFromSafeCallRaised();
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", ("Task 1 error: " + part.message()).c_str());
  return -1;
}

class HungryKernels final : public ffi::ModuleObj {
 public:
  explicit HungryKernels(TVMFFISafeCallType kernel) : kernel_(kernel) {}
  const char* kind() const final { return "hungry_kernels"; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final {
    return ffi::Function::FromExternC(nullptr, kernel_, nullptr);
  }

 private:
  TVMFFISafeCallType kernel_;
};

class Workspace : public ::testing::TestWithParam<TVMFFISafeCallType> {};

TEST_P(Workspace, ThatIsMissingIsARunError) {
  ffi::Module model =
      Create(SmallGraph(), ffi::Module(ffi::make_object<HungryKernels>(GetParam())));
  Call(model, "set_input", "x", Filled({16}, 1.0f));
  Call(model, "run");
  needed = kTooMuch;
  EXPECT_EQ(KindOf([&] { Call(model, "run"); }), kRunError);
  EXPECT_NE(ErrorOf([&] { Call(model, "run"); }).find("expected free memory"), std::string::npos);
  needed = 64;
  Call(model, "run");
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Workspace,
                         ::testing::Values(&NeedsMemory, &NeedsMemoryInThePool));

TEST(Workspaces, AreAlignedAndApart) {
  std::vector<char*> taken;
  for (size_t bytes : {0, 1, 64, 4096, 100}) {
    taken.push_back(Take(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(taken.back()) % kAlignment, 0);
    std::memset(taken.back(), static_cast<int>(taken.size()), bytes);
  }
  EXPECT_EQ(std::set<char*>(taken.begin(), taken.end()).size(), taken.size());
  EXPECT_EQ(taken[3][4095], 4);
  for (char* memory : taken) GiveBack(memory);
}

void UseAgain() {
  char* large = Take(4096);
  char* small = Take(64);
  GiveBack(large);
  GiveBack(small);
  EXPECT_EQ(Take(64), small) << "the smallest that is large enough";
  EXPECT_EQ(Take(1000), large);
  GiveBack(small);
  GiveBack(large);
  char* larger = Take(8192);  // the largest one grows, so that no more memory is kept than needed
  GiveBack(larger);
  EXPECT_EQ(Take(64), small);
  EXPECT_EQ(Take(64), larger);
  GiveBack(small);
  GiveBack(larger);
}

TEST(Workspaces, AreUsedAgain) {
  std::thread(UseAgain).join();  // this one has others of earlier tests
}

TEST(Workspaces, BelongToOneThread) {
  char* here = Take(64);
  GiveBack(here);
  char* there = nullptr;
  std::thread([&there] {
    there = Take(64);
    std::memset(there, 1, 64);
    GiveBack(there);
  }).join();
  EXPECT_EQ(Take(64), here);
  GiveBack(here);
}

TEST(Workspaces, OfALibraryThatComesLaterAreReplaced) {
  int other = 0;
  TVMFFIEnvModRegisterContextSymbol("__TVMBackendAllocWorkspace", &other);
  EXPECT_EQ(Symbol("__TVMBackendAllocWorkspace"), &other);
  ProvideWorkspaces();
  GiveBack(Take(64));
}

}  // namespace
}  // namespace tvm_stretch::testing
