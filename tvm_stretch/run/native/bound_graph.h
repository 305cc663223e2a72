// A graph's tensors and nodes, bound to memory of the host and ready to be called.
#pragma once

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph.h"
#include "processor.h"

namespace tvm_stretch {

// States of which a run writes some rows: the memory of the next state gets the others before.

// The kernel `kWriteKernel`: (places, rows, tensor, starts). It writes row i at the place i, and
// the first byte of that place to starts[i]. Guards report places that are clamped here.
ffi::Function MakeWriteKernel();

// What the memory of each next state lacks of the state. Both memories change places after a run,
// or the state gets the rows that it wrote; after anything else they may differ in every byte.
class WrittenRows {
 public:
  explicit WrittenRows(const GraphSpec& spec) : spec_(spec), lacks_(spec.states.size()) {}

  // A state has changed, or a run may have written anything.
  void Forget();

  // Before a run: copies what the next states lack. From then on the run may write anything.
  void CatchUp(const std::vector<char*>& inputs, const std::vector<char*>& outputs);

  // After a run of this length that succeeded.
  void Remember(const std::vector<char*>& outputs, size_t length);

  // Copies what a run that succeeded wrote to a state.
  void Keep(size_t state, char* input, const char* output);

 private:
  struct Lack {
    bool all = true;
    std::vector<int64_t> starts;  // of rows
  };

  const GraphSpec& spec_;
  std::vector<Lack> lacks_;  // for each state
};

// The functions of the kernels that one processor of a graph calls. Keeps their module alive.
class TVM_STRETCH_API KernelTable {
 public:
  KernelTable(ffi::Module library, const GraphSpec& graph, size_t processor);
  const ffi::Function& at(const std::string& kernel) const { return functions_.at(kernel); }

 private:
  void Find(const NodeSpec& node);

  ffi::Module library_;
  std::unordered_map<std::string, ffi::Function> functions_;
};

// The graph's tensors as arguments of kernels.
class TVM_STRETCH_API BoundTensors {
 public:
  // `graph` must outlive this.
  BoundTensors(const GraphSpec& graph, const MemoryMap& memory);

  DLTensor* at(int64_t id) { return &tensors_[id]; }

  // From now on the caller's memory `data` is input (output) number `index`.
  void BindInput(size_t index, char* data) { Bind(&inputs_[index], data); }
  void BindOutput(size_t index, char* data) { Bind(&outputs_[index], data); }

 private:
  // The tensors that are views of one input or output of the graph.
  struct Port {
    char* data = nullptr;
    std::vector<size_t> tensors;
  };

  void Bind(Port* port, char* data);

  const GraphSpec& graph_;
  std::vector<DLTensor> tensors_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
};

// Calls a kernel; throws NoMemoryError() if it finds no memory to work in.
TVM_STRETCH_API void CallKernel(const ffi::Function& kernel, const ffi::AnyView* arguments,
                                size_t count);

// Calls of kernels, in order.
class TVM_STRETCH_API BoundNodes {
 public:
  // The kernels of `ids`, which are positions in `nodes`. All arguments must outlive this.
  BoundNodes(const std::vector<NodeSpec>& nodes, const std::vector<int64_t>& ids,
             const KernelTable& kernels, BoundTensors* tensors);

  // Calls every kernel; throws CancelledError() as soon as `stop` is true. Appends a span
  // for each call to `spans`, unless it is null.
  void Run(const std::atomic<bool>& stop, std::vector<Span>* spans) const;

 private:
  struct Call {
    const ffi::Function* function;
    size_t first_argument;
    size_t num_arguments;
    int64_t id;
    const DLTensor* when;  // has to be `wanted`; null: it always runs
    bool wanted;
  };

  const std::vector<NodeSpec>& nodes_;
  std::vector<ffi::AnyView> arguments_;
  std::vector<Call> calls_;
};

}  // namespace tvm_stretch
