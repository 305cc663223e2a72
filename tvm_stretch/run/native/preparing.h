// Runs the prepare nodes of a graph when its artifact is loaded, on several cores. Another thread
// checks the weights meanwhile: both read all of them, so they wait for memory or for the disk.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "bound_graph.h"
#include "graph.h"
#include "processor.h"

namespace tvm_stretch {

class Preparation {
 public:
  // All arguments must outlive this. `check` throws if the weights are damaged.
  Preparation(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors,
              std::function<void()> check);

  // Calls all kernels, and `check` beside them. Throws what one of them threw.
  void Run();

 private:
  void Check();
  void Work();
  bool IsReady(size_t node) const;
  void Finish(Failure failure, const size_t* node);

  std::vector<BoundNodes> nodes_;
  // For each node the earlier ones that have to be complete, because both use the same memory.
  std::vector<std::vector<size_t>> after_;
  const bool is_serial_;
  const std::function<void()> check_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<bool> done_;
  size_t next_ = 0;
  bool checking_ = false;
  Failure failure_;
};

}  // namespace tvm_stretch
