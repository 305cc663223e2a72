// How long processors take at present, compared with the time at which the plans were measured.
#ifndef TVM_STRETCH_PACES_H_
#define TVM_STRETCH_PACES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tvm_stretch {

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

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PACES_H_
