// Inputs, outputs, states and lengths of a graph.
#include <algorithm>

#include "graph_reader.h"

namespace tvm_stretch {
namespace {

// Reads ports of another length, whose names and types have to be those of the first one.
void ReadMorePorts(const Reader& length, const char* first, const char* rest, Memory memory,
                   const std::vector<TensorSpec>& tensors, std::vector<PortSpec>* ports,
                   std::vector<int64_t>* ids) {
  std::vector<PortSpec> own;
  ReadPorts(length[first], memory, tensors, &own);
  ReadPorts(length[rest], memory, tensors, &own);
  if (own.size() != ports->size())
    RefuseGraph("as many ports as the first length has", length.where());
  for (size_t i = 0; i < own.size(); ++i) {
    PortSpec& port = (*ports)[i];
    const TensorSpec& known = tensors[port.tensor];
    const TensorSpec& other = tensors[own[i].tensor];
    if (own[i].name != port.name || !(known.dtype == other.dtype) ||
        known.shape.size() != other.shape.size()) {
      RefuseGraph("the names, types and numbers of dimensions of the first length", length.where());
    }
    port.bytes = std::max(port.bytes, own[i].bytes);
    ids->push_back(own[i].tensor);
  }
}

GuardSpec ReadGuard(const Reader& reader, const std::vector<TensorSpec>& tensors) {
  GuardSpec guard{reader["tensor"].Int(0, static_cast<int64_t>(tensors.size()) - 1),
                  reader["low"].Ints(INT64_MIN, INT64_MAX),
                  reader["high"].Ints(INT64_MIN, INT64_MAX), reader["what"].Str()};
  const TensorSpec& tensor = tensors[guard.tensor];
  const size_t last = tensor.shape.empty() ? 1 : tensor.shape.back();
  const bool integers = tensor.dtype.code == kDLInt || tensor.dtype.code == kDLUInt;
  const bool callers = tensor.memory == Memory::kInput || tensor.memory == Memory::kOutput;
  const int bits = tensor.dtype.bits;
  const bool known = bits == 8 || bits == 16 || bits == 32 || bits == 64;
  if (!integers || !callers || tensor.dtype.lanes != 1 || !known ||
      tensor.strides != DenseStrides(tensor.shape, reader.where())) {
    RefuseGraph("an input or output of integers", reader.where());
  }
  if (guard.low.size() != guard.high.size() || (guard.low.size() > 1 && guard.low.size() != last)) {
    RefuseGraph("a range for each place in the last dimension", reader.where());
  }
  return guard;
}

std::vector<GuardSpec> ReadGuards(const Reader& owner, const std::vector<TensorSpec>& tensors) {
  std::vector<GuardSpec> guards;
  if (!owner.Has("guards")) return guards;
  for (const Reader& item : owner["guards"].List()) guards.push_back(ReadGuard(item, tensors));
  return guards;
}

}  // namespace

void ReadPorts(const Reader& list, Memory memory, const std::vector<TensorSpec>& tensors,
               std::vector<PortSpec>* ports) {
  for (const Reader& item : list.List()) {
    int64_t id = item["tensor"].Int(0, static_cast<int64_t>(tensors.size()) - 1);
    const TensorSpec& tensor = tensors[id];
    if (tensor.memory != memory || tensor.buffer != static_cast<int64_t>(ports->size()) ||
        tensor.offset != 0) {
      RefuseGraph("a tensor that starts the port's own memory", item.where());
    }
    ports->push_back(PortSpec{item["name"].Str(), id, tensor.bytes});
  }
}

void ReadStates(const Reader& list, GraphSpec* graph) {
  for (const Reader& item : list.List()) {
    const size_t input = graph->arguments + graph->states.size();
    const auto last = static_cast<int64_t>(graph->outputs.size()) - 1;
    const auto output = static_cast<size_t>(item["output"].Int(0, last));
    for (const StateSpec& other : graph->states) {
      if (other.output == output) RefuseGraph("an output of its own", item.where());
    }
    if (input >= graph->inputs.size()) RefuseGraph("an input of its own", item.where());
    const TensorSpec& from = graph->tensors[graph->outputs[output].tensor];
    const TensorSpec& to = graph->tensors[graph->inputs[input].tensor];
    if (from.shape != to.shape || !(from.dtype == to.dtype)) {
      RefuseGraph("an output with the shape and type of its input", item.where());
    }
    graph->states.push_back(StateSpec{input, output});
  }
  if (graph->arguments + graph->states.size() != graph->inputs.size()) {
    RefuseGraph("a state for each held input", list.where());
  }
}

void ReadLengths(const Reader& root, GraphSpec* graph) {
  std::vector<Reader> list = root.Has("lengths") ? root["lengths"].List() : std::vector<Reader>();
  for (const Reader& item : list) {
    LengthSpec length;
    length.name = item["name"].Str();
    ReadMorePorts(item, "inputs", "held", Memory::kInput, graph->tensors, &graph->inputs,
                  &length.inputs);
    ReadMorePorts(item, "outputs", "kept", Memory::kOutput, graph->tensors, &graph->outputs,
                  &length.outputs);
    length.guards = ReadGuards(item, graph->tensors);
    for (const StateSpec& state : graph->states) {
      const std::vector<int64_t>& shape = graph->tensors[graph->inputs[state.input].tensor].shape;
      if (graph->tensors[length.inputs[state.input]].shape != shape ||
          graph->tensors[length.outputs[state.output]].shape != shape) {
        RefuseGraph("states of one shape", item.where());
      }
    }
    graph->lengths.push_back(std::move(length));
  }
  if (!graph->lengths.empty()) return;
  LengthSpec only;
  for (const PortSpec& port : graph->inputs) only.inputs.push_back(port.tensor);
  for (const PortSpec& port : graph->outputs) only.outputs.push_back(port.tensor);
  only.guards = ReadGuards(root, graph->tensors);
  graph->lengths.push_back(std::move(only));
}

}  // namespace tvm_stretch
