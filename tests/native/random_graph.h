// Random graphs on several processors, and what they compute.
#ifndef TVM_STRETCH_TESTS_RANDOM_GRAPH_H_
#define TVM_STRETCH_TESTS_RANDOM_GRAPH_H_

#include <algorithm>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tvm_stretch::testing {

// Nodes add or negate earlier tensors of 16 numbers; all numbers of a tensor are equal. Tensors 0
// and 1 are the inputs, node i writes tensor i + 2, and the last nodes write the outputs.
class RandomGraph {
 public:
  static constexpr int kInputs = 2;
  static constexpr int kOutputs = 3;

  // `kind` is that of processor 1; those after it are fake ones.
  RandomGraph(uint32_t seed, int num_processors, std::string kind = "fake")
      : random_(seed), num_processors_(num_processors), kind_(std::move(kind)) {
    const int nodes = 6 + Below(20);
    for (int i = 0; i < nodes; ++i) {
      operands_.push_back({Below(i + kInputs)});
      if (Below(4) != 0) operands_.back().push_back(Below(i + kInputs));
    }
    for (int i = 0; i < nodes;) {
      int end = std::min(nodes, i + 1 + Below(3));
      regions_.push_back(Region{Below(num_processors_), i, end});
      i = end;
    }
  }

  int num_regions() const { return static_cast<int>(regions_.size()); }
  int processor(int region) const { return regions_[region].processor; }

  std::vector<float> Expected(float a, float b) const {
    std::vector<float> values{a, b};
    for (const std::vector<int>& in : operands_) {
      values.push_back(in.size() == 1 ? -values[in[0]] : values[in[0]] + values[in[1]]);
    }
    return {values.end() - kOutputs, values.end()};
  }

  bool spare = false;    // whether the CPU may take over
  double max_share = 1;  // of the processors after the CPU
  double cpu_share = 1;
  bool has_plans = false;  // whether two more plans place everything on one of the first processors
  bool reuses = false;     // whether tensors lie where earlier ones did that nobody needs any more

  std::string JSON() const {
    std::ostringstream json;
    json << R"({"format":"tvm_stretch.graph","version":5,"spare":)" << (spare ? "true" : "false")
         << R"(,"arena_bytes":)" << 64 * operands_.size()
         << R"(,"weights_bytes":128,"prepared_bytes":0,"threads":1,"cpu_features":[],"prepare":[],)"
         << R"("inputs":[{"name":"a","tensor":0},{"name":"b","tensor":1}],"outputs":[)";
    for (int i = 0; i < kOutputs; ++i) {
      json << Comma(i) << R"({"name":"y)" << i << R"(","tensor":)" << NumTensors() - kOutputs + i
           << "}";
    }
    json << R"(],"tensors":[)";
    for (int i = 0; i < NumTensors(); ++i) json << Comma(i) << Tensor(i);
    json << R"(],"nodes":[)";
    const size_t count = operands_.size() * (has_plans ? 3 : 1);  // each plan has its own
    for (size_t node = 0; node < count; ++node) {
      const size_t i = node % operands_.size();
      json << Comma(node) << R"({"kernel":")" << (operands_[i].size() == 1 ? "negative" : "add")
           << R"(","name":"n)" << i << R"(","inputs":)" << List(operands_[i]) << R"(,"outputs":[)"
           << i + kInputs << "]}";
    }
    json << R"(],"processors":[{"name":"cpu","kind":"cpu","max_share":)" << cpu_share << "}";
    for (int i = 1; i < num_processors_; ++i) {
      const std::string kind = i == 1 ? kind_ : "fake";
      json << R"(,{"name":")" << kind << i << R"(","kind":")" << kind << R"(","max_share":)"
           << max_share << "}";
    }
    json << R"(],"regions":[)";
    for (int i = 0; i < num_regions(); ++i) json << Comma(i) << RegionJSON(i);
    if (has_plans) json << Alone(0) << Alone(1) << "]" << Plans() << "}";
    if (!has_plans) json << "]}";
    return json.str();
  }

 private:
  struct Region {
    int processor;
    int begin;  // nodes [begin, end)
    int end;
  };

  int Below(int limit) { return static_cast<int>(random_() % limit); }
  int NumTensors() const { return kInputs + static_cast<int>(operands_.size()); }
  static const char* Comma(size_t i) { return i == 0 ? "" : ","; }

  template <typename Items>
  static std::string List(const Items& items) {
    std::string list;
    for (int item : items) list += (list.empty() ? "" : ",") + std::to_string(item);
    return "[" + list + "]";
  }

  std::string Tensor(int id) const {
    const int output = id - (NumTensors() - kOutputs);
    const char* kind = id < kInputs ? "input" : output >= 0 ? "output" : "arena";
    const int buffer = id < kInputs ? id : std::max(output, 0);
    const int offset = id < kInputs || output >= 0 ? 0 : 64 * SlotOf(id);
    std::ostringstream json;
    json << R"({"shape":[16],"dtype":"float32","bytes":64,"kind":")" << kind << R"(","buffer":)"
         << buffer << R"(,"offset":)" << offset << "}";
    return json.str();
  }

  bool IsBefore(int region, int other) const {
    if (region >= other) return false;
    for (int next = region + 1; next <= other; ++next) {
      const bool direct = processor(next) == processor(region) || WaitsFor(next, region);
      if (direct && (next == other || IsBefore(next, other))) return true;
    }
    return false;
  }

  bool WaitsFor(int region, int other) const {
    for (int tensor : Reads(region)) {
      if (tensor >= kInputs && RegionOf(tensor) == other) return true;
    }
    return false;
  }

  // Whether all that touches the first tensor is over when the second one is written.
  bool IsOver(int tensor, int later) const {
    const int writer = RegionOf(later);
    bool is_over = IsBefore(RegionOf(tensor), writer);
    for (int region = 0; region < num_regions() && is_over; ++region) {
      is_over = Reads(region).count(tensor) == 0 || IsBefore(region, writer);
    }
    return is_over;
  }

  int SlotOf(int tensor) const {
    if (!reuses) return tensor - kInputs;
    if (slots_.empty()) {
      std::vector<std::vector<int>> taken;
      for (int id = kInputs; id < NumTensors(); ++id) {
        size_t slot = 0;
        auto is_free = [&](int other) { return IsOver(other, id); };
        while (slot < taken.size() &&
               !std::all_of(taken[slot].begin(), taken[slot].end(), is_free)) {
          ++slot;
        }
        taken.resize(std::max(taken.size(), slot + 1));
        taken[slot].push_back(id);
        slots_.push_back(static_cast<int>(slot));
      }
    }
    return slots_[tensor - kInputs];
  }

  int RegionOf(int tensor) const {
    int region = 0;
    while (regions_[region].end <= tensor - kInputs) ++region;
    return region;
  }

  std::set<int> Reads(int region) const {
    std::set<int> reads;
    for (int node = regions_[region].begin; node < regions_[region].end; ++node) {
      reads.insert(operands_[node].begin(), operands_[node].end());
    }
    return reads;
  }

  std::string RegionJSON(int region) const {
    std::set<int> received, after, receives, sends;
    std::vector<int> nodes;
    for (int earlier = 0; earlier < region; ++earlier) {
      if (processor(earlier) == processor(region)) received.merge(Reads(earlier));
    }
    for (int tensor : Reads(region)) {
      const bool own = tensor >= kInputs && processor(RegionOf(tensor)) == processor(region);
      if (!own && received.count(tensor) == 0) receives.insert(tensor);
      if (!own && tensor >= kInputs) after.insert(RegionOf(tensor));
    }
    for (int node = regions_[region].begin; node < regions_[region].end; ++node) {
      nodes.push_back(node);
      const int tensor = node + kInputs;
      bool sent = tensor >= NumTensors() - kOutputs;
      for (int later = region + 1; later < num_regions(); ++later) {
        sent |= processor(later) != processor(region) && Reads(later).count(tensor) != 0;
      }
      if (sent) sends.insert(tensor);
    }
    std::ostringstream json;
    json << R"({"name":"r)" << region << R"(","processor":)" << processor(region) << R"(,"nodes":)"
         << List(nodes) << R"(,"after":)" << List(after) << R"(,"receives":)" << List(receives)
         << R"(,"sends":)" << List(sends) << "}";
    return json.str();
  }

  // The regions of a plan in which one processor computes everything.
  std::string Alone(int processor) const {
    std::ostringstream json;
    for (int region = 0; region < num_regions(); ++region) {
      std::vector<int> nodes, receives, sends;
      for (int node = regions_[region].begin; node < regions_[region].end; ++node) {
        nodes.push_back(node + static_cast<int>(operands_.size()) * (processor + 1));
        const bool is_output = node + kInputs >= NumTensors() - kOutputs;
        if (is_output && processor != 0) sends.push_back(node + kInputs);
      }
      for (int input = 0; region == 0 && processor != 0 && input < kInputs; ++input) {
        receives.push_back(input);
      }
      json << R"(,{"name":"alone","processor":)" << processor << R"(,"nodes":)" << List(nodes)
           << R"(,"after":[],"receives":)" << List(receives) << R"(,"sends":)" << List(sends)
           << "}";
    }
    return json.str();
  }

  std::string Plans() const {
    std::ostringstream json;
    for (int plan = 0; plan < 3; ++plan) {
      json << Comma(plan) << R"({"name":"p)" << plan << R"(","regions":)" << num_regions()
           << R"(,"expected_ns":1000})";
    }
    return R"(,"plans":[)" + json.str() + "]";
  }

  std::mt19937 random_;
  const int num_processors_;
  const std::string kind_;
  std::vector<std::vector<int>> operands_;  // of each node
  std::vector<Region> regions_;
  mutable std::vector<int> slots_;  // of the tensors that nodes write, if they reuse memory
};

}  // namespace tvm_stretch::testing

#endif  // TVM_STRETCH_TESTS_RANDOM_GRAPH_H_
