// Inputs, outputs, states and lengths of a graph.
#include <algorithm>

#include "graph_reader.h"
#include "sizes.h"

namespace tvm_stretch {
namespace {

// Reads ports of another length, whose names and types have to be those of the first one.
void ReadMorePorts(const Reader& length, const char* first, const char* rest, Memory memory,
                   const std::vector<TensorSpec>& tensors, std::vector<PortSpec>* ports,
                   std::vector<int64_t>* ids) {
  std::vector<PortSpec> own;
  ReadPorts(length[first], memory, tensors, &own);
  ReadPorts(length[rest], memory, tensors, &own);
  if (own.size() != ports->size()) length.Refuse("as many ports as the first length has");
  for (size_t i = 0; i < own.size(); ++i) {
    PortSpec& port = (*ports)[i];
    const TensorSpec& known = tensors[port.tensor];
    const TensorSpec& other = tensors[own[i].tensor];
    if (own[i].name != port.name || !(known.dtype == other.dtype) ||
        known.shape.size() != other.shape.size()) {
      length.Refuse("the names, types and numbers of dimensions of the first length");
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
    reader.Refuse("an input or output of integers");
  }
  if (guard.low.size() != guard.high.size() || (guard.low.size() > 1 && guard.low.size() != last)) {
    reader.Refuse("a range for each place in the last dimension");
  }
  return guard;
}

std::vector<GuardSpec> ReadGuards(const Reader& owner, const std::vector<TensorSpec>& tensors) {
  std::vector<GuardSpec> guards;
  if (!owner.Has("guards")) return guards;
  for (const Reader& item : owner["guards"].List()) guards.push_back(ReadGuard(item, tensors));
  return guards;
}

// By how many elements each axis of a port grows with a span.
std::vector<int64_t> ReadGrowth(const Reader& list, const TensorSpec& tensor) {
  std::vector<int64_t> growth = list.Ints(0, kMaxBytes);
  if (growth.size() != tensor.shape.size()) list.Refuse("a number for each axis");
  return growth;
}

SpanInput ReadSpanInput(const Reader& span, const PortSpec& port, const TensorSpec& tensor) {
  SpanInput input{ReadGrowth(span["inputs"][port.name.c_str()], tensor), std::nullopt, false};
  const bool is_mask = span["masks"].Has(port.name.c_str());
  if (is_mask) input.fill = span["masks"][port.name.c_str()].Int(0, 1);
  for (const Reader& name : span["hiding"].List()) input.hides |= name.Str() == port.name;
  if (input.hides && !is_mask) span.Refuse("a value that hides padding");
  const bool one_by_one = tensor.dtype.lanes == 1 && tensor.dtype.bits >= 8;
  if (!one_by_one || tensor.dtype.bits > 64) span.Refuse("inputs of whole bytes");
  return input;
}

// Refuses a length from which a port cannot lack as many positions as the spans say, and axes that
// grow with two spans, whose sizes would leave open how much is missing.
void CheckGrowth(const GraphSpec& graph, const Reader& list) {
  for (size_t length = 0; length < graph.lengths.size(); ++length) {
    const auto check = [&](const TensorSpec& tensor, const auto& growth_of) {
      for (size_t axis = 0; axis < tensor.shape.size(); ++axis) {
        int growing = 0;
        for (size_t i = 0; i < graph.spans.size(); ++i) {
          const int64_t step = growth_of(graph.spans[i])[axis];
          const int64_t most = graph.lengths[length].sizes[i] - graph.spans[i].low;
          growing += step > 0 ? 1 : 0;
          if (step > 0 && most >= 0 && most > (tensor.shape[axis] - 1) / step) {
            list.Refuse("axes as long as their growth");
          }
        }
        if (growing > 1) list.Refuse("axes that grow with one span");
      }
    };
    for (size_t i = 0; i < graph.arguments; ++i) {
      check(graph.input(i, length), [i](const SpanSpec& span) { return span.inputs[i].growth; });
    }
    for (size_t i = 0; i < graph.results; ++i) {
      check(graph.output(i, length), [i](const SpanSpec& span) { return span.outputs[i]; });
    }
  }
}

// By how much each state slides in runs of a length.
std::vector<int64_t> ReadSlides(const Reader& length, const GraphSpec& graph) {
  std::vector<int64_t> slides;
  if (length.Has("slides")) {
    for (const Reader& item : length["slides"].List()) slides.push_back(item.Int(0, kMaxBytes));
  }
  slides.resize(std::max(slides.size(), graph.states.size()));
  for (size_t i = 0; i < slides.size(); ++i) {
    const int64_t most = i < graph.states.size() ? graph.states[i].slide : 0;
    if (slides[i] > most || slides[i] % kAlignment != 0 || (slides[i] > 0) != (most > 0)) {
      length.Refuse("a slide of whole vectors for each state that slides");
    }
  }
  return slides;
}

// The output of scores from which a state's next values are drawn, and how.
void ReadSampling(const Reader& item, const GraphSpec& graph, StateSpec* state) {
  if (!item.Has("scores")) return;
  state->scores = item["scores"].Int(-1, static_cast<int64_t>(graph.results) - 1);
  if (state->scores < 0) return;
  const TensorSpec& scores = graph.tensors[graph.outputs[state->scores].tensor];
  const TensorSpec& next = graph.tensors[graph.outputs[state->output].tensor];
  const auto is_of = [](const DLDataType& type, int code, int bits) {
    return type.code == code && type.lanes == 1 && type.bits == bits;
  };
  const bool is_index = is_of(next.dtype, kDLInt, 32) || is_of(next.dtype, kDLInt, 64);
  if (!is_index || !is_of(scores.dtype, kDLFloat, 32) || scores.shape.empty() ||
      state->output >= graph.results) {
    item.Refuse("an output of indices and one of float32 scores");
  }
  const Reader sampling = item["sampling"];
  state->sampling = {sampling["temperature"].Number(0, kMaxTemperature),
                     sampling["top_k"].Int(0, INT32_MAX), sampling["top_p"].Number(0, 1),
                     sampling["min_p"].Number(0, 1), sampling["seed"].Int(0, INT64_MAX)};
}

// By how much a state falls for each value that is taken back: counters do, and caches of which a
// counter tells which rows are read stay as they are.
int64_t ReadRewind(const Reader& item, const GraphSpec& graph, size_t output) {
  if (!item.Has("rewind")) return -1;
  const int64_t rewind = item["rewind"].Int(-1, 1);
  const DLDataType type = graph.tensors[graph.outputs[output].tensor].dtype;
  const bool is_whole = type.code == kDLInt && type.lanes == 1 && (type.bits & 96) != 0;
  if (rewind > 0 && !is_whole) item.Refuse("a counter of integers");
  return rewind;
}

// The output with the first bytes of the rows that a run writes to a state, and a row's bytes.
std::pair<int64_t, int64_t> ReadWrittenRows(const Reader& state, const GraphSpec& graph) {
  const int64_t last = static_cast<int64_t>(graph.outputs.size()) - 1;
  const int64_t starts = state.Has("starts") ? state["starts"].Int(-1, last) : -1;
  if (starts < 0) return {-1, 0};
  const TensorSpec& tensor = graph.tensors[graph.outputs[starts].tensor];
  const bool is_list = tensor.shape.size() == 1 && tensor.dtype.code == kDLInt &&
                       tensor.dtype.bits == 64 && tensor.dtype.lanes == 1;
  if (!is_list || starts < static_cast<int64_t>(graph.results)) {
    state.Refuse("an output of its own for the starts of rows");
  }
  return {starts, state["row"].Int(1, kMaxBytes)};
}

// A state has the shape of its output in all lengths, unless its values are chosen from scores:
// then longer ones may come from the caller.
void CheckShapesOfStates(const Reader& root, GraphSpec* graph) {
  for (StateSpec& state : graph->states) {
    const std::vector<int64_t>& next = graph->output(state.output).shape;
    const int64_t values = Product(next.begin(), next.end());
    bool rests = false;
    for (size_t length = 0; length < graph->lengths.size(); ++length) {
      const TensorSpec& held = graph->input(state.input, length);
      const bool is_same = held.shape == next;
      if (state.scores >= 0) {
        const std::vector<int64_t>& scores = graph->output(state.scores, length).shape;
        const int64_t rows = Product(scores.begin(), scores.end() - 1);
        if (scores.back() == 0 || values == 0 || rows < values || rows % values != 0) {
          root.Refuse("rows of scores for each value of a state");
        }
      }
      state.is_fed |= !is_same;
      rests |= is_same;
      if (graph->output(state.output, length).shape != next ||
          held.bytes < graph->output(state.output).bytes) {
        root.Refuse("outputs of one shape, and inputs with room for them, for states");
      }
    }
    const bool is_apart = state.slide == 0 && state.starts < 0 && state.initial < 0;
    const bool is_alone = graph->lengths.size() == 1;  // built to be measured
    if (!(rests || is_alone) || (state.is_fed && !(is_apart && state.output < graph->results))) {
      root.Refuse("states of their outputs' shapes");
    }
  }
}

}  // namespace

void ReadPorts(const Reader& list, Memory memory, const std::vector<TensorSpec>& tensors,
               std::vector<PortSpec>* ports) {
  for (const Reader& item : list.List()) {
    int64_t id = item["tensor"].Int(0, static_cast<int64_t>(tensors.size()) - 1);
    const TensorSpec& tensor = tensors[id];
    if (tensor.memory != memory || tensor.buffer != static_cast<int64_t>(ports->size()) ||
        tensor.offset != 0 || tensor.strides != DenseStrides(tensor.shape, item.where())) {
      item.Refuse("a tensor without gaps that starts the port's own memory");
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
      if (other.output == output) item.Refuse("an output of its own");
    }
    if (input >= graph->inputs.size()) item.Refuse("an input of its own");
    const TensorSpec& from = graph->tensors[graph->outputs[output].tensor];
    const TensorSpec& to = graph->tensors[graph->inputs[input].tensor];
    if (!(from.dtype == to.dtype)) item.Refuse("an output of its input's type");
    const int64_t slide = item.Has("slide") ? item["slide"].Int(0, to.bytes) : 0;
    if (slide % kAlignment != 0 || (slide > 0 && output < graph->results)) {
      item.Refuse("a slide of whole vectors to an output of its own");
    }
    const auto [starts, row] = ReadWrittenRows(item, *graph);
    const int64_t room = graph->weights_bytes - to.bytes;
    const int64_t initial =
        item.Has("initial") ? item["initial"].Int(-1, std::max(room, int64_t{-1})) : -1;
    graph->states.push_back(StateSpec{input, output, slide, starts, row, initial});
    graph->states.back().rewind = ReadRewind(item, *graph, output);
    ReadSampling(item, *graph, &graph->states.back());
  }
  if (graph->arguments + graph->states.size() != graph->inputs.size()) {
    list.Refuse("a state for each held input");
  }
}

void CheckSlides(const GraphSpec& graph) {
  for (const RegionSpec& region : graph.regions) {
    if (region.processor == static_cast<int64_t>(kCpu)) continue;
    ForEachTensor(graph, region, [&](int64_t id) {
      const TensorSpec& tensor = graph.tensors[id];
      for (const StateSpec& state : graph.states) {
        const bool held =
            tensor.memory == Memory::kInput && tensor.buffer == static_cast<int64_t>(state.input);
        const bool next =
            tensor.memory == Memory::kOutput && tensor.buffer == static_cast<int64_t>(state.output);
        if (state.slide > 0 && (held || next))
          RefuseGraph("states that slide on the CPU", "states");
      }
    });
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
    for (const auto& [name, size] : item["sizes"].Members()) {
      length.sizes_by_name.emplace_back(name, size.Int(1, kMaxBytes));
    }
    length.slides = ReadSlides(item, *graph);
    graph->lengths.push_back(std::move(length));
  }
  if (!graph->lengths.empty()) return CheckShapesOfStates(root, graph);
  LengthSpec only;
  for (const PortSpec& port : graph->inputs) only.inputs.push_back(port.tensor);
  for (const PortSpec& port : graph->outputs) only.outputs.push_back(port.tensor);
  only.guards = ReadGuards(root, graph->tensors);
  for (const StateSpec& state : graph->states) only.slides.push_back(state.slide);
  graph->lengths.push_back(std::move(only));
  CheckShapesOfStates(root, graph);
}

void ReadSpans(const Reader& root, GraphSpec* graph) {
  if (!root.Has("spans")) return;
  for (const Reader& item : root["spans"].List()) {
    SpanSpec span{item["name"].Str(), item["low"].Int(1, kMaxBytes), 0, {}, {}};
    span.high = item["high"].Int(span.low, kMaxBytes);
    for (size_t i = 0; i < graph->arguments; ++i) {
      span.inputs.push_back(ReadSpanInput(item, graph->inputs[i], graph->input(i)));
    }
    const std::vector<Reader> outputs = item["outputs"].List();
    if (outputs.size() != graph->results) item.Refuse("the growth of each output");
    for (size_t i = 0; i < outputs.size(); ++i) {
      span.outputs.push_back(ReadGrowth(outputs[i], graph->output(i)));
    }
    for (LengthSpec& length : graph->lengths) {
      const auto named = std::find_if(length.sizes_by_name.begin(), length.sizes_by_name.end(),
                                      [&](const auto& one) { return one.first == span.name; });
      if (named == length.sizes_by_name.end()) item.Refuse("a span of all lengths");
      length.sizes.push_back(named->second);
    }
    graph->spans.push_back(std::move(span));
  }
  CheckGrowth(*graph, root["spans"]);
}

}  // namespace tvm_stretch
