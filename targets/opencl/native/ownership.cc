#include "ownership.h"

#include <algorithm>

namespace tvm_stretch::opencl {
namespace {

constexpr size_t kCacheLine = 64;
constexpr int64_t kHost = -1;

struct Access {
  int64_t region;  // number among the device's regions, or kHost
  bool writes;
  size_t plan;
};

// Consecutive bytes with the same accesses, in their order.
struct Interval {
  size_t start;
  size_t stop;
  std::vector<Access> accesses;
};

struct Use {
  int64_t tensor;
  Access access;
};

// All memory accesses of a run of each plan, in a possible order.
std::vector<Use> UsesOf(const GraphSpec& graph, int64_t device) {
  std::vector<Use> uses;
  int64_t own = 0;
  for (size_t plan = 0; plan < graph.plans.size(); ++plan) {
    const LengthSpec& ports = graph.lengths[graph.LengthOf(plan)];
    for (int64_t tensor : ports.inputs) uses.push_back({tensor, {kHost, true, plan}});
    for (const StateSpec& state : graph.states) {  // the executor completes the next state before
      if (state.starts >= 0) uses.push_back({ports.outputs[state.output], {kHost, true, plan}});
    }
    for (size_t i = 0; i < graph.plans[plan].count; ++i) {
      const RegionSpec& region = graph.regions[graph.plans[plan].first + i];
      const int64_t who = region.processor == device ? own++ : kHost;
      for (int64_t id : region.nodes) {
        for (int64_t tensor : graph.nodes[id].inputs) uses.push_back({tensor, {who, false, plan}});
        for (int64_t tensor : graph.nodes[id].outputs) uses.push_back({tensor, {who, true, plan}});
      }
    }
    for (int64_t tensor : ports.outputs) uses.push_back({tensor, {kHost, false, plan}});
  }
  return uses;
}

// Calls visit(start, stop) for each consecutive piece of a tensor.
template <typename Visit>
void ForEachRun(const TensorSpec& tensor, size_t start, size_t dim, const Visit& visit) {
  const size_t item = (tensor.dtype.bits + 7) / 8 * tensor.dtype.lanes;
  size_t dense = 1;  // elements of dimensions from `dim` on, if they have no gaps
  for (size_t i = tensor.shape.size(); i-- > dim && dense != 0;) {
    const bool fits = tensor.shape[i] == 1 || static_cast<size_t>(tensor.strides[i]) == dense;
    dense = fits ? dense * static_cast<size_t>(tensor.shape[i]) : 0;
  }
  if (dense != 0) return visit(start, start + dense * item);
  for (int64_t i = 0; i < tensor.shape[dim]; ++i) {
    ForEachRun(tensor, start + static_cast<size_t>(i * tensor.strides[dim]) * item, dim + 1, visit);
  }
}

template <typename Visit>
void ForEachRun(const TensorSpec& tensor, const MemoryMap& memory, const Visit& visit) {
  const bool is_weight = tensor.memory == Memory::kConstant || tensor.memory == Memory::kPrepared;
  if (is_weight || tensor.bytes == 0) return;
  const char* address = AddressOf(memory, tensor);
  ForEachRun(tensor, static_cast<size_t>(address - memory.block.data), 0, visit);
}

std::vector<Interval> IntervalsOf(const GraphSpec& graph, const std::vector<Use>& uses,
                                  const MemoryMap& memory) {
  std::vector<size_t> cuts;
  for (const Use& use : uses) {
    ForEachRun(graph.tensors[use.tensor], memory,
               [&](size_t start, size_t stop) { cuts.insert(cuts.end(), {start, stop}); });
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Interval> intervals;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) intervals.push_back({cuts[i], cuts[i + 1], {}});
  for (const Use& use : uses) {
    ForEachRun(graph.tensors[use.tensor], memory, [&](size_t start, size_t stop) {
      auto at = std::lower_bound(cuts.begin(), cuts.end(), start) - cuts.begin();
      for (; cuts[at] < stop; ++at) intervals[at].accesses.push_back(use.access);
    });
  }
  return intervals;
}

void AddOnce(std::vector<size_t>* regions, int64_t region) {
  const auto number = static_cast<size_t>(region);
  if (std::find(regions->begin(), regions->end(), number) == regions->end()) {
    regions->push_back(number);
  }
}

bool IsDevices(const Access& access) { return access.region != kHost; }

// Simulates one interval through runs of one plan until the state repeats; the last run counts.
class Follower {
 public:
  Cell Follow(const Interval& interval) {
    constexpr int kRuns = 3;
    for (run_ = 0; run_ < kRuns; ++run_) {
      cell_ = {interval.start, interval.stop - interval.start, {}, {}, is_mapped_, false};
      for (const Access& access : interval.accesses) Use(access);
    }
    return cell_;
  }

  // Any plan may run next, so what the host uses in one of them is the host's after each run.
  Cell FollowAny(const Interval& interval, size_t plans) {
    cell_ = {interval.start, interval.stop - interval.start, {}, {}, true, true};
    for (size_t plan = 0; plan < plans; ++plan) {
      for (const Access& access : interval.accesses) {
        if (access.plan == plan) Use(access);
      }
      Use({kHost, true, plan});
    }
    return cell_;
  }

 private:
  void Use(const Access& access) { IsDevices(access) ? OnDevice(access) : OnHost(access); }

  struct Last {
    int64_t region = 0;
    int run = 0;
  };

  void OnDevice(const Access& access) {
    if (is_mapped_ && (access.writes || host_wrote_)) {
      AddOnce(&cell_.unmaps, access.region);
      is_mapped_ = false;
    }
    last_ = {access.region, run_};
    if (!access.writes) return;
    last_write_ = last_;
    is_devices_ = true;
  }

  void OnHost(const Access& access) {
    if (!is_mapped_ && (access.writes || is_devices_)) {
      // To read, the host waits for the last write; to write, for the last use.
      const Last& by = access.writes ? last_ : last_write_;
      AddOnce(&cell_.maps, by.region);
      if (by.run != run_) cell_.rests_mapped = true;
      is_mapped_ = true;
      host_wrote_ = false;
    }
    if (!access.writes) return;
    host_wrote_ = cell_.host_writes = true;
    is_devices_ = false;
  }

  Cell cell_;
  int run_ = 0;
  bool is_mapped_ = true;
  bool host_wrote_ = true;   // since it was mapped
  bool is_devices_ = false;  // whether the device wrote last
  Last last_, last_write_;   // use by the device
};

bool ChangeTogether(const Cell& one, const Cell& other) {
  return one.unmaps == other.unmaps && one.maps == other.maps &&
         one.rests_mapped == other.rests_mapped && one.host_writes == other.host_writes;
}

size_t LineOf(size_t byte) { return byte / kCacheLine; }

}  // namespace

Ownership PlanOwnership(const GraphSpec& graph, int64_t device, const MemoryMap& memory) {
  Ownership plan;
  size_t last_line = 0;  // of the previous cell, of either owner
  bool last_is_hosts = false, last_is_devices = false;
  for (const Interval& interval : IntervalsOf(graph, UsesOf(graph, device), memory)) {
    const std::vector<Access>& all = interval.accesses;
    const bool is_devices = std::any_of(all.begin(), all.end(), IsDevices);
    const bool is_hosts = !std::all_of(all.begin(), all.end(), IsDevices);
    if (all.empty()) continue;
    const size_t plans = graph.plans.size();
    Cell cell = plans == 1 ? Follower().Follow(interval) : Follower().FollowAny(interval, plans);
    const bool goes_on = is_hosts && last_is_hosts && ChangeTogether(cell, plan.cells.back()) &&
                         LineOf(interval.start) - last_line <= 1;
    const bool shares_line = LineOf(interval.start) == last_line;
    if (shares_line && !goes_on && ((is_hosts && last_is_devices) || (is_devices && last_is_hosts)))
      plan.is_sound = false;
    if (goes_on) {
      plan.cells.back().bytes = interval.stop - plan.cells.back().offset;
    } else if (is_hosts) {
      plan.cells.push_back(std::move(cell));
    }
    last_line = LineOf(interval.stop - 1);
    last_is_hosts = is_hosts;
    last_is_devices = is_devices;
  }
  return plan;
}

}  // namespace tvm_stretch::opencl
