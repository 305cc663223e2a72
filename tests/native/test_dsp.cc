// The session with a DSP, whose program is the same server as a program of this machine.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "graphs.h"
#include "kernels.h"

namespace tvm_stretch {
namespace {

using testing::Call;
using testing::Create;
using testing::ErrorOf;
using testing::Filled;
using testing::First;
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

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

// y = (x - w) + (x - w): the first sum on the DSP by `kernel`, the second on the CPU, and the copy
// on the DSP again.
std::string Graph(const std::string& kernel = "add") {
  std::string text = testing::SmallGraph();
  text = Replaced(text, R"({"name":"cpu","kind":"cpu"})",
                  R"({"name":"cpu","kind":"cpu"},{"name":"hexagon","kind":"dsp"})");
  text = Replaced(
      text, R"({"name":"r0","processor":0,"nodes":[0,1,2],"after":[],"receives":[0],"sends":[1]})",
      R"({"name":"r0","processor":1,"nodes":[0],"after":[],"receives":[0],"sends":[4]},)"
      R"({"name":"r1","processor":0,"nodes":[1],"after":[0],"receives":[4],"sends":[5]},)"
      R"({"name":"r2","processor":1,"nodes":[2],"after":[1],"receives":[6],"sends":[1]})");
  return Replaced(text, R"({"kernel":"add","name":"a")",
                  R"({"kernel":")" + kernel + R"(","name":"a")");
}

ffi::Module Executor(const std::string& graph, int spin_us = 50, int deadline_ms = 20'000) {
  return Create(graph, ffi::Module(ffi::make_object<Kernels>()), Code(spin_us, deadline_ms));
}

float Compute(const ffi::Module& module, float x) {
  ffi::Tensor y = Filled({4, 4}, 0.0f);
  Call(module, "invoke", Filled({16}, x), y);
  return First(y);
}

std::string Health(const ffi::Module& module) { return Call(module, "health").cast<ffi::String>(); }

class Dsp : public ::testing::TestWithParam<int> {};  // how long both sides spin

TEST_P(Dsp, RunsItsRegions) {
  ffi::Module module = Executor(Graph(), GetParam());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Compute(module, static_cast<float>(i)), 2.0f * static_cast<float>(i) - 6.0f);
  }
  EXPECT_NE(Health(module).find(R"("regions":100)"), std::string::npos) << Health(module);
}

INSTANTIATE_TEST_SUITE_P(Spins, Dsp, ::testing::Values(0, 50));

TEST(DspSession, InstancesRunOnThreadsWhileOthersAskForTheirHealth) {
  ffi::Module module = Executor(Graph());
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
  for (int i = 0; i < 5; ++i) Call(Executor(Graph()), "load");
}

TEST(DspSession, FailuresAreErrorsOfTheRun) {
  const std::pair<const char*, const char*> cases[] = {
      {"refuse", "refused"}, {"exit", "ended with code 3"}, {"hang", "within the deadline"}};
  for (const auto& [kernel, message] : cases) {
    ffi::Module module = Executor(Graph(kernel), 50, 100);
    EXPECT_NE(ErrorOf([&] { Compute(module, 1.0f); }).find(message), std::string::npos) << kernel;
    EXPECT_NE(Health(module).find(R"("failures":1)"), std::string::npos) << Health(module);
    EXPECT_NE(ErrorOf([&] { Compute(module, 1.0f); }), "")
        << "it is started again, and fails again";
  }
}

TEST(DspSession, CancelledAtAnyTime) {
  ffi::Module module = Executor(Graph());
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
