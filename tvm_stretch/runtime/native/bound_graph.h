// A graph's nodes with their arguments bound to memory: what remains to be done is to call.
#ifndef TVM_STRETCH_BOUND_GRAPH_H_
#define TVM_STRETCH_BOUND_GRAPH_H_

#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "graph.h"
#include "processor.h"

namespace tvm_stretch {

// The functions of the kernels that a graph calls. Holds the module that they come from.
class KernelTable {
 public:
  KernelTable(ffi::Module library, const GraphSpec& graph);
  const ffi::Function& at(const std::string& kernel) const { return functions_.at(kernel); }

 private:
  ffi::Module library_;
  std::unordered_map<std::string, ffi::Function> functions_;
};

class BoundGraph {
 public:
  // Both `graph` and `kernels` must outlive this.
  BoundGraph(const GraphSpec& graph, const std::vector<NodeSpec>& nodes, const KernelTable& kernels,
             const MemoryMap& memory);

  // From now on the caller's memory `data` is input (output) number `index`.
  void BindInput(size_t index, char* data) { Bind(&inputs_[index], data); }
  void BindOutput(size_t index, char* data) { Bind(&outputs_[index], data); }

  void Run() const;
  // Runs once and returns each node's nanoseconds.
  std::vector<int64_t> RunTimed() const;

 private:
  struct Call {
    const ffi::Function* function;
    size_t first_argument;
    int32_t num_arguments;
  };
  // The tensors that look at one input or output of the graph.
  struct Port {
    char* data;
    std::vector<size_t> tensors;
  };

  void Bind(Port* port, char* data);
  void Invoke(const Call& call) const;

  const GraphSpec& graph_;
  std::vector<DLTensor> tensors_;
  std::vector<ffi::AnyView> arguments_;
  std::vector<Call> calls_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_BOUND_GRAPH_H_
