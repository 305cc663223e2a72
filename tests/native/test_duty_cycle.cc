// How long processors are busy that have a limit, by a scripted clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "pauses.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kUnit = 1'000'000;

// A processor whose work is always ready.
class Worker {
 public:
  explicit Worker(double share) : cycle_(share, 10 * kUnit) {}

  // Does some work as soon as it may; returns when that began.
  int64_t Work(int64_t duration) {
    const int64_t begin = cycle_.MayBegin(now_);
    cycle_.Began(begin);
    now_ = begin + duration;
    cycle_.Ended(now_);
    return begin;
  }
  void Idle(int64_t duration) { now_ += duration; }
  int64_t now() const { return now_; }

 private:
  DutyCycle cycle_;
  int64_t now_ = 5 * kUnit;
};

TEST(DutyCycle, WorkWaitsForTheRestOfAPeriod) {
  Worker worker(0.5);
  EXPECT_EQ(worker.Work(2 * kUnit), 5 * kUnit);
  EXPECT_EQ(worker.Work(3 * kUnit), 7 * kUnit);
  EXPECT_EQ(worker.Work(5 * kUnit), 15 * kUnit) << "the next period";
  EXPECT_EQ(worker.Work(5 * kUnit), 25 * kUnit);
}

TEST(DutyCycle, LongWorkMakesThePeriodLonger) {
  Worker worker(0.25);
  EXPECT_EQ(worker.Work(20 * kUnit), 5 * kUnit);
  EXPECT_EQ(worker.Work(kUnit), 85 * kUnit);
}

TEST(DutyCycle, IdleTimeCounts) {
  Worker worker(0.5);
  EXPECT_EQ(worker.Work(5 * kUnit), 5 * kUnit);
  worker.Idle(4 * kUnit);
  EXPECT_EQ(worker.Work(kUnit), 15 * kUnit) << "a millisecond is left";
  worker.Idle(100 * kUnit);
  EXPECT_EQ(worker.Work(5 * kUnit), 116 * kUnit);
  EXPECT_EQ(worker.Work(kUnit), 126 * kUnit) << "what was idle before is not saved up";
}

TEST(DutyCycle, WorkThatNeverBeganTakesNoTime) {
  DutyCycle cycle(0.5, 10 * kUnit);
  cycle.Ended(3 * kUnit);
  cycle.Began(4 * kUnit);
  cycle.Ended(5 * kUnit);
  cycle.Ended(900 * kUnit);
  EXPECT_EQ(cycle.MayBegin(6 * kUnit), 6 * kUnit);
}

TEST(DutyCycle, NoShareIsExceeded) {
  std::mt19937 random(7);
  for (const double share : {0.05, 0.3, 0.5, 0.7, 0.95}) {
    Worker worker(share);
    const int64_t start = worker.now();
    int64_t busy = 0;
    for (int i = 0; i < 2000; ++i) {
      const auto duration = static_cast<int64_t>(random() % (i % 50 == 0 ? 40 * kUnit : 3 * kUnit));
      worker.Work(duration);
      busy += duration;
      if (random() % 4 == 0) worker.Idle(static_cast<int64_t>(random() % (2 * kUnit)));
    }
    const auto elapsed = [&] { return static_cast<double>(worker.now() - start); };
    EXPECT_GE(static_cast<double>(busy), 0.7 * share * elapsed()) << "little is left unused";
    worker.Idle(1000 * kUnit);  // so that the last period is over
    EXPECT_LE(static_cast<double>(busy), share * elapsed());
  }
}

}  // namespace
}  // namespace tvm_stretch
