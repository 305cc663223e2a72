// Runs all regions of a graph on the CPU, in order, after another processor failed.
#ifndef TVM_STRETCH_SPARE_H_
#define TVM_STRETCH_SPARE_H_

#include <atomic>
#include <vector>

#include "bound_graph.h"
#include "graph.h"
#include "processor.h"

namespace tvm_stretch {

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

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_SPARE_H_
