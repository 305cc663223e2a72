#include "graph.h"

#include <tvm/ffi/dtype.h>

#include <string_view>

#include "graph_reader.h"
#include "sizes.h"

namespace tvm_stretch {
namespace {

namespace json = ffi::json;

constexpr int64_t kFormatVersion = 5;
constexpr int64_t kMaxThreads = 1024;

Memory ReadMemory(const Reader& reader) {
  std::string kind = reader.Str();
  if (kind == "input") return Memory::kInput;
  if (kind == "output") return Memory::kOutput;
  if (kind == "arena") return Memory::kArena;
  if (kind == "constant") return Memory::kConstant;
  if (kind == "prepared") return Memory::kPrepared;
  reader.Refuse("input, output, arena, constant or prepared");
}

DLDataType ReadDType(const Reader& reader) {
  DLDataType dtype{kDLOpaqueHandle, 0, 0};
  try {
    dtype = ffi::StringToDLDataType(reader.Str());
  } catch (const ffi::Error&) {
    reader.Refuse("a data type");
  }
  if (dtype.bits == 0 || dtype.lanes == 0) reader.Refuse("a data type");
  return dtype;
}

// Bytes from the first element to the end of the last one.
int64_t SpannedBytes(const TensorSpec& tensor, const std::string& where) {
  if (tensor.strides.size() != tensor.shape.size())
    RefuseGraph("a stride for each dimension", where);
  int64_t elements = 1;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] == 0) return 0;
    const int64_t steps = tensor.shape[i] - 1;
    if (steps != 0 && tensor.strides[i] > (kMaxBytes - elements) / steps) {
      RefuseGraph("a smaller shape", where);
    }
    elements += steps * tensor.strides[i];
  }
  const int64_t size = (tensor.dtype.bits + 7) / 8 * tensor.dtype.lanes;
  if (elements > kMaxBytes / size) RefuseGraph("a smaller shape", where);
  return elements * size;
}

TensorSpec ReadTensor(const Reader& reader) {
  TensorSpec tensor;
  tensor.shape = reader["shape"].Ints(0, kMaxBytes);
  tensor.dtype = ReadDType(reader["dtype"]);
  tensor.memory = ReadMemory(reader["kind"]);
  tensor.buffer = reader["buffer"].Int(0, kMaxBytes);
  tensor.offset = reader["offset"].Int(0, kMaxBytes);
  tensor.bytes = reader["bytes"].Int(0, kMaxBytes);
  tensor.strides = reader.Has("strides") ? reader["strides"].Ints(0, kMaxBytes)
                                         : DenseStrides(tensor.shape, reader.where());
  const int64_t bytes = SpannedBytes(tensor, reader.where());
  if (bytes != tensor.bytes) {
    reader.Refuse("bytes = " + std::to_string(bytes) + ", as shape, strides and dtype say,");
  }
  return tensor;
}

// The last output is a rectangle of the first one.
void CheckReach(const NodeSpec& node, const std::vector<TensorSpec>& tensors,
                const std::string& where) {
  const std::vector<int64_t>& reach = node.reach;
  const bool has_places = reach.size() == 10 && node.outputs.size() == 2;
  if (!has_places || reach[0] >= static_cast<int64_t>(node.inputs.size()) || reach[1] < 1 ||
      reach[3] < 1 || reach[4] < 1 || reach[6] < 1 || reach[7] < 1 || reach[8] < 1 ||
      reach[9] < 1) {
    RefuseGraph("an input, its windows, one output and its rectangle", where);
  }
  const TensorSpec &data = tensors[node.inputs[node.reach[0]]], &out = tensors[node.outputs[0]];
  const TensorSpec& rectangle = tensors[node.outputs[1]];
  const bool is_rectangle = rectangle.shape == std::vector<int64_t>{4} &&
                            rectangle.dtype.bits == 64 && rectangle.memory == Memory::kArena;
  if (!is_rectangle || data.shape.size() < 4 || out.shape.size() < 4) {
    RefuseGraph("images and a rectangle", where);
  }
}

// What decides is an input or a result, whose memory nothing else uses during a run.
void CheckWhen(const NodeSpec& node, const std::vector<TensorSpec>& tensors,
               const std::string& where) {
  const std::vector<int64_t>& when = node.when;
  if (when.size() != 2 || when[0] >= static_cast<int64_t>(tensors.size()) || when[1] > 1 ||
      tensors[when[0]].bytes != 1) {
    RefuseGraph("a tensor of one byte and 0 or 1", where);
  }
  const Memory memory = tensors[when[0]].memory;
  if (memory != Memory::kInput && memory != Memory::kOutput) RefuseGraph("a port", where);
}

// Places are indices of the first axes; each holds a row of the input.
void CheckWrite(const NodeSpec& node, const std::vector<TensorSpec>& tensors,
                const std::string& where) {
  constexpr const char* kWanted = "places and rows, a tensor that has them, and starts";
  if (node.inputs.size() != 2 || node.outputs.size() != 2) RefuseGraph(kWanted, where);
  const TensorSpec &places = tensors[node.inputs[0]], &rows = tensors[node.inputs[1]];
  const TensorSpec &all = tensors[node.outputs[0]], &starts = tensors[node.outputs[1]];
  const size_t rank = places.shape.size();
  const int64_t depth = rank == 0 ? 0 : places.shape.back();
  bool fits = depth >= 1 && depth <= static_cast<int64_t>(all.shape.size()) &&
              rows.dtype == all.dtype && places.dtype.code == kDLInt && places.dtype.lanes == 1 &&
              (places.dtype.bits == 32 || places.dtype.bits == 64) && starts.dtype.bits == 64 &&
              starts.dtype.code == kDLInt && starts.dtype.lanes == 1;
  for (const TensorSpec* tensor : {&places, &rows, &all, &starts}) {
    fits = fits && tensor->bytes > 0 && tensor->strides == DenseStrides(tensor->shape, where);
  }
  if (!fits) RefuseGraph(kWanted, where);
  const int64_t count = Product(places.shape.begin(), places.shape.end() - 1);
  const int64_t row = Product(all.shape.begin() + depth, all.shape.end());
  if (starts.shape != std::vector<int64_t>{count} ||
      Product(rows.shape.begin(), rows.shape.end()) != Times(count, row)) {
    RefuseGraph(kWanted, where);
  }
}

NodeSpec ReadNode(const Reader& reader, const std::vector<TensorSpec>& tensors) {
  const int64_t last = static_cast<int64_t>(tensors.size()) - 1;
  NodeSpec node{reader["kernel"].Str(),
                reader["name"].Str(),
                reader["inputs"].Ints(0, last),
                reader["outputs"].Ints(0, last),
                {},
                {}};
  if (reader.Has("when")) {
    node.when = reader["when"].Ints(0, kMaxBytes);
    CheckWhen(node, tensors, reader.where());
  }
  if (node.kernel == kCopyKernel) {
    if (node.inputs.size() != 1 || node.outputs.size() != 1 ||
        tensors[node.inputs[0]].bytes != tensors[node.outputs[0]].bytes) {
      reader.Refuse("one input and one output of the same size");
    }
    return node;
  }
  if (node.kernel == kWriteKernel) CheckWrite(node, tensors, reader.where());
  for (const std::vector<int64_t>* ids : {&node.inputs, &node.outputs}) {
    for (int64_t id : *ids) {
      if (tensors[id].offset % static_cast<int64_t>(kAlignment) != 0) {
        reader.Refuse("tensors that start at multiples of 64 bytes");
      }
    }
  }
  if (reader.Has("reach")) {
    node.reach = reader["reach"].Ints(0, kMaxBytes);
    CheckReach(node, tensors, reader.where());
  }
  return node;
}

// A node may only write memory of its phase, and read tensors that exist when it runs.
void CheckNode(const NodeSpec& node, bool prepare, const std::vector<TensorSpec>& tensors) {
  const std::string where = std::string(prepare ? "prepare" : "nodes") + " '" + node.name + "'";
  for (int64_t id : node.inputs) {
    Memory memory = tensors[id].memory;
    if (prepare && memory != Memory::kConstant && memory != Memory::kPrepared) {
      RefuseGraph("constant inputs", where);
    }
  }
  for (int64_t id : node.outputs) {
    Memory memory = tensors[id].memory;
    bool ok = prepare ? memory == Memory::kPrepared
                      : memory == Memory::kArena || memory == Memory::kOutput;
    if (!ok) RefuseGraph("outputs in memory that the node may write", where);
  }
}

// The compiler of the artifact, and its CPU.
std::string ReadOrigin(const Reader& root) {
  std::string origin = "tvm_stretch";
  if (root.Has("package_version")) origin += " " + root["package_version"].Str();
  if (!root.Has("target")) return origin;
  const Reader target = root["target"];
  if (target.Has("mtriple")) origin += " for " + target["mtriple"].Str();
  if (target.Has("mcpu")) origin += ", " + target["mcpu"].Str();
  return origin;
}

// The size of the memory that holds a tensor; -1 if there is no such memory.
int64_t MemoryBytes(const GraphSpec& graph, const TensorSpec& tensor) {
  auto port = [&](const std::vector<PortSpec>& ports) {
    bool exists = tensor.buffer < static_cast<int64_t>(ports.size());
    return exists ? ports[tensor.buffer].bytes : int64_t{-1};
  };
  switch (tensor.memory) {
    case Memory::kInput:
      return port(graph.inputs);
    case Memory::kOutput:
      return port(graph.outputs);
    case Memory::kArena:
      return graph.arena_bytes;
    case Memory::kConstant:
      return graph.weights_bytes;
    case Memory::kPrepared:
      return graph.prepared_bytes;
  }
  return -1;
}

std::vector<ProcessorSpec> ReadProcessors(const Reader& list) {
  std::vector<ProcessorSpec> processors;
  for (const Reader& item : list.List()) {
    processors.push_back(ProcessorSpec{item["name"].Str(), item["kind"].Str()});
    if (item.Has("max_share")) processors.back().max_share = item["max_share"].Share();
    if ((processors.back().kind == kCpuKind) != (processors.size() == 1)) {
      item.Refuse("the CPU in the first place and nowhere else");
    }
  }
  if (processors.empty()) list.Refuse("at least one processor");
  if (processors.size() == 1 && processors[0].max_share < 1) {
    list.Refuse("another processor beside one with a limit");
  }
  return processors;
}

// Tensors that a processor with separate memory copies; weights are not among them.
std::vector<int64_t> ReadTransfers(const Reader& list, const GraphSpec& graph, bool written) {
  std::vector<int64_t> ids = list.Ints(0, static_cast<int64_t>(graph.tensors.size()) - 1);
  for (int64_t id : ids) {
    Memory memory = graph.tensors[id].memory;
    bool ok = memory == Memory::kArena || memory == Memory::kOutput ||
              (memory == Memory::kInput && !written);
    if (!ok) list.Refuse("tensors in memory that nodes write or the caller fills");
  }
  return ids;
}

RegionSpec ReadRegion(const Reader& reader, const GraphSpec& graph) {
  RegionSpec region;
  region.name = reader["name"].Str();
  region.processor = reader["processor"].Int(0, static_cast<int64_t>(graph.processors.size()) - 1);
  region.nodes = reader["nodes"].Ints(0, static_cast<int64_t>(graph.nodes.size()) - 1);
  region.after = reader["after"].Ints(0, static_cast<int64_t>(graph.regions.size()) - 1);
  for (int64_t id : region.after) {
    if (graph.regions[id].processor == region.processor) {
      reader["after"].Refuse("regions of other processors");
    }
  }
  region.receives = ReadTransfers(reader["receives"], graph, false);
  region.sends = ReadTransfers(reader["sends"], graph, true);
  return region;
}

// Reads the regions; `after` may only name earlier ones, so there are no cycles.
void ReadRegions(const Reader& list, GraphSpec* graph) {
  std::vector<bool> placed(graph->nodes.size(), false);
  for (const Reader& item : list.List()) {
    graph->regions.push_back(ReadRegion(item, *graph));
    for (int64_t node : graph->regions.back().nodes) {
      if (placed[node]) item.Refuse("each node in one region");
      placed[node] = true;
    }
  }
  for (size_t node = 0; node < placed.size(); ++node) {
    if (!placed[node]) list.Refuse("a region of node '" + graph->nodes[node].name + "'");
  }
}

// Reads the plans, which hold all regions in order. Without plans, all regions are one plan.
void ReadPlans(const Reader& root, GraphSpec* graph) {
  size_t next = 0;
  for (const Reader& item : root.Has("plans") ? root["plans"].List() : std::vector<Reader>()) {
    const auto left = static_cast<int64_t>(graph->regions.size() - next);
    const auto count = static_cast<size_t>(item["regions"].Int(1, left));
    const int64_t expected = item["expected_ns"].Int(0, INT64_MAX);
    std::vector<int64_t> work;
    if (item.Has("work_ns")) work = item["work_ns"].Ints(0, INT64_MAX);
    if (!work.empty() && work.size() != count) item.Refuse("the work of each region");
    graph->plans.push_back(PlanSpec{item["name"].Str(), next, count, expected, std::move(work)});
    if (item.Has("milliwatts")) {
      graph->plans.back().milliwatts = item["milliwatts"].Int(0, INT64_MAX);
    }
    for (size_t i = next; i < next + count; ++i) {
      for (int64_t other : graph->regions[i].after) {
        if (other < static_cast<int64_t>(next)) item.Refuse("regions of one plan");
      }
    }
    next += count;
  }
  if (graph->plans.empty()) {
    graph->plans.push_back(PlanSpec{"", 0, graph->regions.size(), 0, {}, 0});
  } else if (next != graph->regions.size() && !graph->streams) {
    RefuseGraph("a plan of every region", "plans");
  }
  if (graph->lengths.size() > 1 && graph->lengths.size() != graph->plans.size()) {
    RefuseGraph("a plan for each length", "lengths");
  }
}

// Refuses tensors that are longer than the ports of their length: the caller's memory is not.
void CheckPortsOfLengths(const GraphSpec& graph) {
  for (size_t i = 0; i < graph.plans.size(); ++i) {
    const PlanSpec& plan = graph.plans[i];
    const LengthSpec& own = graph.lengths[graph.LengthOf(i)];
    const auto check = [&](int64_t id) {
      const TensorSpec& tensor = graph.tensors[id];
      const bool is_input = tensor.memory == Memory::kInput;
      if (!is_input && tensor.memory != Memory::kOutput) return;
      const int64_t port = (is_input ? own.inputs : own.outputs)[tensor.buffer];
      if (tensor.bytes > graph.tensors[port].bytes - tensor.offset) {
        RefuseGraph("tensors within the ports of their length", "tensors");
      }
    };
    for (size_t region = plan.first; region < plan.first + plan.count; ++region) {
      ForEachTensor(graph, graph.regions[region], check);
    }
    for (const GuardSpec& guard : own.guards) check(guard.tensor);
  }
}

}  // namespace

std::vector<int64_t> DenseStrides(const std::vector<int64_t>& shape, const std::string& where) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    if (shape[i] != 0 && stride > kMaxBytes / shape[i]) RefuseGraph("a smaller shape", where);
    stride *= shape[i];
  }
  return strides;
}

GraphSpec GraphSpec::FromJSON(const ffi::String& text) {
  ffi::String error;
  json::Value value = json::Parse(text, &error);
  if (!error.empty()) {
    TVM_FFI_THROW(ValueError) << "expected JSON for the graph, got " << error
                              << "; export the model again";
  }
  const Reader root(kGraph, value);
  int64_t version = root["version"].Int(0, INT64_MAX);
  if (root["format"].Str() != "tvm_stretch.graph" || version != kFormatVersion) {
    TVM_FFI_THROW(ValueError) << "expected version " << kFormatVersion
                              << " for the artifact's graph, got version " << version
                              << "; export the model again with this version of tvm_stretch";
  }
  GraphSpec graph;
  graph.arena_bytes = root["arena_bytes"].Int(0, kMaxBytes);
  graph.weights_bytes = root["weights_bytes"].Int(0, kMaxBytes);
  graph.prepared_bytes = root["prepared_bytes"].Int(0, kMaxBytes);
  graph.threads = static_cast<int>(root["threads"].Int(1, kMaxThreads));
  graph.spare = root.Has("spare") && root["spare"].Bool();
  if (root.Has("within_ns")) graph.within_ns = root["within_ns"].Int(0, INT64_MAX);
  graph.streams = root.Has("streams") && root["streams"].Bool();
  graph.cpu_features = root["cpu_features"].Strings();
  for (const Reader& item : root["tensors"].List()) graph.tensors.push_back(ReadTensor(item));
  ReadPorts(root["inputs"], Memory::kInput, graph.tensors, &graph.inputs);
  graph.arguments = graph.inputs.size();
  if (root.Has("held")) ReadPorts(root["held"], Memory::kInput, graph.tensors, &graph.inputs);
  ReadPorts(root["outputs"], Memory::kOutput, graph.tensors, &graph.outputs);
  graph.results = graph.outputs.size();
  if (root.Has("kept")) ReadPorts(root["kept"], Memory::kOutput, graph.tensors, &graph.outputs);
  if (root.Has("states")) ReadStates(root["states"], &graph);
  ReadLengths(root, &graph);
  ReadSpans(root, &graph);
  graph.origin = ReadOrigin(root);
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const TensorSpec& tensor = graph.tensors[i];
    if (tensor.bytes > MemoryBytes(graph, tensor) - tensor.offset) {
      RefuseGraph("a place within its memory", "tensors[" + std::to_string(i) + "]");
    }
  }
  for (const char* phase : {"prepare", "nodes"}) {
    bool prepare = std::string_view(phase) == "prepare";
    for (const Reader& item : root[phase].List()) {
      NodeSpec node = ReadNode(item, graph.tensors);
      CheckNode(node, prepare, graph.tensors);
      (prepare ? graph.prepare : graph.nodes).push_back(std::move(node));
    }
  }
  graph.processors = ReadProcessors(root["processors"]);
  ReadRegions(root["regions"], &graph);
  CheckSlides(graph);
  ReadPlans(root, &graph);
  CheckPortsOfLengths(graph);
  return graph;
}

}  // namespace tvm_stretch
