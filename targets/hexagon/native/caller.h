// Makes calls on another thread, because a call of a driver may never return.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tvm_stretch::dsp {

class Caller {
 public:
  using Clock = std::chrono::steady_clock;

  // Both threads spin this long for each other before they sleep.
  explicit Caller(std::chrono::microseconds spin);
  // A thread whose call has not returned is left alone, with all that the call holds.
  ~Caller();

  // Begins a call; the one before has to have returned.
  void Begin(std::function<void()> call);
  // Whether the call has returned, now or before this time. `stops` shortens the wait to `least`.
  bool Await(Clock::time_point deadline, const std::atomic<bool>& stops, Clock::time_point least);

 private:
  struct State {
    std::atomic<uint32_t> begun{0}, returned{0};
    std::mutex mutex;  // guards the rest
    std::condition_variable changed;
    std::function<void()> call;
    bool ends = false;
  };
  static void Work(const std::shared_ptr<State>& state, std::chrono::microseconds spin);

  const std::chrono::microseconds spin_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace tvm_stretch::dsp
