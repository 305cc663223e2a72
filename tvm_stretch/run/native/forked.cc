#include "forked.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "cores.h"

namespace tvm_stretch {
namespace {

const pid_t loaded_in = getpid();

class Helper {
 public:
  Helper() {
    std::thread([this] { Work(); }).detach();
  }

  void Do(const std::function<void()>& action) {
    cores_ = AllowedCores();
    std::exception_ptr thrown;
    const std::function<void()> caught = [&] {
      try {
        action();
      } catch (...) {
        thrown = std::current_exception();
      }
    };
    std::unique_lock<std::mutex> lock(mutex_);
    action_ = &caught;
    changed_.notify_all();
    changed_.wait(lock, [this] { return action_ == nullptr; });
    if (thrown) std::rethrow_exception(thrown);
  }

 private:
  [[noreturn]] void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return action_ != nullptr; });
      const CoresScope scope(cores_);  // its caller's affinity
      (*action_)();
      action_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  const std::function<void()>* action_ = nullptr;  // waiting or in progress
  Cores cores_;
};

}  // namespace

bool IsForkedThread() {
  const pid_t process = getpid();
  return process != loaded_in && static_cast<pid_t>(syscall(SYS_gettid)) == process;
}

void OnThreadOfThisProcess(const std::function<void()>& action) {
  // Never destroyed, because its thread lives until the process ends. A fork of the fork has
  // another.
  static Helper* helper = nullptr;
  static pid_t process = 0;
  if (process != getpid()) helper = new Helper();
  process = getpid();
  helper->Do(action);
}

}  // namespace tvm_stretch
