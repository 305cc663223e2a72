// The session with a DSP, whose program is the same server as a program of this machine.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "dsp_graphs.h"

namespace tvm_stretch {
namespace {

using testing::Call;
using testing::Compute;
using testing::Create;
using testing::ErrorOf;
using testing::Health;
using testing::Kernels;

ffi::Module Code(int spin_us, int deadline_ms) {
  std::ifstream file(TVM_STRETCH_NATIVE_DSP, std::ios::binary);
  const std::string program{std::istreambuf_iterator<char>(file), {}};
  const std::string text =
      R"({"kernels":["add","refuse","exit","hang"],"emulator":[],"runs_here":true,)"
      R"("device":"native","spin_us":)" +
      std::to_string(spin_us) + R"(,"deadline_ms":)" + std::to_string(deadline_ms) + "}";
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_dsp_code");
  return create(ffi::String(text), ffi::Bytes(program)).cast<ffi::Module>();
}

ffi::Module Executor(const std::string& graph, int spin_us = 50, int deadline_ms = 20'000) {
  return Create(graph, ffi::Module(ffi::make_object<Kernels>()), Code(spin_us, deadline_ms));
}

class DspRuns : public ::testing::TestWithParam<int> {};  // how long both sides spin

TEST_P(DspRuns, RunsItsRegions) {
  ffi::Module module = Executor(testing::DspGraph(), GetParam());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Compute(module, static_cast<float>(i)), 2.0f * static_cast<float>(i) - 6.0f);
  }
  EXPECT_NE(Health(module).find(R"("regions":100)"), std::string::npos) << Health(module);
}

INSTANTIATE_TEST_SUITE_P(Spins, DspRuns, ::testing::Values(0, 50));

TEST(DspSession, InstancesRunOnThreadsWhileOthersAskForTheirHealth) {
  ffi::Module module = Executor(testing::DspGraph());
  Call(module, "load");
  std::atomic<bool> done{false};
  std::thread watcher([&] {
    while (!done) Health(module);
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&module, t] {
      auto own = Call(module, "create_instance").cast<ffi::Module>();
      for (int i = 0; i < 10; ++i) EXPECT_EQ(Compute(own, 3.0f + static_cast<float>(t)), 2.0f * t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  watcher.join();
}

TEST(DspSession, EndsWhileItStarts) {
  for (int i = 0; i < 5; ++i) Call(Executor(testing::DspGraph()), "load");
}

TEST(DspSession, FailuresAreErrorsOfTheRun) {
  const std::pair<const char*, const char*> cases[] = {
      {"refuse", "refused"}, {"exit", "ended with code 3"}, {"hang", "within the deadline"}};
  for (const auto& [kernel, message] : cases) {
    ffi::Module module = Executor(testing::DspGraph(kernel), 50, 100);
    EXPECT_NE(ErrorOf([&] { Compute(module, 1.0f); }).find(message), std::string::npos) << kernel;
    EXPECT_NE(Health(module).find(R"("failures":1)"), std::string::npos) << Health(module);
    EXPECT_NE(ErrorOf([&] { Compute(module, 1.0f); }), "")
        << "it is started again, and fails again";
  }
}

TEST(DspSession, CancelledAtAnyTime) {
  ffi::Module module = Executor(testing::DspGraph());
  Compute(module, 1.0f);
  std::atomic<bool> done{false};
  std::thread canceller([&] {
    while (!done) Call(module, "cancel");
  });
  for (int i = 0; i < 50; ++i) {
    const std::string error = ErrorOf([&] { EXPECT_EQ(Compute(module, 5.0f), 4.0f); });
    EXPECT_TRUE(error.empty() || error.find("cancel") != std::string::npos) << error;
  }
  done = true;
  canceller.join();
  EXPECT_EQ(Compute(module, 5.0f), 4.0f);
}

}  // namespace
}  // namespace tvm_stretch
