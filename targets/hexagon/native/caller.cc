#include "caller.h"

#include <algorithm>
#include <utility>

#include "spin.h"

namespace tvm_stretch::dsp {
namespace {

constexpr std::chrono::milliseconds kStopsLook{10};  // interval at which a wait looks at `stops`

}  // namespace

Caller::Caller(std::chrono::microseconds spin)
    : spin_(spin), thread_([state = state_, spin] { Work(state, spin); }) {}

Caller::~Caller() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->ends = true;
  }
  state_->changed.notify_all();
  if (state_->returned == state_->begun) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Caller::Begin(std::function<void()> call) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->call = std::move(call);
    ++state_->begun;
  }
  state_->changed.notify_all();
}

bool Caller::Await(Clock::time_point deadline, const std::atomic<bool>& stops,
                   Clock::time_point least) {
  const auto returned = [this] { return state_->returned == state_->begun; };
  if (SpinFor(spin_, returned)) return true;
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!returned()) {
    const Clock::time_point last = stops ? std::min(deadline, least) : deadline;
    if (Clock::now() > last) return false;
    state_->changed.wait_until(lock, std::min(last, Clock::now() + kStopsLook), returned);
  }
  return true;
}

void Caller::Work(const std::shared_ptr<State>& state, std::chrono::microseconds spin) {
  const auto asked = [&] { return state->begun != state->returned; };
  while (true) {
    SpinFor(spin, asked);
    std::unique_lock<std::mutex> lock(state->mutex);
    state->changed.wait(lock, [&] { return asked() || state->ends; });
    if (!asked()) return;
    const std::function<void()> call = std::exchange(state->call, nullptr);
    lock.unlock();
    call();
    lock.lock();
    ++state->returned;
    lock.unlock();
    state->changed.notify_all();
  }
}

}  // namespace tvm_stretch::dsp
