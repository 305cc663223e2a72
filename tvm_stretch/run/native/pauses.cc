#include "pauses.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace tvm_stretch {

// In a run: Reset; Start; once that and all of `after` have happened, it may end.
class Pause final : public Task {
 public:
  Pause(Pauses* pauses, DutyCycle* cycle, const std::vector<Task*>& after)
      : cycle_(*cycle), pauses_(*pauses), num_after_(after.size()) {
    for (Task* task : after) {
      task->OnComplete([this](const Failure& failure) {
        if (failure) skipped_ = true;
        Arrive();
      });
    }
  }

  void Reset(bool traced) final {
    Task::Reset(traced);
    missing_ = num_after_ + 1;
    skipped_ = false;
  }
  void Start() final { Arrive(); }
  void Cancel() final {
    skipped_ = true;
    pauses_.Wake();
  }

  // Regions that must not begin need no pause.
  bool is_skipped() const { return skipped_; }
  DutyCycle& cycle() const { return cycle_; }
  void End() { Complete(std::nullopt); }

 private:
  void Arrive() {
    if (missing_.fetch_sub(1) == 1 && pauses_.MayBegin(this)) End();
  }

  DutyCycle& cycle_;
  Pauses& pauses_;
  const size_t num_after_;
  std::atomic<size_t> missing_{0};
  std::atomic<bool> skipped_{false};
};

Pauses::Pauses(const std::vector<double>& shares) {
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] < 1) cycles_.emplace(i, DutyCycle(shares[i]));
  }
  if (!cycles_.empty()) thread_ = std::thread([this] { Work(); });
}

Pauses::~Pauses() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Task* Pauses::Before(size_t processor, const std::vector<Task*>& after) {
  std::vector<Task*> all = after;
  if (Task* last = last_[processor]) all.push_back(last);
  pauses_.push_back(std::make_unique<Pause>(this, &cycles_.at(processor), all));
  return pauses_.back().get();
}

void Pauses::Bound(size_t processor, Task* region) {
  DutyCycle* cycle = &cycles_.at(processor);
  region->OnComplete([this, cycle](const Failure&) {
    std::lock_guard<std::mutex> lock(mutex_);
    cycle->Ended(Now());
  });
  last_[processor] = region;
}

bool Pauses::MayBegin(Pause* pause) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t now = Now();
    if (pause->is_skipped() || pause->cycle().MayBegin(now) <= now) {
      pause->cycle().Began(now);
      return true;
    }
    waiting_.push_back(pause);
  }
  wake_.notify_one();
  return false;
}

void Pauses::Wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
  }  // the thread sleeps, or will check again
  wake_.notify_one();
}

void Pauses::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    const int64_t now = Now();
    int64_t next = now + DutyCycle::kPeriod;
    const auto due = std::find_if(waiting_.begin(), waiting_.end(), [&](Pause* pause) {
      const int64_t when = pause->is_skipped() ? now : pause->cycle().MayBegin(now);
      next = std::min(next, when);
      return when <= now;
    });
    if (due != waiting_.end()) {
      Pause* const pause = *due;
      waiting_.erase(due);
      pause->cycle().Began(now);
      lock.unlock();
      pause->End();
      lock.lock();
    } else if (waiting_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::nanoseconds(next - now));
    }
  }
}

}  // namespace tvm_stretch
