#include "plan_chooser.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tvm_stretch {
namespace {

// A sample that differs by less from the pace is no change.
constexpr double kChange = 1.15;

// The weight of a new sample that is slower than the pace.
constexpr double kWeight = 0.7;

// The least gain for another plan, so that two equally fast plans do not alternate.
constexpr double kWorthChanging = 0.9;

// A plan is recovering if it takes less than this share of its slow latency.
constexpr double kRecovering = 0.5;

// A slow plan's latency is the mean of about this number of runs: while other programs need the
// cores, runs of one plan differ by half of their latency.
constexpr int kMemory = 8;

// The fastest latency grows a little with each run, as it may have been an outlier.
constexpr double kForgetting = 1.02;

// The largest part by which trials of slow plans make all runs longer, and the longest pause after
// one, in pauses.
constexpr double kTrials = 0.12, kLongestPause = 8;

// A run is traced at the latest after this number of runs.
constexpr int64_t kBetweenSamples = 32;

constexpr size_t kNoPlan = std::numeric_limits<size_t>::max();
// The power that a plan counts with which takes too long: of such plans the fastest is the best.
constexpr double kMissed = 1e9;
constexpr double kForever = std::numeric_limits<double>::infinity();

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

PlanChooser::PlanChooser(const std::vector<int64_t>& expected, Paces paces, Energies energies)
    : known_(expected.size()), paces_(std::move(paces)), energies_(std::move(energies)) {
  for (size_t i = 0; i < expected.size(); ++i)
    known_[i].expected = static_cast<double>(expected[i]);
}

void PlanChooser::Pin(int64_t plan) {
  if (plan < 0 || plan >= static_cast<int64_t>(known_.size())) {
    TVM_FFI_THROW(ValueError) << "expected a number below " << known_.size()
                              << " for use_plan, got " << plan << "; graph() lists the plans";
  }
  plan_ = settled_ = static_cast<size_t>(plan);
  is_pinned_ = true;
  is_trial_ = false;
  slow_runs_ = 0;
}

void PlanChooser::Adapt(const Patience& patience) {
  if (!(patience.factor > 1) || patience.runs < 1 || patience.pause < 1) {
    TVM_FFI_THROW(ValueError) << "expected a factor above 1 and at least 1 run for adapt, got "
                              << patience.factor << ", " << patience.runs << " and "
                              << patience.pause << "; see Model.adapt";
  }
  patience_ = patience;
  settled_ = plan_;
  is_pinned_ = is_trial_ = false;
  slow_runs_ = 0;
}

// The latency of an undisturbed run. Expectations are scaled once runs have shown that the machine
// is slower or faster.
double PlanChooser::Usual(const Known& plan) const {
  if (plan.expected == 0) return plan.best;
  double pace = kForever;
  for (const Known& other : known_) {
    if (other.expected == 0) continue;
    pace = std::min(pace, other.best == 0 ? 1.0 : other.best / other.expected);
  }
  return plan.expected * pace;
}

double PlanChooser::CostOf(size_t plan) const {
  const Known& known = known_[plan];
  if (known.now != 0) return known.now;
  if (!paces_.Knows(plan)) return Usual(known);
  return std::max(Usual(known), known.expected * paces_.Slowdown(plan, Recently()));
}

// What `Choose` makes small.
double PlanChooser::PriceOf(size_t plan) const {
  const double taken = CostOf(plan);
  if (energies_.watts.empty()) return taken;
  const bool misses = energies_.within > 0 && taken > energies_.within;
  return taken * (misses ? kMissed : energies_.watts[plan]);
}

bool PlanChooser::WantsSample() const {
  return known_.size() > 1 && !is_pinned_ && !is_trial_ && run_ >= sample_at_ &&
         paces_.Knows(plan_);
}

void PlanChooser::Sampled(const std::vector<double>& nanoseconds) {
  confirms_ = paces_.Note(plan_, nanoseconds, ++run_) && !confirms_;
  sample_at_ = run_ + (confirms_ ? 0 : kBetweenSamples);
  Choose(std::vector<bool>(known_.size(), true));
}

void PlanChooser::Ran(int64_t nanoseconds) {
  if (known_.size() == 1) return;
  const auto taken = static_cast<double>(nanoseconds);
  Known& plan = known_[plan_];
  plan.best = plan.best == 0 ? taken : std::min(kForgetting * plan.best, taken);
  ++run_;
  if (is_pinned_) return;
  Note(taken);
  is_trial_ = false;
  Choose(std::vector<bool>(known_.size(), true));
}

// One run decides whether a tried plan is still slow. A fast plan may have single bad runs, and on
// a busy core single good ones.
void PlanChooser::Note(double taken) {
  Known& plan = known_[plan_];
  if (taken <= patience_.factor * Usual(plan)) {
    plan.now = plan.last = 0;
    plan.seen = 0;
    slow_runs_ = std::max<int64_t>(slow_runs_ - 1, 0);
  } else if (is_trial_) {
    paces_.Keep(plan_, run_);
    LeaveAlone(taken);
  } else if (plan.now != 0) {
    plan.Add(taken);  // the other plans are slower still
  } else {
    if (slow_runs_ == 0) sample_at_ = run_;
    fastest_slow_ = slow_runs_ == 0 ? taken : std::min(fastest_slow_, taken);
    if (++slow_runs_ < patience_.runs) return;
    LeaveAlone(fastest_slow_);
    slow_runs_ = 0;
  }
}

void PlanChooser::Known::Add(double taken) {
  if (taken < kRecovering * last || !std::isfinite(taken + last)) seen = 0;
  seen = std::min(seen + 1, kMemory);
  now = last = seen == 1 ? taken : last + (taken - last) / seen;
}

void PlanChooser::LeaveAlone(double taken) {
  Known& plan = known_[plan_];
  const bool recovers = taken < kRecovering * plan.last;
  plan.Add(taken);
  plan.tried_at = run_ + (recovers ? 1 : PauseAfter(taken));
}

// A trial loses what it takes beyond a run of the best plan, so a plan that is far slower than that
// one, or one of many, is tried less often.
int64_t PlanChooser::PauseAfter(double taken) const {
  double least = kForever;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (i != plan_ && CostOf(i) > 0) least = std::min(least, CostOf(i));
  }
  const double lost = (taken / least - 1) * static_cast<double>(known_.size() - 1);
  if (!std::isfinite(lost)) return patience_.pause;
  const double most = kLongestPause * static_cast<double>(patience_.pause);
  return std::max(patience_.pause, static_cast<int64_t>(std::min(lost / kTrials, most)));
}

bool PlanChooser::Failed(const std::vector<bool>& usable) {
  if (is_pinned_) return false;
  LeaveAlone(kForever);
  return Choose(usable) != kNoPlan;
}

// Chooses a plan that is expected to be clearly faster than the settled one, or else that one.
size_t PlanChooser::Choose(const std::vector<bool>& usable) {
  size_t best = usable[settled_] ? settled_ : kNoPlan;
  double least = best == kNoPlan ? kForever : kWorthChanging * PriceOf(settled_);
  for (size_t i = 0; i < known_.size(); ++i) {
    if (i == settled_ || !usable[i]) continue;
    if (i != plan_ && run_ >= known_[i].tried_at) known_[i].now = 0;
    if (PriceOf(i) >= least && best != kNoPlan) continue;
    best = i;
    least = PriceOf(i);
  }
  if (best == kNoPlan) return best;
  if (best == plan_) {
    if (settled_ != plan_) {
      slow_runs_ = 0, sample_at_ = run_;
      if (known_[settled_].now != 0) known_[settled_].tried_at = run_ + patience_.pause;
    }
    settled_ = plan_;
  } else {
    is_trial_ = best != settled_;
    plan_ = best;
  }
  return best;
}

}  // namespace tvm_stretch
