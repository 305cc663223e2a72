#include "bound_graph.h"

#include <cstring>

#include "workspace.h"
#include "written_rows.h"

namespace tvm_stretch {
namespace {

ffi::Function MakeCopyKernel() {
  return ffi::Function::FromTyped([](ffi::TensorView from, ffi::TensorView to) {
    std::memmove(to.data_ptr(), from.data_ptr(), ffi::GetDataSize(from));
  });
}

}  // namespace

KernelTable::KernelTable(ffi::Module library, const GraphSpec& graph, size_t processor)
    : library_(std::move(library)) {
  functions_.emplace(kCopyKernel, MakeCopyKernel());
  functions_.emplace(kWriteKernel, MakeWriteKernel());
  if (processor == kCpu) {
    for (const NodeSpec& node : graph.prepare) Find(node);
  }
  for (const RegionSpec& region : graph.regions) {
    const bool spare = graph.spare && processor == kCpu;
    if (!spare && region.processor != static_cast<int64_t>(processor)) continue;
    for (int64_t node : region.nodes) Find(graph.nodes[node]);
  }
}

void KernelTable::Find(const NodeSpec& node) {
  if (functions_.count(node.kernel) != 0) return;
  ffi::Optional<ffi::Function> function = library_->GetFunction(node.kernel, true);
  if (!function.has_value()) {
    TVM_FFI_THROW(ValueError) << "expected a kernel '" << node.kernel
                              << "' in the artifact, got none; export the model again";
  }
  functions_.emplace(node.kernel, *function);
}

BoundTensors::BoundTensors(const GraphSpec& graph, const MemoryMap& memory)
    : graph_(graph), inputs_(graph.inputs.size()), outputs_(graph.outputs.size()) {
  tensors_.reserve(graph.tensors.size());
  for (const TensorSpec& spec : graph.tensors) {
    DLTensor tensor{};
    tensor.data = AddressOf(memory, spec);  // kernels refuse a byte_offset
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
}

void BoundTensors::Bind(Port* port, char* data) {
  if (port->data == data) return;
  port->data = data;
  for (size_t id : port->tensors) tensors_[id].data = data + graph_.tensors[id].offset;
}

void CallKernel(const ffi::Function& kernel, const ffi::AnyView* arguments, size_t count) {
  ffi::Any result;
  try {
    kernel.CallPacked(arguments, static_cast<int32_t>(count), &result);
  } catch (const ffi::Error& error) {
    if (IsMissingWorkspace(error.message())) throw NoMemoryError();
    throw;
  }
}

BoundNodes::BoundNodes(const std::vector<NodeSpec>& nodes, const std::vector<int64_t>& ids,
                       const KernelTable& kernels, BoundTensors* tensors)
    : nodes_(nodes) {
  for (int64_t id : ids) {
    const NodeSpec& node = nodes[id];
    calls_.push_back(Call{&kernels.at(node.kernel), arguments_.size(),
                          node.inputs.size() + node.outputs.size(), id});
    for (const std::vector<int64_t>* operands : {&node.inputs, &node.outputs}) {
      for (int64_t operand : *operands) arguments_.emplace_back(tensors->at(operand));
    }
  }
}

void BoundNodes::Run(const std::atomic<bool>& stop, std::vector<Span>* spans) const {
  for (const Call& call : calls_) {
    if (stop.load(std::memory_order_relaxed)) throw CancelledError();
    const int64_t start = spans == nullptr ? 0 : Now();
    CallKernel(*call.function, &arguments_[call.first_argument], call.num_arguments);
    if (spans == nullptr) continue;
    spans->push_back(Span{Span::Kind::kKernel, call.id, nodes_[call.id].name, start, Now()});
  }
}

}  // namespace tvm_stretch
