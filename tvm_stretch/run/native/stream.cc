#include "stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tvm_stretch {
namespace {

// If a larger share of a tensor is computed, comparing costs more than it saves later.
constexpr double kMostCompared = 0.75;

bool SameMemory(const TensorSpec& one, const TensorSpec& other) {
  return one.memory == other.memory && one.buffer == other.buffer &&
         one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes;
}

// If a larger share of the pixels that read a change did change, comparing them is in vain.
constexpr double kAllChanged = 0.95;
// Frames after which they are compared again.
constexpr int64_t kUncompared = 15;

double Count(const Marks& marks) {
  return static_cast<double>(std::count(marks.begin(), marks.end(), 1));
}

bool IsMarked(const Marks& marks) { return std::memchr(marks.data(), 1, marks.size()) != nullptr; }

// Pieces of a step that processors share: the last one keeps the other processor waiting.
constexpr double kPieces = 16.0;
// Fewer areas than that are not worth a meeting of processors.
constexpr double kLeastShared = 4.0;

double PixelsOf(const Area& area) {
  return static_cast<double>((area.bottom - area.top) * (area.right - area.left));
}

double PixelsOf(const std::vector<Area>& areas) {
  double pixels = 0.0;
  for (const Area& area : areas) pixels += PixelsOf(area);
  return pixels;
}

// Whatever ends a frame, the other processor does nothing more afterwards.
struct EndsFrame {
  SharedAreas* shared;
  ~EndsFrame() { shared->End(); }
};

// Tells a kernel what to compute.
void Ask(int64_t* rectangle, const Area& area) {
  rectangle[0] = area.top;
  rectangle[1] = area.bottom;
  rectangle[2] = area.left;
  rectangle[3] = area.right;
}

}  // namespace

Stream::Stream(const GraphSpec& graph, const KernelTable& kernels, const MemoryMap& memory,
               const std::vector<std::unique_ptr<Processor>>& devices)
    : graph_(graph),
      tensors_(graph, memory),
      aliases_(graph.tensors.size()),
      shared_(graph, memory, devices) {
  if (!graph.streams || graph.plans.size() != 1 || !graph.states.empty()) {
    TVM_FFI_THROW(ValueError) << "expected a model that was compiled with streams=True, got "
                                 "another one; compile it again";
  }
  for (const TensorSpec& tensor : graph.tensors) {
    grids_.emplace_back(tensor, AddressOf(memory, tensor));
    changed_.emplace_back(grids_.back().rows() * grids_.back().columns(), 0);
  }
  largest_.resize(graph.tensors.size());
  for (size_t i = 0; i < graph.planned(); ++i) {
    for (int64_t node : graph.regions[i].nodes) AddStep(graph.nodes[node], kernels);
  }
  FindAliases();
}

void Stream::AddStep(const NodeSpec& node, const KernelTable& kernels) {
  Step step{&node, &kernels.at(node.kernel), arguments_.size(), node.outputs};
  for (const std::vector<int64_t>* operands : {&node.inputs, &node.outputs}) {
    for (int64_t operand : *operands) arguments_.emplace_back(tensors_.at(operand));
  }
  if (!node.reach.empty()) {
    step.results.pop_back();
    if (grids_[node.outputs[0]].is_regular() && grids_[node.inputs[node.reach[0]]].is_regular()) {
      step.rectangle = static_cast<int64_t*>(tensors_.at(node.outputs.back())->data);
      step.rows = node.reach[7];
      step.columns = node.reach[8];
    }
  }
  steps_.push_back(std::move(step));
}

// For each tensor that an input or a node writes, the tensors that are read from its bytes.
void Stream::FindAliases() {
  std::vector<char> is_read(graph_.tensors.size(), 0);
  for (const Step& step : steps_) {
    for (int64_t id : step.node->inputs) is_read[id] = 1;
  }
  auto add = [&](int64_t written) {
    if (!aliases_[written].empty()) return;
    const TensorSpec& from = graph_.tensors[written];
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const TensorSpec& to = graph_.tensors[i];
      const auto id = static_cast<int64_t>(i);
      if (id == written || !is_read[i] || !SameMemory(from, to)) continue;
      const bool same = grids_[written].Matches(grids_[i], from.offset - to.offset);
      aliases_[written].push_back(Alias{id, same});
    }
  };
  for (const PortSpec& port : graph_.inputs) add(port.tensor);
  for (const Step& step : steps_) {
    for (int64_t id : step.results) add(id);
  }
}

// The whole tensor changed.
void Stream::MarkAll(int64_t tensor) {
  std::fill(changed_[tensor].begin(), changed_[tensor].end(), 1);
  for (const Alias& alias : aliases_[tensor]) {
    std::fill(changed_[alias.tensor].begin(), changed_[alias.tensor].end(), 1);
  }
}

// What reads the tensor's bytes under another shape changed where the tensor did.
void Stream::MarkSame(int64_t tensor) {
  const Marks& marks = changed_[tensor];
  if (aliases_[tensor].empty() || !IsMarked(marks)) return;
  for (const Alias& alias : aliases_[tensor]) {
    Marks& others = changed_[alias.tensor];
    if (!alias.same_pixels) {
      std::fill(others.begin(), others.end(), 1);
      continue;
    }
    for (size_t i = 0; i < marks.size(); ++i) others[i] |= marks[i];
  }
}

// Takes over the pixels of the frame that changed; returns their share.
double Stream::TakeFrame(const std::vector<const char*>& frame, double noise, bool all) {
  double pixels = 0.0, changed = 0.0;
  for (size_t i = 0; i < frame.size(); ++i) {
    const int64_t tensor = graph_.inputs[i].tensor;
    Marks& marks = changed_[tensor];
    grids_[tensor].Take(frame[i], noise, all, &marks);
    MarkSame(tensor);
    pixels += static_cast<double>(marks.size());
    changed += Count(marks);
  }
  return pixels == 0.0 ? 0.0 : changed / pixels;
}

// Whether an area of a node's result reads a changed pixel.
bool Stream::IsRead(const Step& step, const Area& area) const {
  const NodeSpec& node = *step.node;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const Marks& marks = changed_[node.inputs[i]];
    const PixelGrid& grid = grids_[node.inputs[i]];
    Area read = area;  // the epilogue reads the pixel that it writes
    if (static_cast<int64_t>(i) == node.reach[0]) {
      const int64_t* rows = &node.reach[1];  // step, padding and size of windows
      const int64_t* columns = &node.reach[4];
      read = {area.top * rows[0] - rows[1], (area.bottom - 1) * rows[0] - rows[1] + rows[2],
              area.left * columns[0] - columns[1],
              (area.right - 1) * columns[0] - columns[1] + columns[2]};
    }
    const int64_t left = std::max<int64_t>(0, read.left);
    const int64_t width = std::min(grid.columns(), read.right) - left;
    for (int64_t y = std::max<int64_t>(0, read.top);
         width > 0 && y < std::min(grid.rows(), read.bottom); ++y) {
      if (std::memchr(&marks[y * grid.columns() + left], 1, width) != nullptr) return true;
    }
  }
  return false;
}

// The areas of a node's result that can change; neighbours in a row are joined.
std::vector<Area> Stream::Asked(const Step& step) const {
  const NodeSpec& node = *step.node;
  bool any = false, other = false;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int64_t id = node.inputs[i];
    if (!IsMarked(changed_[id])) continue;
    any = true;
    const bool is_data = step.rectangle != nullptr && static_cast<int64_t>(i) == node.reach[0];
    const PixelGrid& out = grids_[step.results[0]];
    const bool is_aligned = grids_[id].is_regular() && grids_[id].rows() == out.rows() &&
                            grids_[id].columns() == out.columns();
    other |= !is_data && !is_aligned;
  }
  std::vector<Area> areas;
  if (!any || step.results.empty()) return areas;
  const Area whole = grids_[step.results[0]].whole();
  if (step.rectangle == nullptr || other) return {whole};
  for (int64_t y = 0; y < whole.bottom; y += step.rows) {
    bool joins = false;
    for (int64_t x = 0; x < whole.right; x += step.columns) {
      const Area area{y, std::min(whole.bottom, y + step.rows), x,
                      std::min(whole.right, x + step.columns)};
      const bool is_read = IsRead(step, area);
      if (is_read && joins) areas.back().right = area.right;
      if (is_read && !joins) areas.push_back(area);
      joins = is_read;
    }
  }
  return areas;
}

void Stream::Invoke(const Step& step) {
  const size_t count = step.node->inputs.size() + step.node->outputs.size();
  CallKernel(*step.function, &arguments_[step.first_argument], count);
}

// Computes areas; those with the same columns one below the other are one.
void Stream::Call(const Step& step, const std::vector<Area>& areas) {
  if (step.rectangle == nullptr) return Invoke(step);
  std::vector<Area> joined;
  for (const Area& area : areas) {
    auto above = std::find_if(joined.begin(), joined.end(), [&](const Area& one) {
      return one.bottom == area.top && one.left == area.left && one.right == area.right;
    });
    if (above == joined.end()) {
      joined.push_back(area);
    } else {
      above->bottom = area.bottom;
    }
  }
  if (!IsShared(step, Pieces(step, joined))) {
    for (const Area& area : joined) Compute(step, area);
  }
  const Area whole = grids_[step.results[0]].whole();
  Ask(step.rectangle, whole);
}

// Parts of areas that two processors can share evenly: bands, and parts of bands if these are few.
std::vector<Area> Stream::Pieces(const Step& step, const std::vector<Area>& areas) const {
  const double pixels = PixelsOf(areas) / kPieces;
  const auto units = [](double length, int64_t unit) {
    return unit * std::max<int64_t>(1, std::lround(length / static_cast<double>(unit)));
  };
  std::vector<Area> pieces;
  for (const Area& area : areas) {
    const int64_t rows = units(pixels / static_cast<double>(area.right - area.left), step.rows);
    const int64_t columns = units(pixels / static_cast<double>(rows), step.columns);
    for (int64_t y = area.top; y < area.bottom; y += rows) {
      const int64_t bottom = std::min(area.bottom, y + rows);
      for (int64_t x = area.left; x < area.right; x += columns) {
        pieces.push_back({y, bottom, x, std::min(area.right, x + columns)});
      }
    }
  }
  return pieces;
}

// Computes the pieces together with another processor. False if there is none, or they are too
// small, or the other processor failed, so that the CPU has to compute all.
bool Stream::IsShared(const Step& step, const std::vector<Area>& pieces) {
  const double least = kLeastShared * static_cast<double>(step.rows * step.columns);
  if (lost_ || PixelsOf(pieces) < least || !shared_.Offer(step.results[0], pieces)) return false;
  while (const std::optional<Area> area = shared_.Take()) Compute(step, *area);
  Failure failure = shared_.Join();
  if (!failure) return true;
  Lose(std::move(failure));
  return false;
}

void Stream::Compute(const Step& step, const Area& area) {
  Ask(step.rectangle, area);
  Invoke(step);
}

// Without spare, a failure of another processor is an error.
void Stream::Lose(Failure failure) {
  if (!graph_.spare) throw *failure;
  lost_ = std::move(failure);
}

// The pixels of a node's result that can change.
Marks Stream::Reached(const Step& step) const {
  const NodeSpec& node = *step.node;
  const PixelGrid& grid = grids_[step.results[0]];
  Marks reached(changed_[step.results[0]].size(), 0);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int64_t id = node.inputs[i];
    if (!IsMarked(changed_[id])) continue;
    const bool is_data = static_cast<int64_t>(i) == node.reach[0];
    const int64_t* of = node.reach.data();
    const Windows rows = is_data ? Windows{of[1], of[2], of[3]} : Windows{1, 0, 1};
    const Windows columns = is_data ? Windows{of[4], of[5], of[6]} : Windows{1, 0, 1};
    grid.MarkReached(grids_[id], changed_[id], rows, columns, &reached);
  }
  if (node.reach[9] > 1) grid.MarkTiles(node.reach[9], &reached);
  return reached;
}

// Runs a node for some areas of its result, and marks the pixels that changed.
void Stream::RunStep(Step* step, const std::vector<Area>& areas, double bound) {
  const int64_t id = step->results[0];
  const PixelGrid& grid = grids_[id];
  Marks& changed = changed_[id];
  if (step->results.size() > 1 || !grid.is_regular()) {
    Call(*step, areas);
    for (int64_t result : step->results) MarkAll(result);
    return;
  }
  const double most = bound * largest_[id];
  if (most == 0.0 && PixelsOf(areas) > kMostCompared * PixelsOf(grid.whole())) {
    Call(*step, areas);
    for (const Area& area : areas) grid.Mark(area, &changed);
    MarkSame(id);
    return;
  }
  const bool may_reach = most == 0.0 && step->rectangle != nullptr;
  const Marks reached = may_reach ? Reached(*step) : Marks();
  if (may_reach && step->uncompared > 0) {
    --step->uncompared;
    Call(*step, areas);
    for (size_t i = 0; i < reached.size(); ++i) changed[i] |= reached[i];
    MarkSame(id);
    return;
  }
  std::vector<Area> written = areas;
  if (most > 0.0) {
    // a kernel rounds columns up to its tiles; pixels that keep old numbers must not get new ones
    written.clear();
    for (Area area : areas) {
      area.left = 0;
      area.right = grid.columns();
      if (written.empty() || written.back().top != area.top) written.push_back(area);
    }
  }
  saved_.clear();
  for (const Area& area : written) grid.Save(area, &saved_);
  Call(*step, areas);
  const char* from = saved_.data();
  for (const Area& area : written) grid.Compare(area, most, &from, &changed);
  if (may_reach && Count(changed) > kAllChanged * Count(reached)) step->uncompared = kUncompared;
  MarkSame(id);
}

StreamResult Stream::Run(const std::vector<const char*>& frame, const StreamOptions& options,
                         const std::atomic<bool>& stop) {
  for (Marks& marks : changed_) std::fill(marks.begin(), marks.end(), 0);
  bool whole = !is_known_ || options.whole;
  is_known_ = false;  // until this run has succeeded
  StreamResult result{TakeFrame(frame, options.noise, whole), 0.0};
  if (!whole && result.changed > options.cut) {
    TakeFrame(frame, 0.0, true);  // a new scene
    whole = true;
  }
  double all = 0.0, computed = 0.0;
  const EndsFrame end{&shared_};
  for (Step& step : steps_) {
    if (stop.load(std::memory_order_relaxed)) throw CancelledError();
    double bytes = 0.0;
    for (int64_t id : step.results) bytes += static_cast<double>(graph_.tensors[id].bytes);
    all += bytes;
    if (whole) {
      step.results.empty() ? Invoke(step) : Call(step, {grids_[step.results[0]].whole()});
      computed += bytes;
      for (int64_t id : step.results) {
        if (options.bound > 0.0) largest_[id] = grids_[id].Largest();
      }
      continue;
    }
    const std::vector<Area> areas = Asked(step);
    if (areas.empty()) continue;
    computed += bytes * PixelsOf(areas) / PixelsOf(grids_[step.results[0]].whole());
    RunStep(&step, areas, options.bound);
  }
  if (Failure failure = shared_.End()) Lose(std::move(failure));
  is_known_ = true;
  result.computed = all == 0.0 ? 0.0 : computed / all;
  return result;
}

}  // namespace tvm_stretch
