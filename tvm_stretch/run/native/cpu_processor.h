// The CPU as a processor: its regions run on the thread that runs the graph, and on TVM's pool.
#ifndef TVM_STRETCH_CPU_PROCESSOR_H_
#define TVM_STRETCH_CPU_PROCESSOR_H_

#include <memory>
#include <vector>

#include "bound_graph.h"
#include "processor.h"

namespace tvm_stretch {

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

#endif  // TVM_STRETCH_CPU_PROCESSOR_H_
