// Chooses the plan of the next run: the one that is fastest at present.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_stretch {

// How long processors take at present, compared with the time at which the plans were measured.

// A region of a plan, and what it needed when the plan was measured.
struct RegionWork {
  size_t processor;
  std::vector<size_t> after;  // earlier regions of the plan
  double nanoseconds;         // of kernels and transfers, without waits
};

// Latencies of whole runs do not say which processor is slow, so some runs are traced. A sample is
// the work of a processor's regions in such a run over the same work when the plan was measured. A
// processor is as slow as the faster of its last two samples: one may have been interrupted.
class Paces {
 public:
  // The regions of each plan; empty where nothing was measured.
  Paces(size_t processors, std::vector<std::vector<RegionWork>> plans);

  bool Knows(size_t plan) const { return !plans_[plan].empty(); }

  // Records the work of each region of a plan in a run; returns whether a processor seems to have
  // changed, which another sample should confirm.
  bool Note(size_t plan, const std::vector<double>& nanoseconds, int64_t run);

  // Whatever was slow of this plan still is.
  void Keep(size_t plan, int64_t run);

  // The latency of a plan over that of an undisturbed run, by the regions and their order.
  // Processors that were not sampled since that run are as they were when plans were measured.
  double Slowdown(size_t plan, int64_t since) const;

  double Of(size_t processor, int64_t since) const;

 private:
  struct Pace {
    double now = 1;
    double last = 1;  // sample
    int64_t run = -1;
  };

  template <typename PaceOf>
  static double Latency(const std::vector<RegionWork>& regions, const PaceOf& pace_of);

  std::vector<Pace> paces_;
  const std::vector<std::vector<RegionWork>> plans_;
};

// When a plan counts as slow, and how long it is not used then.
struct Patience {
  double factor = 1.3;  // a run is slow if it takes more than this times the expectation
  int64_t runs = 3;     // slow runs, minus fast ones, until another plan is tried
  int64_t pause = 16;   // runs after which a slow plan is tried again
};

// What makes a plan the best one, if that is not its latency: the energy of a run, which is its
// latency times the power of an undisturbed run.
struct Energies {
  std::vector<double> watts;  // of each plan; empty: plans are chosen by latency
  double within = 0;          // nanoseconds that a run may take; 0: any time
};

// It sees latencies of whole runs, and in some runs the work of each processor. So it knows how
// long a plan takes that shares a slow processor with the current one, and need not try it. A plan
// is assumed to have its expected latency until its runs are slower, and again after a pause. So
// only a run can show that a disturbance is over, and such runs are expensive: with shorter pauses
// at first, a plan that takes three times as long cost a sixth of all time.
class PlanChooser {
 public:
  // Nanoseconds of an undisturbed run of each plan; 0 if unknown.
  explicit PlanChooser(std::vector<int64_t> expected)
      : PlanChooser(expected, Paces(0, std::vector<std::vector<RegionWork>>(expected.size()))) {}
  PlanChooser(const std::vector<int64_t>& expected, Paces paces, Energies energies = {});

  // The plan of the next run.
  size_t plan() const { return plan_; }

  // All runs use this plan from now on. Throws ValueError if there is none.
  void Pin(int64_t plan);

  // Runs use the fastest plan. Throws ValueError if the numbers make no sense.
  void Adapt(const Patience& patience);

  // Records the latency of a run of the current plan.
  void Ran(int64_t nanoseconds);

  // Whether the next run should be traced, and what its regions took then; its latency does not
  // count.
  bool WantsSample() const;
  void Sampled(const std::vector<double>& nanoseconds);

  // How long a run of a plan should take at present: nanoseconds, 0 if unknown. And how long a
  // processor's work takes, over the time when plans were measured.
  double Predicted(size_t plan) const { return CostOf(plan); }
  double PaceOf(size_t processor) const { return paces_.Of(processor, Recently()); }

  // Records that the current plan failed and will fail for a while. Chooses one of the `usable`
  // plans; returns false if there is none.
  bool Failed(const std::vector<bool>& usable);

 private:
  struct Known {
    double expected = 0;
    double best = 0;       // of its fast runs; 0: none yet
    double now = 0;        // its present latency; 0: as expected
    double last = 0;       // its latency when it was slow, however long ago
    int seen = 0;          // the number of runs of which that is the mean
    int64_t tried_at = 0;  // the run after which `now` is forgotten

    void Add(double nanoseconds);  // a slow run
  };

  double Usual(const Known& plan) const;
  double CostOf(size_t plan) const;
  double PriceOf(size_t plan) const;
  void Note(double nanoseconds);
  void LeaveAlone(double nanoseconds);
  int64_t PauseAfter(double nanoseconds) const;
  size_t Choose(const std::vector<bool>& usable);
  int64_t Recently() const { return run_ - patience_.pause; }

  std::vector<Known> known_;
  Paces paces_;
  const Energies energies_;
  Patience patience_;
  size_t plan_ = 0;
  size_t settled_ = 0;  // the plan that others are compared with
  int64_t run_ = 0;
  int64_t sample_at_ = 0;  // the run that is to be traced
  bool confirms_ = false;  // the next sample is to confirm the last one
  int64_t slow_runs_ = 0;
  double fastest_slow_ = 0;
  bool is_pinned_ = false;
  bool is_trial_ = false;  // the current plan has not run since it was chosen
};

}  // namespace tvm_stretch
