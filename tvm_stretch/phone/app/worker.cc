#include "worker.h"

#include <utility>

namespace tvm_stretch::app {

bool Worker::Begin(Job job) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->is_busy || state_->is_over) return false;
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { Work(state.get()); });
  state_->is_busy = true;
  state_->next = std::move(job);
  state_->changed.notify_all();
  return true;
}

void Worker::Finish() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_over = true;
    state_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Worker::Work(State* state) {
  while (true) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(state->mutex);
      state->changed.wait(lock, [&] { return state->next.run != nullptr || state->is_over; });
      if (state->next.run == nullptr) return;
      job = std::exchange(state->next, Job());
    }
    job.run();
    {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->is_busy = false;
    }
    job.done();
  }
}

}  // namespace tvm_stretch::app
