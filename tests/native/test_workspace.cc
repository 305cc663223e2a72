// Kernels that get no memory: one RunError, wherever they run, and the next run works.
#include <gtest/gtest.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/extra/module.h>

#include <new>

#include "errors.h"
#include "graphs.h"
#include "kernels.h"
#include "workspace.h"

namespace tvm_stretch::testing {
namespace {

enum class Room { kThere, kThrows, kNull };
Room room = Room::kThere;
float temporaries[16];

void* TvmAllocates(int, int, uint64_t, int, int) {
  if (room == Room::kThrows) throw std::bad_alloc();
  return room == Room::kThere ? temporaries : nullptr;
}

// What a library that is loaded now would call.
void* (*Allocation())(int, int, uint64_t, int, int) {
  void* last = nullptr;
  ffi::Module::VisitContextSymbols(
      ffi::TypedFunction<void(ffi::String, void*)>([&last](const ffi::String& name, void* symbol) {
        if (name == "__TVMBackendAllocWorkspace") last = symbol;
      }));
  return reinterpret_cast<void* (*)(int, int, uint64_t, int, int)>(last);
}

// As compiled kernels do: -1 where there is no memory, and whoever gave none has said why.
int NeedsMemory(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny*) {
  void* temporary = Allocation()(kDLCPU, 0, sizeof(temporaries), kDLFloat, 32);
  if (temporary == nullptr) return -1;
  static_cast<float*>(static_cast<DLTensor*>(args[count - 1].v_ptr)->data)[0] = 7;
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

class Workspace : public ::testing::TestWithParam<TVMFFISafeCallType> {
 protected:
  void SetUp() override {
    room = Room::kThere;
    void* tvm = reinterpret_cast<void*>(&TvmAllocates);
    TVMFFIEnvModRegisterContextSymbol("__TVMBackendAllocWorkspace", tvm);
    CatchMissingWorkspaces();
  }
};

TEST_P(Workspace, ThatIsMissingIsARunError) {
  ffi::Module model =
      Create(SmallGraph(), ffi::Module(ffi::make_object<HungryKernels>(GetParam())));
  Call(model, "set_input", "x", Filled({16}, 1.0f));
  Call(model, "run");
  for (Room missing : {Room::kThrows, Room::kNull}) {
    room = missing;
    EXPECT_EQ(KindOf([&] { Call(model, "run"); }), kRunError);
    EXPECT_NE(ErrorOf([&] { Call(model, "run"); }).find("expected free memory"), std::string::npos);
    room = Room::kThere;
    Call(model, "run");
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, Workspace,
                         ::testing::Values(&NeedsMemory, &NeedsMemoryInThePool));

TEST(WorkspaceOfTvm, IsAskedThroughUsOnce) {
  const auto before = Allocation();
  CatchMissingWorkspaces();
  EXPECT_EQ(Allocation(), before);
}

}  // namespace
}  // namespace tvm_stretch::testing
