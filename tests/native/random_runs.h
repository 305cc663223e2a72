// What every kind of processor has to stand with random graphs: threads, and cancelled runs.
#ifndef TVM_STRETCH_TESTS_RANDOM_RUNS_H_
#define TVM_STRETCH_TESTS_RANDOM_RUNS_H_

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"
#include "random_graph.h"

namespace tvm_stretch::testing {

inline std::vector<float> Invoke(const ffi::Module& module, float a, float b) {
  auto outputs =
      Call(module, "invoke", Filled({16}, a), Filled({16}, b)).cast<ffi::Array<ffi::Tensor>>();
  std::vector<float> values;
  for (const ffi::Tensor& output : outputs) values.push_back(First(output));
  return values;
}

// Instances of the model run side by side; each gets the answers to its own questions.
inline void RunInstancesOnThreads(const RandomGraph& graph, const ffi::Module& module) {
  std::array<int, 8> wrong{};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      auto mine = Call(module, "create_instance").cast<ffi::Module>();
      for (int run = 0; run < 20; ++run) {
        const float a = static_cast<float>(t), b = static_cast<float>(run);
        wrong[t] += Invoke(mine, a, b) != graph.Expected(a, b);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 8>{})) << graph.JSON();
}

// A thread cancels all the time. Returns how many of the runs that met; the others, and the one
// after it, are right.
inline int RunWhileCancelled(const RandomGraph& graph, const ffi::Module& module) {
  int cancelled = 0;
  std::atomic<bool> stop{false}, calling{false};
  std::thread canceller([&] {
    while (!stop) {
      Call(module, "cancel");
      calling = true;
      std::this_thread::yield();
    }
  });
  while (!calling) std::this_thread::yield();  // fifty runs may end before a thread begins
  for (int run = 0; run < 50; ++run) {
    std::string error = ErrorOf([&] { EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2)); });
    if (error.empty()) continue;
    EXPECT_NE(error.find("got a call of cancel"), std::string::npos) << error;
    ++cancelled;
  }
  stop = true;
  canceller.join();
  EXPECT_EQ(Invoke(module, 1, 2), graph.Expected(1, 2)) << "as if nothing had been";
  return cancelled;
}

}  // namespace tvm_stretch::testing

#endif  // TVM_STRETCH_TESTS_RANDOM_RUNS_H_
