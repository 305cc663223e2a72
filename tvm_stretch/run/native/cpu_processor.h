// The CPU as a processor: its regions run on the thread that runs the graph, and on TVM's pool.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "bound_graph.h"
#include "graph.h"
#include "processor.h"

namespace tvm_stretch {

// Runs all regions of a graph on the CPU, in order, after another processor failed.

class Spare {
 public:
  // `kernels` has kernels of all nodes; all arguments must outlive this.
  Spare(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors);

  // Before each run that may need it.
  void Reset() { cancelled_.store(false, std::memory_order_relaxed); }

  // Runs a plan on the calling thread and TVM's pool; throws CancelledError() once cancelled.
  void Run(const PlanSpec& plan, bool traced);

  // Any thread, any time.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // The spans of each region in the last traced run.
  const std::vector<std::vector<Span>>& spans() const { return spans_; }

 private:
  std::vector<BoundNodes> regions_;
  std::vector<std::vector<Span>> spans_;
  std::atomic<bool> cancelled_{false};
};

class CpuProcessor final : public Processor {
 public:
  // All arguments must outlive this.
  CpuProcessor(const GraphSpec& graph, const KernelTable& kernels, const MemoryMap& memory)
      : graph_(graph), kernels_(kernels), tensors_(graph, memory) {}

  void BeginPlan() final { last_ = nullptr; }
  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final;

  // Inputs and outputs that only the CPU touches may be the caller's memory.
  BoundTensors& tensors() { return tensors_; }

 private:
  const GraphSpec& graph_;
  const KernelTable& kernels_;
  BoundTensors tensors_;
  Task* last_ = nullptr;  // the task that was bound last
};

}  // namespace tvm_stretch
