#include "paces.h"

#include <algorithm>
#include <utility>

namespace tvm_stretch {
namespace {

// A sample that differs by less from the pace is no change.
constexpr double kChange = 1.15;

// The weight of a new sample that is slower than the pace.
constexpr double kWeight = 0.7;

}  // namespace

Paces::Paces(size_t processors, std::vector<std::vector<RegionWork>> plans)
    : paces_(processors), plans_(std::move(plans)) {}

bool Paces::Note(size_t plan, const std::vector<double>& nanoseconds, int64_t run) {
  const std::vector<RegionWork>& regions = plans_[plan];
  bool changes = false;
  for (size_t processor = 0; processor < paces_.size(); ++processor) {
    double usual = 0, taken = 0;
    for (size_t i = 0; i < regions.size(); ++i) {
      if (regions[i].processor != processor) continue;
      usual += regions[i].nanoseconds;
      taken += nanoseconds[i];
    }
    if (usual == 0) continue;
    Pace& pace = paces_[processor];
    const double sample = taken / usual, calmer = std::min(sample, pace.last);
    pace.now = calmer < pace.now ? calmer : kWeight * calmer + (1 - kWeight) * pace.now;
    pace.last = sample;
    pace.run = run;
    changes |= sample > kChange * pace.now;
  }
  return changes;
}

void Paces::Keep(size_t plan, int64_t run) {
  for (const RegionWork& region : plans_[plan]) paces_[region.processor].run = run;
}

double Paces::Of(size_t processor, int64_t since) const {
  return paces_[processor].run < since ? 1 : paces_[processor].now;
}

// When the last region ends, if each begins as soon as its processor and its predecessors allow.
template <typename PaceOf>
double Paces::Latency(const std::vector<RegionWork>& regions, const PaceOf& pace_of) {
  std::vector<double> ends, is_free;
  double last = 0;
  for (const RegionWork& region : regions) {
    is_free.resize(std::max(is_free.size(), region.processor + 1));
    double begin = is_free[region.processor];
    for (size_t other : region.after) begin = std::max(begin, ends[other]);
    ends.push_back(begin + region.nanoseconds * pace_of(region.processor));
    is_free[region.processor] = ends.back();
    last = std::max(last, ends.back());
  }
  return last;
}

double Paces::Slowdown(size_t plan, int64_t since) const {
  const double usual = Latency(plans_[plan], [](size_t) { return 1.0; });
  if (usual == 0) return 1;
  const auto pace_of = [&](size_t processor) { return Of(processor, since); };
  return Latency(plans_[plan], pace_of) / usual;
}

}  // namespace tvm_stretch
