#include "bound_graph.h"

#include <chrono>
#include <cstring>

namespace tvm_stretch {
namespace {

ffi::Function MakeCopyKernel() {
  return ffi::Function::FromTyped([](ffi::TensorView from, ffi::TensorView to) {
    std::memmove(to.data_ptr(), from.data_ptr(), ffi::GetDataSize(from));
  });
}

}  // namespace

KernelTable::KernelTable(ffi::Module library, const GraphSpec& graph)
    : library_(std::move(library)) {
  functions_.emplace(kCopyKernel, MakeCopyKernel());
  for (const std::vector<NodeSpec>* nodes : {&graph.prepare, &graph.nodes}) {
    for (const NodeSpec& node : *nodes) {
      if (functions_.count(node.kernel) != 0) continue;
      ffi::Optional<ffi::Function> function = library_->GetFunction(node.kernel, true);
      if (!function.has_value()) {
        TVM_FFI_THROW(ValueError) << "expected a kernel '" << node.kernel
                                  << "' in the artifact, got none; export the model again";
      }
      functions_.emplace(node.kernel, *function);
    }
  }
}

BoundGraph::BoundGraph(const GraphSpec& graph, const std::vector<NodeSpec>& nodes,
                       const KernelTable& kernels, const MemoryMap& memory)
    : graph_(graph), inputs_(graph.inputs.size()), outputs_(graph.outputs.size()) {
  tensors_.reserve(graph.tensors.size());
  for (const TensorSpec& spec : graph.tensors) {
    // The kernels refuse a byte_offset, so the offset goes into the pointer.
    DLTensor tensor{};
    tensor.data = AddressOf(memory, spec);
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(spec.shape.size());
    tensor.dtype = spec.dtype;
    tensor.shape = const_cast<int64_t*>(spec.shape.data());
    tensor.strides = const_cast<int64_t*>(spec.strides.data());
    if (spec.memory == Memory::kInput) inputs_[spec.buffer].tensors.push_back(tensors_.size());
    if (spec.memory == Memory::kOutput) outputs_[spec.buffer].tensors.push_back(tensors_.size());
    tensors_.push_back(tensor);
  }
  for (size_t i = 0; i < memory.inputs.size(); ++i) inputs_[i].data = memory.inputs[i];
  for (size_t i = 0; i < memory.outputs.size(); ++i) outputs_[i].data = memory.outputs[i];
  for (const NodeSpec& node : nodes) {
    calls_.push_back(Call{&kernels.at(node.kernel), arguments_.size(),
                          static_cast<int32_t>(node.inputs.size() + node.outputs.size())});
    for (const std::vector<int64_t>* ids : {&node.inputs, &node.outputs}) {
      for (int64_t id : *ids) arguments_.emplace_back(&tensors_[id]);
    }
  }
}

void BoundGraph::Bind(Port* port, char* data) {
  if (port->data == data) return;
  port->data = data;
  for (size_t id : port->tensors) tensors_[id].data = data + graph_.tensors[id].offset;
}

void BoundGraph::Invoke(const Call& call) const {
  ffi::Any result;
  call.function->CallPacked(&arguments_[call.first_argument], call.num_arguments, &result);
}

void BoundGraph::Run() const {
  for (const Call& call : calls_) Invoke(call);
}

std::vector<int64_t> BoundGraph::RunTimed() const {
  using Clock = std::chrono::steady_clock;
  std::vector<int64_t> times;
  times.reserve(calls_.size());
  for (const Call& call : calls_) {
    auto start = Clock::now();
    Invoke(call);
    auto elapsed = Clock::now() - start;
    times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
  }
  return times;
}

}  // namespace tvm_stretch
