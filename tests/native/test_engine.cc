// The session with an engine, in whose process a script stands in for ONNX Runtime.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <thread>
#include <utility>
#include <vector>

#include "dsp_graphs.h"

namespace tvm_stretch {
namespace {

using testing::Call;
using testing::Compute;
using testing::ErrorOf;
using testing::Health;

const std::vector<std::string> kWords = {"add", "refuse", "crash", "exit", "hang", "sometimes"};

// The code of an engine whose models are these words.
std::string EngineCode(const std::vector<std::string>& words, const std::string& more = "") {
  std::string head = "tvm_stretch.engine 1\nprovider Scripted\nlibrary libscripted.so\n" + more;
  std::string models;
  for (const std::string& word : words) {
    head += "model " + std::to_string(word.size()) + " 2 1\n";
    models += word;
  }
  return head + "end\n" + models;
}

ffi::Module EngineExecutor(const std::string& kernel, const std::string& code,
                           int deadline_ms = 20'000, bool alone = false) {
  setenv("TVM_STRETCH_ENGINE_PATH", TVM_STRETCH_SCRIPTED_ORT, 1);
  std::string names;
  for (const std::string& word : kWords) names += (names.empty() ? "\"" : ",\"") + word + "\"";
  const std::string text = R"({"kernels":[)" + names + R"(],"emulator":[],"server":")" +
                           TVM_STRETCH_CHECKED_ENGINE +
                           R"(","runs_here":true,"device":"scripted","spin_us":50,)" +
                           R"("deadline_ms":)" + std::to_string(deadline_ms) + "}";
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_dsp_code");
  auto module = create(ffi::String(text), ffi::Bytes(code)).cast<ffi::Module>();
  return testing::Create(alone ? testing::AloneOnDsp(kernel) : testing::DspGraph(kernel),
                         ffi::Module(ffi::make_object<testing::Kernels>()), module);
}

pid_t ProcessOf(const ffi::Module& module) {
  const std::string health = Health(module);
  std::smatch found;
  return std::regex_search(health, found, std::regex("\"pid\":([0-9]+)")) ? std::stoi(found[1]) : 0;
}

// An engine that never starts must fail the test and not keep it.
void AwaitProcessOf(const ffi::Module& module) {
  for (int turn = 0; ProcessOf(module) == 0; ++turn) {
    if (turn > 60'000) throw std::runtime_error("no engine started: " + Health(module));
    usleep(1000);
  }
}

TEST(Engine, RunsItsRegions) {
  ffi::Module module = EngineExecutor("add", EngineCode(kWords));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Compute(module, static_cast<float>(i)), 2.0f * static_cast<float>(i) - 6.0f);
  }
  auto other = Call(module, "create_instance").cast<ffi::Module>();
  EXPECT_EQ(Compute(other, 5.0f), 4.0f) << "tensors of another instance are bound";
  EXPECT_EQ(Compute(module, 4.0f), 2.0f);
}

TEST(Engine, TheOnlyRegionRunsOnItsCallersThread) {
  ffi::Module module = EngineExecutor("add", EngineCode(kWords), 20'000, true);
  auto is_handed_over = [&] {
    return Health(module).find(R"("launch_ns":0,)") == std::string::npos;
  };
  AwaitProcessOf(module);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Compute(module, 4.0f), 2.0f);
  EXPECT_FALSE(is_handed_over()) << Health(module);
  kill(ProcessOf(module), SIGKILL);
  // The session's thread may notice it before the run does, and start the engine again.
  const std::string error = ErrorOf([&] { Compute(module, 4.0f); });
  EXPECT_TRUE(error.empty() || error.find("signal 9") != std::string::npos) << error;
  EXPECT_EQ(Compute(module, 4.0f), 2.0f) << "the session's thread starts the engine again";
  EXPECT_EQ(Compute(module, 4.0f), 2.0f);
  EXPECT_NE(Health(module).find(R"("starts":2)"), std::string::npos) << Health(module);
}

TEST(Engine, FailuresOnTheCallersThreadAreErrorsOfTheRun) {
  ffi::Module module = EngineExecutor("exit", EngineCode(kWords), 20'000, true);
  AwaitProcessOf(module);
  for (int run = 0; run < 2; ++run) {
    const std::string error = ErrorOf([&] { Compute(module, 4.0f); });
    EXPECT_NE(error.find("ended with code 7"), std::string::npos) << error;
  }
  EXPECT_NE(Health(module).find(R"("failures":2)"), std::string::npos) << Health(module);
}

// What the script notes of two runs of "add" with this memory; answers are right in any.
std::string NotesOf(const std::string& memory) {
  const std::string path = ::testing::TempDir() + "scripted_notes." + std::to_string(getpid());
  std::remove(path.c_str());
  setenv("SCRIPTED_NOTES", path.c_str(), 1);
  {
    ffi::Module module = EngineExecutor("add", EngineCode({"add"}, memory));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(Compute(module, 4.0f), 2.0f);
  }
  unsetenv("SCRIPTED_NOTES");
  std::ifstream file(path);
  std::string notes, line;
  while (std::getline(file, line)) notes += line + "; ";
  std::remove(path.c_str());
  return notes;
}

TEST(Engine, TensorsLieInMemoryOfTheDevice) {
  EXPECT_EQ(NotesOf("memory ScriptedShared share libm.so.6\n"),
            "memory of add; tensor; tensor; tensor; run in it; run in it; ")
      << "they are bound once";
  EXPECT_EQ(NotesOf("memory Another share libm.so.6\n"), "run; run; ") << "the provider has none";
  EXPECT_EQ(NotesOf("memory ScriptedShared share libnone_such.so\n"), "")
      << "without the device's driver it is not asked for";
}

TEST(Engine, FailuresAreErrorsOfTheRun) {
  const std::pair<const char*, const char*> cases[] = {
      {"refuse", "expected success of a run, got: refused, as written"},
      {"crash", "killed by signal"},
      {"exit", "ended with code 7"},
      {"hang", "within the deadline"}};
  for (const auto& [kernel, message] : cases) {
    ffi::Module module =
        EngineExecutor(kernel, EngineCode(kWords), kernel == std::string("hang") ? 300 : 20'000);
    const std::string error = ErrorOf([&] { Compute(module, 1.0f); });
    // The sanitizers turn a crash into a report and an exit.
    const bool is_crash =
        std::string(kernel) == "crash" && error.find("ended with code") != error.npos;
    EXPECT_TRUE(error.find(message) != error.npos || is_crash) << kernel << ": " << error;
    EXPECT_NE(Health(module).find(R"("failures":1)"), std::string::npos) << Health(module);
  }
}

TEST(Engine, ModelsOfOtherVersionsSayWhatToDo) {
  const std::string code = EngineCode({"closed"}, "compiled runtime 1.30.0 for HTP v75\n");
  ffi::Module module = EngineExecutor("add", code);
  const std::string error = ErrorOf([&] { Compute(module, 1.0f); });
  for (const char* part :
       {"compiled with runtime 1.30.0 for HTP v75", "here is onnxruntime 1.99.0, Scripted 3.1",
        "which says: no context of this version (error 5000)", "compile the network again"}) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

// A hundred cancels and fifty kills; failures of the provider come on top of them.
class EngineRuns : public ::testing::TestWithParam<bool> {};  // whether it has the only region

TEST_P(EngineRuns, TwoHundredWithCancelsKillsAndFailures) {
  ffi::Module module = EngineExecutor("sometimes", EngineCode(kWords), 20'000, GetParam());
  int right = 0, cancelled = 0, failed = 0;
  for (int i = 0; i < 200; ++i) {
    if (i % 4 == 3) {
      if (const pid_t process = ProcessOf(module)) kill(process, SIGKILL);
    }
    std::thread canceller([&] {
      if (i % 2 == 0) Call(module, "cancel");
    });
    const float x = static_cast<float>(i % 7);
    float answer = -1.0f;
    const std::string error = ErrorOf([&] { answer = Compute(module, x); });
    canceller.join();
    if (error.empty()) {
      EXPECT_EQ(answer, 2.0f * x - 6.0f);
      ++right;
    } else if (error.find("cancel") != error.npos) {
      ++cancelled;
    } else {
      ++failed;
    }
  }
  EXPECT_EQ(right + cancelled + failed, 200);
  EXPECT_GE(failed, 5) << "kills end runs";
  EXPECT_LE(failed, 100);
  ffi::Module fresh = EngineExecutor("add", EngineCode(kWords));
  EXPECT_EQ(Compute(fresh, 5.0f), 4.0f);
}

INSTANTIATE_TEST_SUITE_P(Alone, EngineRuns, ::testing::Bool());

}  // namespace
}  // namespace tvm_stretch
