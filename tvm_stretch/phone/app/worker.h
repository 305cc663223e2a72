// The thread of a model that makes asynchronous runs.
#ifndef TVM_STRETCH_APP_WORKER_H_
#define TVM_STRETCH_APP_WORKER_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace tvm_stretch::app {

// What it runs must not throw.
struct Job {
  std::function<void()> run;
  std::function<void()> done;  // may begin the next job, or destroy the worker
};

// Starts with the first job, so that models without asynchronous runs have no thread.
class Worker {
 public:
  ~Worker() { Finish(); }

  // Returns false if `run` of another job has not returned yet, or after Finish().
  bool Begin(Job job);

  // Waits for the job in progress, unless this is its thread. There will be no other one.
  void Finish();

 private:
  // Survives the worker if a job destroys that one.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_busy = false;
    bool is_over = false;
    Job next;
  };

  static void Work(State* state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

}  // namespace tvm_stretch::app

#endif  // TVM_STRETCH_APP_WORKER_H_
