// Graphs on several processors: random ones, failures, cancelled runs; also under ThreadSanitizer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cores.h"
#include "kernels.h"
#include "processor.h"
#include "random_graph.h"
#include "random_runs.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

using testing::Call;
using testing::Create;
using testing::ErrorOf;
using testing::Filled;
using testing::Invoke;
using testing::Kernels;
using testing::RandomGraph;
using testing::RunInstancesOnThreads;
using testing::RunWhileCancelled;

ffi::Module FakeCode(const std::string& script) {
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_fake_code");
  return create(ffi::String(script)).cast<ffi::Module>();
}

ffi::Module CreateOnFakes(const RandomGraph& graph, const std::string& first = "{}",
                          const std::string& second = R"({"mirrored":true})") {
  return Create(graph.JSON(), ffi::Module(ffi::make_object<Kernels>()), FakeCode(first),
                FakeCode(second));
}

TEST(Regions, RandomGraphsOnThreeProcessors) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    RandomGraph graph(seed, 3);
    ffi::Module module = CreateOnFakes(graph);
    for (float a : {1.0f, 2.0f, -3.0f}) {
      EXPECT_EQ(Invoke(module, a, 0.5f), graph.Expected(a, 0.5f)) << graph.JSON();
    }
  }
}

TEST(Regions, InstancesOnThreads) {
  for (uint32_t seed = 100; seed < 104; ++seed) {
    RandomGraph graph(seed, 3);
    RunInstancesOnThreads(graph, CreateOnFakes(graph));
  }
}

// One region of the first fake processor fails twice; the third run is right.
TEST(Regions, FailuresAreErrorsOfTheirRegion) {
  int failed = 0;
  for (uint32_t seed = 200; seed < 230; ++seed) {
    RandomGraph graph(seed, 3);
    int region = 0;
    while (region < graph.num_regions() && graph.processor(region) != 1) ++region;
    if (region == graph.num_regions()) continue;
    const std::string name = "r" + std::to_string(region);
    ffi::Module module =
        CreateOnFakes(graph, R"({"regions":{")" + name + R"(":{"fails":"gone","failures":2}}})");
    for (int run = 0; run < 2; ++run) {
      std::string error = ErrorOf([&] { Invoke(module, 1, 2); });
      EXPECT_NE(error.find("'" + name + "' to run on processor 'fake1', got: gone"),
                std::string::npos)
          << error;
    }
    EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
    ++failed;
  }
  EXPECT_GT(failed, 20);
}

std::string EveryRegionTakes(const RandomGraph& graph, int microseconds) {
  std::string regions;
  for (int i = 0; i < graph.num_regions(); ++i) {
    regions += (i == 0 ? "\"r" : ",\"r") + std::to_string(i) +
               "\":{\"latency_us\":" + std::to_string(microseconds) + "}";
  }
  return "{\"regions\":{" + regions + "}}";
}

// Each of a processor's regions takes a millisecond; four runs keep it busy for longer than a
// period.
TEST(Limits, RunsWaitSoThatAProcessorIsBusyForAShareOfTheTime) {
  for (uint32_t seed = 400; seed < 406; ++seed) {
    RandomGraph graph(seed, 3);
    graph.max_share = 0.25;
    int64_t count = 0;
    for (int i = 0; i < graph.num_regions(); ++i) count += graph.processor(i) == 1;
    ffi::Module module = CreateOnFakes(graph, EveryRegionTakes(graph, 1000));
    Invoke(module, 1, 2);
    const int64_t start = Now();
    for (float a : {1.0f, 2.0f, 3.0f, 4.0f}) EXPECT_EQ(Invoke(module, a, 2), graph.Expected(a, 2));
    // The work of the last period, which may be as long as 2.5 ms and a region, needs no pause.
    EXPECT_GE(Now() - start, 4 * (4 * count - 4) * kMillisecond) << count;
  }
}

TEST(Limits, OfTheCpuAndOfDevices) {
  for (uint32_t seed = 410; seed < 420; ++seed) {
    RandomGraph graph(seed, 3);
    graph.max_share = 0.5;
    graph.cpu_share = 0.5;
    ffi::Module module = CreateOnFakes(graph);
    for (float a : {1.0f, 2.0f}) EXPECT_EQ(Invoke(module, a, 2), graph.Expected(a, 2));
    if (seed == 410) RunInstancesOnThreads(graph, module);
  }
}

TEST(Limits, CancelledAtAnyTime) {
  int cancelled = 0;
  for (uint32_t seed = 420; seed < 424; ++seed) {
    RandomGraph graph(seed, 3);
    graph.max_share = 0.02;
    cancelled += RunWhileCancelled(graph, CreateOnFakes(graph));
  }
  EXPECT_GT(cancelled, 0);
}

// Otherwise the second region of a device would begin after a quarter of an hour.
TEST(Limits, APauseEndsWhenItsRunIsCancelled) {
  RandomGraph graph(400, 3);
  graph.max_share = 1e-6;
  ffi::Module module = CreateOnFakes(graph, EveryRegionTakes(graph, 1000));
  std::atomic<bool> ended{false};
  std::thread canceller([&] {
    while (!ended) {
      Call(module, "cancel");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  while (ErrorOf([&] { Invoke(module, 1, 2); }).empty()) continue;
  ended = true;
  canceller.join();
}

TEST(Limits, SharesAreChecked) {
  const ffi::Module kernels(ffi::make_object<Kernels>());
  const ffi::Module fake = FakeCode("{}");
  for (double wrong : {0.0, -0.5, 1.5}) {
    RandomGraph graph(8, 3);
    graph.max_share = wrong;
    EXPECT_NE(ErrorOf([&] { Create(graph.JSON(), kernels, fake, fake); }).find("expected a share"),
              std::string::npos);
  }
  RandomGraph alone(8, 1);
  alone.cpu_share = 0.5;
  EXPECT_NE(ErrorOf([&] { Create(alone.JSON(), kernels); }).find("another processor beside"),
            std::string::npos);
}

// Code of another kind than the devices', so that they cannot be used.
ffi::Module CreateWithoutDevices(const RandomGraph& graph) {
  const ffi::Module kernels(ffi::make_object<Kernels>());
  return Create(graph.JSON(), kernels, kernels, kernels);
}

// The CPU runs again what a device failed to run, and all that follows; a new instance does not
// know.
TEST(Spare, TakesOverFromADeviceThatFails) {
  int failed = 0;
  for (uint32_t seed = 200; seed < 230; ++seed) {
    RandomGraph graph(seed, 3);
    graph.spare = true;
    const std::string last = "r" + std::to_string(graph.num_regions() - 1);
    const std::string script = R"({"regions":{")" + last + R"(":{"fails":"gone","failures":1}}})";
    const bool on_device = graph.processor(graph.num_regions() - 1) != 0;
    ffi::Module module = CreateOnFakes(graph, script, script);
    for (float a : {1.0f, 2.0f, 3.0f}) EXPECT_EQ(Invoke(module, a, 2), graph.Expected(a, 2));
    const std::string lost = Call(module, "lost").cast<ffi::String>();
    EXPECT_EQ(lost.find("'" + last + "' to run on processor 'fake") != std::string::npos, on_device)
        << lost;
    EXPECT_EQ(lost.empty(), !on_device) << lost;
    failed += on_device;
  }
  EXPECT_GT(failed, 10);
}

// Kernels of the CPU alone are done in microseconds, so that a call of cancel may meet none for
// long.
TEST(Spare, IsCancelledAtAnyTime) {
  int cancelled = 0;
  for (uint32_t seed = 300; seed < 310 || (cancelled == 0 && seed < 500); ++seed) {
    RandomGraph graph(seed, 3);
    graph.spare = true;
    ffi::Module module = CreateOnFakes(graph, "{}", "{}");
    ffi::Module lost = CreateWithoutDevices(graph);
    EXPECT_NE(std::string(Call(lost, "lost").cast<ffi::String>()), "") << "from the beginning";
    cancelled += RunWhileCancelled(graph, lost);
    RunWhileCancelled(graph, module);
    EXPECT_EQ(std::string(Call(module, "lost").cast<ffi::String>()), "") << "no failure";
  }
  EXPECT_GT(cancelled, 0);
}

TEST(Spare, TracesWhatTheCpuRan) {
  RandomGraph graph(7, 3);
  graph.spare = true;
  ffi::Module module = CreateWithoutDevices(graph);
  Call(module, "set_input", 0, Filled({16}, 1));
  Call(module, "set_input", 1, Filled({16}, 2));
  const std::string trace = Call(module, "trace").cast<ffi::String>();
  EXPECT_NE(trace.find("kernel"), std::string::npos) << trace;
  EXPECT_EQ(trace.find("receive"), std::string::npos) << trace;
}

TEST(Regions, CancelledAtAnyTime) {
  int cancelled = 0;
  for (uint32_t seed = 300; seed < 310; ++seed) {
    RandomGraph graph(seed, 3);
    cancelled += RunWhileCancelled(graph, CreateOnFakes(graph, R"({"mirrored":true})", "{}"));
  }
  EXPECT_GT(cancelled, 0);
}

TEST(Regions, Traces) {
  RandomGraph graph(7, 3);
  ffi::Module module = CreateOnFakes(graph);
  Call(module, "set_input", 0, Filled({16}, 1));
  Call(module, "set_input", 1, Filled({16}, 2));
  auto trace = Call(module, "trace").cast<ffi::String>();
  for (const char* kind : {"kernel", "receive", "send", "wait"}) {
    EXPECT_NE(std::string(trace).find(kind), std::string::npos) << kind << " in " << trace;
  }
}

TEST(Regions, UnknownKindsAndMissingCodeAreRefused) {
  RandomGraph graph(8, 3);
  const ffi::Module kernels(ffi::make_object<Kernels>());
  const ffi::Module fake = FakeCode("{}");
  auto error = [](const ffi::Module& module) { return ErrorOf([&] { Call(module, "load"); }); };
  EXPECT_NE(error(Create(graph.JSON(), kernels, fake)).find("got 2"), std::string::npos);
  EXPECT_NE(error(Create(graph.JSON(), kernels, fake, kernels)).find("got test_kernels"),
            std::string::npos);
  std::string json = graph.JSON();
  json.replace(json.find("\"kind\":\"fake\""), 13, "\"kind\":\"abacus\"");
  const std::string message = error(Create(json, kernels, fake, fake));
  EXPECT_NE(message.find("fake"), std::string::npos) << message;
  EXPECT_NE(message.find("got 'abacus'"), std::string::npos) << message;
}

// The first processor is one core of the CPU's, the second one a fake.
ffi::Module CreateOnCluster(const RandomGraph& graph, const std::string& script = "{}") {
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_cluster_code");
  const std::string code =
      R"({"cores":")" + std::to_string(AllowedCores().back()) + R"(","threads":1})";
  return Create(graph.JSON(), ffi::Module(ffi::make_object<Kernels>()),
                create(ffi::String(code)).cast<ffi::Module>(), FakeCode(script));
}

TEST(Cluster, RandomGraphsBesideTheCpuAndADevice) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    RandomGraph graph(seed, 3, "cluster");
    ffi::Module module = CreateOnCluster(graph);
    for (float a : {1.0f, 2.0f, -3.0f}) {
      EXPECT_EQ(Invoke(module, a, 0.5f), graph.Expected(a, 0.5f)) << graph.JSON();
    }
  }
  for (uint32_t seed = 100; seed < 102; ++seed) {
    RandomGraph graph(seed, 3, "cluster");
    RunInstancesOnThreads(graph, CreateOnCluster(graph));
  }
}

TEST(Cluster, WhatFailsBeforeItFailsItsRun) {
  int failed = 0;
  for (uint32_t seed = 200; seed < 215; ++seed) {
    RandomGraph graph(seed, 3, "cluster");
    int region = 0;
    while (region < graph.num_regions() && graph.processor(region) != 2) ++region;
    if (region == graph.num_regions()) continue;
    const std::string name = "r" + std::to_string(region);
    ffi::Module module =
        CreateOnCluster(graph, R"({"regions":{")" + name + R"(":{"fails":"gone","failures":1}}})");
    EXPECT_NE(ErrorOf([&] { Invoke(module, 1, 2); }).find("got: gone"), std::string::npos);
    EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
    ++failed;
  }
  EXPECT_GT(failed, 5);
}

TEST(Cluster, IsCancelledAtAnyTime) {
  int cancelled = 0;
  for (uint32_t seed = 300; seed < 305; ++seed) {
    RandomGraph graph(seed, 3, "cluster");
    cancelled += RunWhileCancelled(graph, CreateOnCluster(graph));
  }
  EXPECT_GT(cancelled, 0);
}

TEST(Cluster, CodeIsCheckedAndCoresAreHere) {
  const ffi::Function create = ffi::Function::GetGlobalRequired("tvm_stretch.create_cluster_code");
  for (const char* wrong :
       {"", "[]", R"({"cores":"0"})", R"({"cores":"x","threads":1})", R"({"cores":"","threads":1})",
        R"({"cores":0,"threads":1})", R"({"cores":"0","threads":0})"}) {
    EXPECT_NE(ErrorOf([&] { create(ffi::String(wrong)); }).find("expected"), std::string::npos);
  }
  RandomGraph graph(9, 3, "cluster");
  const ffi::Module nowhere =
      create(ffi::String(R"({"cores":"1023","threads":1})")).cast<ffi::Module>();
  ffi::Module module =
      Create(graph.JSON(), ffi::Module(ffi::make_object<Kernels>()), nowhere, FakeCode("{}"));
  EXPECT_NE(ErrorOf([&] { Call(module, "load"); }).find("got a process that may not use all"),
            std::string::npos);
}

TEST(Affinity, LittleCoresAreThoseOfTheSmallestCapacity) {
  const std::string folder = ::testing::TempDir() + "/cpus" + std::to_string(getpid());
  const auto write = [&](int core, const char* capacity) {
    const std::filesystem::path path = folder + "/cpu" + std::to_string(core);
    std::filesystem::create_directories(path);
    std::ofstream(path / "cpu_capacity") << capacity << "\n";
  };
  for (int core : {0, 1, 2, 3}) write(core, "325");
  for (int core : {4, 5, 6}) write(core, "828");
  write(7, "1024");
  EXPECT_EQ(LittleCores({0, 1, 2, 3, 4, 5, 6, 7}, folder), (Cores{0, 1, 2, 3}));
  EXPECT_EQ(LittleCores({3, 6, 7}, folder), (Cores{3}));
  EXPECT_EQ(LittleCores({4, 5}, folder), Cores());
  EXPECT_EQ(LittleCores({0, 8}, folder), Cores());  // nothing is known of core 8
  write(0, "big");
  EXPECT_EQ(LittleCores({0, 7}, folder), Cores());
  EXPECT_EQ(LittleCores({}, folder), Cores());
  std::filesystem::remove_all(folder);
}

TEST(Affinity, CoresAreCheckedAndUsed) {
  RandomGraph graph(9, 1);
  ffi::Module module = Create(graph.JSON(), ffi::Module(ffi::make_object<Kernels>()));
  for (const char* wrong : {"x", "1-", "3-2", "0,,1", "-1", "5000"}) {
    EXPECT_NE(ErrorOf([&] { Call(module, "set_affinity", ffi::String(wrong)); }).find("expected"),
              std::string::npos)
        << wrong;
  }
  for (const char* right : {"0", "0-1023", ""}) {
    Call(module, "set_affinity", ffi::String(right));
    EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2));
  }
}

}  // namespace
}  // namespace tvm_stretch
