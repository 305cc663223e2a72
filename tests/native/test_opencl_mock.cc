// The OpenCL processor on a driver without a device (mock_opencl.cc), which fails when it is told
// to; also under ThreadSanitizer. $MOCK_OPENCL chooses the kind of device, for the whole process.
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cores.h"
#include "kernels.h"
#include "memory.h"
#include "random_graph.h"
#include "random_runs.h"
#include "targets/opencl/native/cl.h"
#include "targets/opencl/native/driver.h"

namespace tvm_stretch {
namespace {

using testing::Call;
using testing::Create;
using testing::ErrorOf;
using testing::Filled;
using testing::Invoke;
using testing::Kernels;
using testing::KindOf;
using testing::RandomGraph;
using testing::RunInstancesOnThreads;
using testing::RunWhileCancelled;

// Launches of the graphs' kernels, as the compiler writes them for GPUs, and for the host's CPU.
constexpr const char* kPlain = R"json({"options":"","sources":[
 "void add(a, a0, b, b0, c, c0) void negative(a, a0, b, b0)"],"kernels":{
 "add":[{"entry":"add","source":0,"groups":[1,1,1],"group_size":[1,1,1],"args":[
  ["buffer",0],["offset",0],["buffer",1],["offset",1],["buffer",2],["offset",2]]}],
 "negative":[{"entry":"negative","source":0,"groups":[1,1,1],"group_size":[1,1,1],"args":[
  ["buffer",0],["offset",0],["buffer",1],["offset",1]]}]}})json";

constexpr const char* kBells =
    R"json({"options":"","sources":["void ring(bell) void add(bell, a, a0, b, b0, c, c0)",
 "void negative(bell, a, a0, b, b0)"],"kernels":{
 "add":[{"entry":"add","source":0,"groups":[2,1,1],"group_size":[1,1,1],"args":[["bell",0],
  ["buffer",0],["offset",0],["buffer",1],["offset",1],["buffer",2],["offset",2]]}],
 "negative":[{"entry":"negative","source":1,"groups":[1,1,1],"group_size":[1,1,1],"args":[
  ["bell",0],["buffer",0],["offset",0],["buffer",1],["offset",1]]}],
 "tvm_stretch.doorbell":[{"entry":"ring","source":0,"groups":[1,1,1],"group_size":[1,1,1],
  "args":[["bell",0]]}]}})json";

// The same as `kPlain`, but what kernels read are images.
constexpr const char* kImages = R"json({"options":"","sources":[
 "void add(a, a0, b, b0, c, c0) void negative(a, a0, b, b0)"],"kernels":{
 "add":[{"entry":"add","source":0,"groups":[1,1,1],"group_size":[1,1,1],"args":[
  ["image",0],["offset",0],["image",1],["offset",1],["buffer",2],["offset",2]]}],
 "negative":[{"entry":"negative","source":0,"groups":[1,1,1],"group_size":[1,1,1],"args":[
  ["image",0],["offset",0],["buffer",1],["offset",1]]}]}})json";

bool IsDevice(const char* word) {
  const char* words = std::getenv("MOCK_OPENCL");
  return words != nullptr && std::string(words).find(word) != std::string::npos;
}

class OpenCLMock : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    setenv("TVM_STRETCH_OPENCL_LIB", TVM_STRETCH_MOCK_OPENCL, 1);
    setenv("TVM_STRETCH_CACHE_DIR", "", 1);
    library_ = dlopen(TVM_STRETCH_MOCK_OPENCL, RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void SetUp() override {
    if (IsDevice("gpu") && GetParam() == kBells) GTEST_SKIP() << "a GPU refuses a CPU's kernels";
  }
  void TearDown() override { Fail(nullptr); }

  static void Fail(const char* what, int skip = 0, int code = 0) {
    auto fail =
        reinterpret_cast<void (*)(const char*, int, int)>(dlsym(library_, "mock_opencl_fail"));
    fail(what, skip, code);
  }
  static int Live() { return reinterpret_cast<int (*)()>(dlsym(library_, "mock_opencl_live"))(); }

  static ffi::Module CreateOn(const RandomGraph& graph, const char* fake = "{}") {
    static const auto opencl = ffi::Function::GetGlobalRequired("tvm_stretch.create_opencl_code");
    static const auto fakes = ffi::Function::GetGlobalRequired("tvm_stretch.create_fake_code");
    return Create(graph.JSON(), ffi::Module(ffi::make_object<Kernels>()),
                  opencl(ffi::String(GetParam())).cast<ffi::Module>(),
                  fakes(ffi::String(fake)).cast<ffi::Module>());
  }
  // With another device beside it, it cannot be asked for the memory that all use.
  static RandomGraph Graph(uint32_t seed) {
    RandomGraph graph(seed, seed % 2 == 0 ? 2 : 3, "opencl");
    graph.reuses = true;
    return graph;
  }

  static void* library_;
};
void* OpenCLMock::library_ = nullptr;

TEST_P(OpenCLMock, RandomGraphs) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    RandomGraph graph = Graph(seed);
    ffi::Module module = CreateOn(graph);
    for (float a : {1.0f, 2.0f, -3.0f}) {
      EXPECT_EQ(Invoke(module, a, 0.5f), graph.Expected(a, 0.5f)) << graph.JSON();
    }
  }
}

// Runs of plans in any order: bytes that are the device's own in one plan are the host's in
// another.
TEST_P(OpenCLMock, PlansInAnyOrder) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    RandomGraph graph = Graph(seed);
    graph.has_plans = true;
    ffi::Module module = CreateOn(graph);
    for (int run = 0; run < 12; ++run) {
      Call(module, "use_plan", (run * 7 + run / 3) % 3);
      const auto a = static_cast<float>(run);
      EXPECT_EQ(Invoke(module, a, 0.5f), graph.Expected(a, 0.5f)) << run << ": " << graph.JSON();
    }
  }
}

// y = -(-a) + -(-b): the device computes -a for the CPU, then -(-b).
constexpr const char* kOverlapping = R"json({"format":"tvm_stretch.graph","version":5,
 "inputs":[{"name":"a","tensor":0},{"name":"b","tensor":1}],"outputs":[{"name":"y","tensor":6}],
 "tensors":[
 {"shape":[16],"dtype":"float32","kind":"input","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"input","buffer":1,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":64,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":128,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"arena","buffer":0,"offset":192,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"output","buffer":0,"offset":0,"bytes":64}],
 "prepare":[],"nodes":[
 {"kernel":"negative","name":"n0","inputs":[0],"outputs":[2]},
 {"kernel":"negative","name":"n1","inputs":[2],"outputs":[3]},
 {"kernel":"negative","name":"n2","inputs":[1],"outputs":[4]},
 {"kernel":"negative","name":"n3","inputs":[4],"outputs":[5]},
 {"kernel":"add","name":"n4","inputs":[3,5],"outputs":[6]}],
 "processors":[{"name":"cpu","kind":"cpu"},{"name":"opencl","kind":"opencl"}],"regions":[
 {"name":"r0","processor":1,"nodes":[0],"after":[],"receives":[0],"sends":[2]},
 {"name":"r1","processor":0,"nodes":[1],"after":[0],"receives":[2],"sends":[3]},
 {"name":"r2","processor":1,"nodes":[2,3],"after":[],"receives":[1],"sends":[5]},
 {"name":"r3","processor":0,"nodes":[4],"after":[2],"receives":[5],"sends":[6]}],
 "arena_bytes":256,"weights_bytes":128,"prepared_bytes":0,"threads":1,"package_version":"0",
 "target":{},"cpu_features":[]})json";

constexpr const char* kAlone = R"json({"format":"tvm_stretch.graph","version":5,
 "inputs":[{"name":"a","tensor":0}],"outputs":[{"name":"y","tensor":1}],
 "tensors":[
 {"shape":[16],"dtype":"float32","kind":"input","buffer":0,"offset":0,"bytes":64},
 {"shape":[16],"dtype":"float32","kind":"output","buffer":0,"offset":0,"bytes":64}],
 "prepare":[],"nodes":[{"kernel":"negative","name":"n0","inputs":[0],"outputs":[1]}],
 "processors":[{"name":"cpu","kind":"cpu"},{"name":"opencl","kind":"opencl"}],"regions":[
 {"name":"r0","processor":1,"nodes":[0],"after":[],"receives":[0],"sends":[1]}],
 "arena_bytes":64,"weights_bytes":128,"prepared_bytes":0,"threads":1,"package_version":"0",
 "target":{},"cpu_features":[]})json";

// A device with memory of its own copies out the first region's result while it computes the next.
TEST_P(OpenCLMock, CopiesOverlapKernels) {
  const char* memory = std::getenv("TVM_STRETCH_OPENCL_MEMORY");
  if (memory == nullptr || std::string(memory) != "mirror") GTEST_SKIP() << "nothing is copied";
  static const auto opencl = ffi::Function::GetGlobalRequired("tvm_stretch.create_opencl_code");
  ffi::Module module = Create(kOverlapping, ffi::Module(ffi::make_object<Kernels>()),
                              opencl(ffi::String(GetParam())).cast<ffi::Module>());
  for (int run = 0; run < 3; ++run) {
    Fail("slow-read", 0, opencl::CL_INVALID_BUFFER_SIZE);
    auto y = Call(module, "invoke", Filled({16}, 3), Filled({16}, 4)).cast<ffi::Tensor>();
    EXPECT_EQ(testing::First(y), 7);
  }
}

// Memory of a camera: a file that an app has mapped and announced.
class Camera {
 public:
  explicit Camera(uint64_t id) : fd_(memfd_create("camera", 0)) {
    EXPECT_EQ(ftruncate(fd_, 2 * kPage), 0);
    memory_ = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    char* const data = static_cast<char*>(memory_) + (IsDevice("qcom") ? 0 : kPage);
    const auto offset = static_cast<size_t>(data - static_cast<char*>(memory_));
    external_ = {id, data, 64, fd_, offset, nullptr};
    AnnounceMemory(external_);
  }
  ~Camera() {
    WithdrawMemory(external_.id);
    munmap(memory_, 2 * kPage);
    close(fd_);
  }
  // The next picture.
  ffi::Tensor Shoot(float value) const {
    auto* const pixels = reinterpret_cast<float*>(external_.data);
    std::fill(pixels, pixels + 16, value);
    return ffi::Tensor::FromNDAlloc(Lent{external_.data}, ffi::Shape({16}), {kDLFloat, 32, 1},
                                    {kDLCPU, 0});
  }

 private:
  struct Lent {
    void AllocData(DLTensor* tensor) const { tensor->data = data; }
    void FreeData(DLTensor*) const {}
    char* data;
  };
  static constexpr size_t kPage = 4096;
  int fd_;
  void* memory_;
  ExternalMemory external_;
};

// Kernels read a camera's picture where it is, if the driver imports it; otherwise it is copied.
TEST_P(OpenCLMock, ACamerasPictureIsRead) {
  static const auto opencl = ffi::Function::GetGlobalRequired("tvm_stretch.create_opencl_code");
  const auto count = reinterpret_cast<int (*)(bool)>(dlsym(library_, "mock_opencl_imports"));
  ffi::Module module = Create(kOverlapping, ffi::Module(ffi::make_object<Kernels>()),
                              opencl(ffi::String(GetParam())).cast<ffi::Module>());
  const int imports = count(false), reads = count(true);
  const int one = IsDevice("import") && GetParam() == kPlain ? 1 : 0;
  const auto answer = [&](const ffi::Tensor& a) {
    return testing::First(Call(module, "invoke", a, Filled({16}, 4)).cast<ffi::Tensor>());
  };
  EXPECT_EQ(answer(Filled({16}, 1)), 5);
  const int live = Live();
  {
    const Camera first(1), second(2), third(3);
    for (int run = 0; run < 4; ++run) {
      const Camera& camera = run % 2 == 0 ? first : second;
      EXPECT_EQ(answer(camera.Shoot(static_cast<float>(run))), run + 4);
    }
    EXPECT_EQ(count(false), imports + 2 * one);
    EXPECT_EQ(count(true), reads + 4 * one);
    EXPECT_EQ(answer(Filled({16}, 9)), 13) << "memory of nobody else";
    Fail("Import", 0, opencl::CL_OUT_OF_RESOURCES);
    EXPECT_EQ(answer(third.Shoot(5)), 9) << "after a failure";
    Fail(nullptr);
    EXPECT_EQ(count(true), reads + 4 * one) << "both were copied";
    EXPECT_EQ(answer(third.Shoot(6)), 10);
    EXPECT_EQ(count(true), reads + 5 * one) << "the next run tries again";
  }
  EXPECT_EQ(answer(Filled({16}, 1)), 5);
  EXPECT_LE(Live(), live + 4 * one + 2) << "imports and a queue; the last command may be there";
}

// The device computes all of y = -a: the caller's thread waits asleep, and not on the CPU's cores.
TEST_P(OpenCLMock, TheCallerOfADeviceAloneKeepsOffTheCpusCores) {
  if (GetParam() != kBells || AllowedCores().size() < 2) GTEST_SKIP() << "no cores of a driver";
  static const auto opencl = ffi::Function::GetGlobalRequired("tvm_stretch.create_opencl_code");
  ffi::Module module = Create(kAlone, ffi::Module(ffi::make_object<Kernels>()),
                              opencl(ffi::String(GetParam())).cast<ffi::Module>());
  const auto waited_on = reinterpret_cast<int (*)()>(dlsym(library_, "mock_opencl_waited_on"));
  waited_on();
  auto y = Call(module, "invoke", Filled({16}, 3)).cast<ffi::Tensor>();
  EXPECT_EQ(testing::First(y), -3);
  EXPECT_EQ(waited_on(), opencl::DriverCores().front());
  const Cores before = AllowedCores();
  Call(module, "set_affinity", ffi::String(std::to_string(before.front())));
  Call(module, "invoke", Filled({16}, 3));
  EXPECT_EQ(waited_on(), before.front()) << "the user's cores go before";
  EXPECT_EQ(AllowedCores(), before);
}

TEST_P(OpenCLMock, InstancesOnThreads) {
  for (uint32_t seed = 100; seed < 104; ++seed) {
    RandomGraph graph = Graph(seed);
    RunInstancesOnThreads(graph, CreateOn(graph));
  }
}

TEST_P(OpenCLMock, CancelledAtAnyTime) {
  int cancelled = 0;
  for (uint32_t seed = 300; seed < 310; ++seed) {
    RandomGraph graph = Graph(seed);
    cancelled += RunWhileCancelled(graph, CreateOn(graph));
  }
  EXPECT_GT(cancelled, 0);
}

// A region of another processor fails; whatever the device waited for, the next run is right.
TEST_P(OpenCLMock, FailuresOfOthers) {
  int failed = 0;
  for (uint32_t seed = 400; seed < 430; ++seed) {
    RandomGraph graph(seed, 3, "opencl");
    int region = 0;
    while (region < graph.num_regions() && graph.processor(region) != 2) ++region;
    if (region == graph.num_regions()) continue;
    const std::string script =
        R"({"regions":{"r)" + std::to_string(region) + R"(":{"fails":"gone","failures":2}}})";
    ffi::Module module = CreateOn(graph, script.c_str());
    for (int run = 0; run < 2; ++run) {
      EXPECT_NE(ErrorOf([&] { Invoke(module, 1, 2); }).find("got: gone"), std::string::npos);
    }
    EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
    ++failed;
  }
  EXPECT_GT(failed, 20);
}

// More words for the driver.
class Also {
 public:
  explicit Also(const char* word) {
    const char* words = std::getenv("MOCK_OPENCL");
    if (words != nullptr) before_ = words;
    setenv("MOCK_OPENCL", (before_.value_or("") + " " + word).c_str(), 1);
  }
  ~Also() { before_ ? setenv("MOCK_OPENCL", before_->c_str(), 1) : unsetenv("MOCK_OPENCL"); }

 private:
  std::optional<std::string> before_;
};

TEST_P(OpenCLMock, TheProgramKeepsItsSignalHandlers) {
  const auto own = [](int) {};
  const auto before = std::signal(SIGUSR1, own);
  const Also takes("takes-signals");
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] { Invoke(CreateOn(Graph(1)), 1, 2); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::signal(SIGUSR1, before), static_cast<void (*)(int)>(own));
}

// Progress is for terminals.
TEST_P(OpenCLMock, ASlowBuildSaysNothingToAPipe) {
  if (isatty(STDERR_FILENO) == 1) GTEST_SKIP() << "this is a terminal";
  const Also slow("slow-build");
  ::testing::internal::CaptureStderr();
  Invoke(CreateOn(Graph(1)), 1, 2);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_P(OpenCLMock, Traces) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    RandomGraph graph = Graph(seed);
    ffi::Module module = CreateOn(graph);
    Call(module, "set_input", 0, Filled({16}, 1));
    Call(module, "set_input", 1, Filled({16}, 2));
    EXPECT_NE(std::string(Call(module, "trace").cast<ffi::String>()).find("kernel"),
              std::string::npos);
  }
}

void ExpectOneClearError(const std::string& error, const std::string& what) {
  const size_t first = error.find("expected ");
  EXPECT_NE(first, std::string::npos) << what << ": '" << error << "'";
  EXPECT_NE(error.find(", got"), std::string::npos) << what << ": " << error;
  EXPECT_NE(error.find("; "), std::string::npos) << what << ": " << error;
}

struct Fault {
  const char* function;
  int code;
};

// What the error of a code tells the user to do.
const char* AdviceFor(int code) {
  switch (code) {
    case opencl::CL_INVALID_WORK_GROUP_SIZE:
      return "; measure with ts.tune.measure(networks=), which drops such kernels";
    case opencl::CL_DEVICE_NOT_AVAILABLE:
      return "; the device is lost: ";
    default:
      return "run fewer or smaller networks on it";
  }
}

// Whatever fails while a model is loaded or run, wherever in it: one clear error, another model of
// the same context is unharmed, and nothing is left behind.
TEST_P(OpenCLMock, EveryCallMayFail) {
  RandomGraph graph = Graph(4), other = Graph(7);
  ffi::Module healthy = CreateOn(other);
  EXPECT_EQ(Invoke(healthy, 1, 2), other.Expected(1, 2));
  const int before = Live();
  int errors = 0;
  for (const Fault& fault : {
           Fault{"CreateBuffer", opencl::CL_MEM_OBJECT_ALLOCATION_FAILURE},
           Fault{"CreateBuffer", opencl::CL_INVALID_BUFFER_SIZE},
           Fault{"CreateImage", opencl::CL_MEM_OBJECT_ALLOCATION_FAILURE},
           Fault{"CreateCommandQueue", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"CreateProgramWithSource", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"BuildProgram", opencl::CL_OUT_OF_RESOURCES},
           Fault{"CreateKernel", opencl::CL_OUT_OF_RESOURCES},
           Fault{"SetKernelArg", opencl::CL_OUT_OF_RESOURCES},
           Fault{"EnqueueNDRangeKernel", opencl::CL_MEM_OBJECT_ALLOCATION_FAILURE},
           Fault{"EnqueueMapBuffer", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"EnqueueUnmapMemObject", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"EnqueueWriteBuffer", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"EnqueueReadBuffer", opencl::CL_OUT_OF_HOST_MEMORY},
           Fault{"EnqueueNDRangeKernel", opencl::CL_OUT_OF_RESOURCES},
           Fault{"EnqueueNDRangeKernel", opencl::CL_INVALID_WORK_GROUP_SIZE},
           Fault{"Flush", opencl::CL_OUT_OF_RESOURCES},
           Fault{"run", opencl::CL_OUT_OF_RESOURCES},
           Fault{"run", opencl::CL_MEM_OBJECT_ALLOCATION_FAILURE},
       }) {
    for (int skip : {0, 2, 5}) {
      const std::string what = std::string(fault.function) + " " + std::to_string(skip);
      ffi::Module module = CreateOn(graph);
      Fail(fault.function, skip, fault.code);
      std::string error;
      for (int run = 0; run < 2 && error.empty(); ++run) {
        error = ErrorOf([&] { EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2)) << what; });
      }
      Fail(nullptr);
      if (!error.empty()) {
        ExpectOneClearError(error, what);
        EXPECT_NE(error.find(AdviceFor(fault.code)), std::string::npos) << what << ": " << error;
        ++errors;
      }
      EXPECT_EQ(Invoke(module, 3, 4), graph.Expected(3, 4)) << what << ", and then the next run";
      EXPECT_EQ(Invoke(healthy, 1, 2), other.Expected(1, 2)) << what << ", and another model";
    }
  }
  EXPECT_GT(errors, 15);
  for (int wait = 0; wait < 1000 && Live() != before; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // commands hold their objects
  }
  EXPECT_EQ(Live(), before);
}

// The same with spare kernels: whatever fails, the CPU answers.
TEST_P(OpenCLMock, TheCpuTakesOver) {
  RandomGraph graph = Graph(4);
  graph.spare = true;
  int lost = 0;
  for (const char* call : {"CreateBuffer", "CreateCommandQueue", "BuildProgram", "CreateKernel",
                           "EnqueueNDRangeKernel", "Flush", "run"}) {
    for (int skip : {0, 1, 3}) {
      ffi::Module module = CreateOn(graph);
      Fail(call, skip, opencl::CL_OUT_OF_RESOURCES);
      for (int run = 0; run < 3; ++run) {
        EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2)) << call << " " << skip;
      }
      Fail(nullptr);
      const std::string why = Call(module, "lost").cast<ffi::String>();
      if (!why.empty()) ExpectOneClearError(why, call);
      lost += !why.empty();
    }
  }
  EXPECT_GT(lost, 10);
}

TEST_P(OpenCLMock, ALostDeviceIsAnErrorAndNewModelsWork) {
  for (const auto& [skip, code] : {std::pair{0, opencl::CL_NV_ILLEGAL_BUFFER_ACCESS},
                                   std::pair{1, opencl::CL_NV_ILLEGAL_BUFFER_ACCESS},
                                   std::pair{3, opencl::CL_NV_ILLEGAL_BUFFER_ACCESS},
                                   std::pair{4, opencl::CL_NV_ILLEGAL_BUFFER_ACCESS},
                                   std::pair{1, opencl::CL_DEVICE_NOT_AVAILABLE},
                                   std::pair{4, opencl::CL_DEVICE_NOT_AVAILABLE}}) {
    RandomGraph graph = Graph(4);
    ffi::Module module = CreateOn(graph);
    EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
    Fail("run", skip, code);
    for (int run = 0; run < 3; ++run) {
      const std::string error = ErrorOf([&] { Invoke(module, 1, 2); });
      ExpectOneClearError(error, "lost");
      EXPECT_NE(error.find("the device is lost"), std::string::npos) << error;
      EXPECT_NE(error.find(" (mock), got: "), std::string::npos) << error;
      EXPECT_NE(error.find("spare=True"), std::string::npos) << error;
    }
    EXPECT_EQ(KindOf([&] { Invoke(module, 1, 2); }), "DeviceError");
    EXPECT_EQ(Invoke(CreateOn(graph), 1, 2), graph.Expected(1, 2));
  }
}

// A driver that runs smaller groups than it says is found out when a model is loaded.
TEST_P(OpenCLMock, WrongLimitsAreFoundBeforeTheFirstRun) {
  const Also wrong("no-groups");
  const std::string error = ErrorOf([] { Invoke(CreateOn(Graph(4)), 1, 2); });
  ExpectOneClearError(error, "groups");
  EXPECT_NE(error.find("at most a work-group of 0 for kernel"), std::string::npos) << error;
  EXPECT_NE(error.find("compile the model for this device"), std::string::npos) << error;
}

// Weights and tensors that do not fit are refused with what to do, before anything runs.
TEST_P(OpenCLMock, ADeviceWithoutRoomSaysSo) {
  const Also small("no-room");
  const std::string error = ErrorOf([] { Invoke(CreateOn(Graph(4)), 1, 2); });
  EXPECT_NE(error.find("run fewer or smaller networks on it"), std::string::npos) << error;
}

// Processes of their own, as a driver is asked about its images only once.
TEST_P(OpenCLMock, ImagesThatTheDriverLacks) {
  const bool is_small = IsDevice("few-pixels");
  if (GetParam() != kImages || !(is_small || IsDevice("no-images"))) GTEST_SKIP() << "it has them";
  const std::string error = ErrorOf([] { Invoke(CreateOn(Graph(4)), 1, 2); });
  ExpectOneClearError(error, "images");
  const char* reason = is_small ? "at most 8 pixels in an image of mock" : "a device with images";
  EXPECT_NE(error.find(reason), std::string::npos) << error;
}

TEST_P(OpenCLMock, RunsLeaveNothingBehind) {
  RandomGraph graph = Graph(4);
  ffi::Module module = CreateOn(graph);
  Invoke(module, 1, 2);
  const int before = Live();
  for (int run = 0; run < 300; ++run) Invoke(module, 1, 2);
  EXPECT_LE(Live(), before + 2) << "the last command may not be released yet";
}

int ThreadsOn(int core) {
  int count = 0;
  DIR* threads = opendir("/proc/self/task");
  while (const dirent* entry = readdir(threads)) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(std::atoi(entry->d_name), sizeof(set), &set) != 0) continue;
    count += entry->d_name[0] != '.' && CPU_COUNT(&set) == 1 && CPU_ISSET(core, &set) ? 1 : 0;
  }
  closedir(threads);
  return count;
}

// The driver's context is made once, so each word needs a process of its own.
TEST_P(OpenCLMock, PrioritiesReachTheDriver) {
  if (!IsDevice("priorities")) GTEST_SKIP() << "this driver takes no hints";
  const auto hint = reinterpret_cast<int64_t (*)(bool)>(dlsym(library_, "mock_opencl_hint"));
  const char* word = std::getenv("TVM_STRETCH_OPENCL_PRIORITY");
  const std::string wanted = word == nullptr ? "" : word;
  RandomGraph graph = Graph(4);
  ffi::Module module = CreateOn(graph);
  EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
  const bool is_low = wanted == "low", is_high = wanted == "high";
  EXPECT_EQ(hint(false), is_low ? 0x40CC : is_high ? 0x40CA : 0);
  EXPECT_EQ(hint(true), is_low ? 4 : is_high ? 1 : 0);
  setenv("TVM_STRETCH_OPENCL_PRIORITY", "urgent", 1);
  EXPECT_NE(ErrorOf([&] { Invoke(CreateOn(graph), 1, 2); }).find("got 'urgent'"),
            std::string::npos);
  wanted.empty() ? unsetenv("TVM_STRETCH_OPENCL_PRIORITY")
                 : setenv("TVM_STRETCH_OPENCL_PRIORITY", wanted.c_str(), 1);
}

TEST_P(OpenCLMock, AffinityReachesTheSubmitter) {
  const Cores cores = AllowedCores();
  if (cores.size() < 2) GTEST_SKIP() << "all threads are on the one core";
  const char* device = std::getenv("MOCK_OPENCL");
  if (device == nullptr) GTEST_SKIP() << "a driver for the host's CPU has cores of its own";
  const int core = cores.back();
  RandomGraph graph = Graph(4);
  const int before = ThreadsOn(core);
  ffi::Module module = CreateOn(graph);
  EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
  Call(module, "set_affinity", ffi::String(std::to_string(core)));
  EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
  for (int wait = 0; wait < 1000 && ThreadsOn(core) == before; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it may not have begun
  }
  EXPECT_EQ(ThreadsOn(core), before + 1);
  Call(module, "set_affinity", ffi::String(""));
  EXPECT_EQ(ThreadsOn(core), before);
}

std::string NameOfMockCode(const ::testing::TestParamInfo<OpenCLMock::ParamType>& info) {
  constexpr const char* kNames[] = {"Plain", "Bells", "Images"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Code, OpenCLMock, ::testing::Values(kPlain, kBells, kImages),
                         NameOfMockCode);

}  // namespace
}  // namespace tvm_stretch
