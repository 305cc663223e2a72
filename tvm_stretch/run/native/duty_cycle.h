// Leaves a processor idle for a part of the time, so that other programs can use it.
#ifndef TVM_STRETCH_DUTY_CYCLE_H_
#define TVM_STRETCH_DUTY_CYCLE_H_

#include <cstdint>
#include <limits>

namespace tvm_stretch {

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

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_DUTY_CYCLE_H_
