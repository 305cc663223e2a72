#include "bound_graph.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cstring>

#include "workspace.h"

namespace tvm_stretch {
namespace {

int64_t PlaceAt(const ffi::TensorView& places, int64_t i) {
  if (places.dtype().bits == 32) return static_cast<const int32_t*>(places.data_ptr())[i];
  return static_cast<const int64_t*>(places.data_ptr())[i];
}

// graph.cc checked the shapes.
void Write(const ffi::TensorView& places, const ffi::TensorView& rows, const ffi::TensorView& all,
           const ffi::TensorView& starts) {
  const int64_t depth = places.size(places.ndim() - 1), count = starts.size(0);
  const auto bytes = static_cast<int64_t>(ffi::GetDataSize(rows)) / count;  // of a row
  auto* start = static_cast<int64_t*>(starts.data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = 0;
    for (int64_t axis = 0; axis < depth; ++axis) {
      const int64_t size = all.size(axis), index = PlaceAt(places, i * depth + axis);
      place = place * size + std::clamp<int64_t>(index, 0, size - 1);
    }
    start[i] = place * bytes;
    std::memcpy(static_cast<char*>(all.data_ptr()) + start[i],
                static_cast<const char*>(rows.data_ptr()) + i * bytes, bytes);
  }
}

ffi::Function MakeCopyKernel() {
  return ffi::Function::FromTyped([](ffi::TensorView from, ffi::TensorView to) {
    std::memmove(to.data_ptr(), from.data_ptr(), ffi::GetDataSize(from));
  });
}

}  // namespace

ffi::Function MakeWriteKernel() { return ffi::Function::FromTyped(Write); }

void WrittenRows::Forget() {
  for (Lack& lack : lacks_) lack.all = true;
}

void WrittenRows::CatchUp(const std::vector<char*>& inputs, const std::vector<char*>& outputs) {
  for (size_t i = 0; i < lacks_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.starts < 0) continue;
    const char* from = inputs[state.input];
    char* to = outputs[state.output];
    if (lacks_[i].all) {
      std::memcpy(to, from, spec_.input(state.input).bytes);
    } else {
      for (int64_t start : lacks_[i].starts) std::memcpy(to + start, from + start, state.row);
    }
  }
  Forget();
}

void WrittenRows::Remember(const std::vector<char*>& outputs, size_t length) {
  for (size_t i = 0; i < lacks_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.starts < 0) continue;
    const auto* starts = reinterpret_cast<const int64_t*>(outputs[state.starts]);
    const int64_t count = spec_.output(state.starts, length).shape[0];
    const int64_t last = spec_.input(state.input).bytes - state.row;
    lacks_[i].starts.assign(starts, starts + count);
    lacks_[i].all = std::any_of(starts, starts + count,
                                [last](int64_t start) { return start < 0 || start > last; });
    if (lacks_[i].all) lacks_[i].starts.clear();
  }
}

void WrittenRows::Keep(size_t state, char* input, const char* output) {
  Lack& lack = lacks_[state];
  const StateSpec& spec = spec_.states[state];
  if (lack.all) std::memcpy(input, output, spec_.input(spec.input).bytes);
  for (int64_t start : lack.starts) std::memcpy(input + start, output + start, spec.row);
  lack = {false, {}};
}

KernelTable::KernelTable(ffi::Module library, const GraphSpec& graph, size_t processor)
    : library_(std::move(library)) {
  functions_.emplace(kCopyKernel, MakeCopyKernel());
  functions_.emplace(kWriteKernel, MakeWriteKernel());
  if (processor == kCpu) {
    for (const NodeSpec& node : graph.prepare) Find(node);
  }
  for (size_t i = 0; i < graph.regions.size(); ++i) {
    const RegionSpec& region = graph.regions[i];
    const bool spare = graph.spare && processor == kCpu && i < graph.planned();
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
    const bool always = node.when.empty();
    calls_.push_back(
        Call{&kernels.at(node.kernel), arguments_.size(), node.inputs.size() + node.outputs.size(),
             id, always ? nullptr : tensors->at(node.when[0]), !always && node.when[1] == 1});
    for (const std::vector<int64_t>* operands : {&node.inputs, &node.outputs}) {
      for (int64_t operand : *operands) arguments_.emplace_back(tensors->at(operand));
    }
  }
}

void BoundNodes::Run(const std::atomic<bool>& stop, std::vector<Span>* spans) const {
  for (const Call& call : calls_) {
    if (stop.load(std::memory_order_relaxed)) throw CancelledError();
    if (call.when != nullptr && (*static_cast<const char*>(call.when->data) != 0) != call.wanted) {
      continue;
    }
    const int64_t start = spans == nullptr ? 0 : Now();
    CallKernel(*call.function, &arguments_[call.first_argument], call.num_arguments);
    if (spans == nullptr) continue;
    spans->push_back(Span{Span::Kind::kKernel, call.id, nodes_[call.id].name, start, Now()});
  }
}

}  // namespace tvm_stretch
