// Pauses before regions of processors that may only be busy for a share of the time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "processor.h"

namespace tvm_stretch {

// Leaves a processor idle for a part of the time, so that other programs can use it.

// In periods: once the work of a period has taken `share` of it, more work waits for the next one.
// Work is not interrupted: if it takes longer, its period becomes longer. So the processor is busy
// for at most `share` of each period. Idle time within a period counts, whatever the reason.
class DutyCycle {
 public:
  // Shorter than a frame at 60 Hz, so that a program that draws gets its part of each frame.
  static constexpr int64_t kPeriod = 10'000'000;

  explicit DutyCycle(double share, int64_t period = kPeriod) : share_(share), period_(period) {}

  // The nanosecond at which work may begin that is ready now.
  int64_t MayBegin(int64_t now) const {
    const bool has_room = static_cast<double>(busy_) < share_ * static_cast<double>(period_);
    return has_room || now >= End() ? now : End();
  }

  void Began(int64_t now) {
    if (now >= End()) {
      start_ = now;
      busy_ = 0;
    }
    began_ = now;
  }

  // Work that was cancelled may end without having begun.
  void Ended(int64_t now) {
    if (began_ != kNever) busy_ += now - began_;
    began_ = kNever;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

  int64_t End() const {
    if (start_ == kNever) return kNever;
    const double least = static_cast<double>(busy_) / share_;
    return start_ + (least > static_cast<double>(period_) ? static_cast<int64_t>(least) : period_);
  }

  const double share_;
  const int64_t period_;
  int64_t start_ = kNever;  // of the period
  int64_t busy_ = 0;        // in this period, without the work in progress
  int64_t began_ = kNever;  // the work in progress
};

class Pause;

// A pause is a task that its region waits for like for a region of another processor, so no kind of
// processor has to know of it. It begins once the region could, and ends at once where the
// processor was idle for long enough; otherwise a thread waits for that time.
class Pauses {
 public:
  // The shares of the processors, by their position; 1: no limit.
  explicit Pauses(const std::vector<double>& shares);
  ~Pauses();

  bool AreNeeded(size_t processor) const { return cycles_.count(processor) != 0; }

  // Regions are bound in order; those of another plan never run together with earlier ones.
  void BeginPlan() { last_.clear(); }

  // The pause of the processor's next region, which waits for `after`. The pause lives as long as
  // this, and so must these tasks.
  Task* Before(size_t processor, const std::vector<Task*>& after);

  // The task of that region.
  void Bound(size_t processor, Task* region);

 private:
  friend class Pause;

  void Work();  // on the thread
  // Whether a region may begin now; if not, the pause ends later.
  bool MayBegin(Pause* pause);
  void Wake();

  std::map<size_t, DutyCycle> cycles_;
  std::map<size_t, Task*> last_;  // the region of each processor that was bound last
  std::vector<std::unique_ptr<Task>> pauses_;
  std::mutex mutex_;  // guards the cycles' times and all below
  std::condition_variable wake_;
  std::vector<Pause*> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tvm_stretch
