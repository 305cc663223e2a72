// Which of a model's plans the next run takes: the one that is the fastest now.
#ifndef TVM_STRETCH_PLAN_CHOOSER_H_
#define TVM_STRETCH_PLAN_CHOOSER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_stretch {

// When a plan counts as slow, and how long it is left alone then.
struct Patience {
  double factor = 1.3;  // slow is a run that takes more than so many times what was expected
  int64_t runs = 3;     // so many, each fast one taking one back, before another plan is tried
  int64_t pause = 16;   // after so many runs a plan that was slow is tried again
};

// Knows latencies of whole runs only: a processor that others keep busy makes all plans slow that
// use it, and no others. A plan is taken for as fast as expected until its runs say otherwise, and
// again some time later; so whether a disturbance is over is found out by a run, which is dear:
// with shorter pauses at first a plan that takes three times as long cost a sixth of all time.
class PlanChooser {
 public:
  // Nanoseconds that a run of each plan takes where nothing disturbs it; 0 where nobody knows.
  explicit PlanChooser(std::vector<int64_t> expected);

  // The plan of the next run.
  size_t plan() const { return plan_; }

  // All runs take this plan from now on.
  void Pin(size_t plan);

  // Runs take the plan that is the fastest.
  void Adapt(const Patience& patience);

  // A run of the present plan took so long.
  void Ran(int64_t nanoseconds);

  // A run of the present plan failed, and will for a while; only some plans can take its place.
  // Returns whether one does.
  bool Failed(const std::vector<bool>& usable);

 private:
  struct Known {
    double expected = 0;
    double best = 0;       // its fast runs; 0: there was none
    double now = 0;        // what it takes at present; 0: as expected
    double last = 0;       // what it took when it was slow, even if that is long ago
    int64_t tried_at = 0;  // the run after which `now` is forgotten
  };

  double Usual(const Known& plan) const;
  double CostOf(size_t plan) const;
  void Note(double nanoseconds);
  void LeaveAlone(double nanoseconds);
  size_t Choose(const std::vector<bool>& usable);

  std::vector<Known> known_;
  Patience patience_;
  size_t plan_ = 0;
  size_t settled_ = 0;  // the one that others have to be faster than
  int64_t run_ = 0;
  int64_t slow_runs_ = 0;
  double fastest_slow_ = 0;
  bool is_pinned_ = false;
  bool is_trial_ = false;  // the present plan has not run since it was chosen
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PLAN_CHOOSER_H_
