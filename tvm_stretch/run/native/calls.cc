#include "calls.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "announced_runs.h"
#include "cores.h"
#include "packed.h"
#include "processor.h"

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

constexpr std::chrono::seconds kLongestWait{2};  // for a kernel that is in progress
constexpr std::chrono::milliseconds kPause{1};
// A thread that has returned from a call may still wait for the interpreter's lock.
constexpr int64_t kReturning = 100'000'000;  // ns

// A thread that has made calls.
struct Caller {
  Caller();
  ~Caller();

  std::atomic<int> depth{0};  // nested calls in progress
  std::atomic<bool> stays{false};
  std::atomic<int64_t> returned{0};  // when the last call returned
};

struct Callers {
  std::mutex mutex;  // guards the members below
  std::set<Caller*> all;
};

Callers& AllCallers() {
  static Callers& callers = *new Callers();
  return callers;
}

Caller::Caller() {
  std::lock_guard<std::mutex> lock(AllCallers().mutex);
  AllCallers().all.insert(this);
}

Caller::~Caller() {
  std::lock_guard<std::mutex> lock(AllCallers().mutex);
  AllCallers().all.erase(this);
}

Caller& ThisCaller() {
  thread_local Caller caller;
  return caller;
}

std::atomic<Caller*> ender{nullptr};

void StayIfEnding(Caller* caller) {
  if (ender == nullptr || ender == caller) return;
  caller->stays = true;
  for (;;) pause();
}

bool IsAway(const Caller* caller) {
  if (caller->stays || caller == ender) return true;
  return caller->depth == 0 && Now() - caller->returned > kReturning;
}

bool AreAllAway() {
  std::lock_guard<std::mutex> lock(AllCallers().mutex);
  return std::all_of(AllCallers().all.begin(), AllCallers().all.end(), IsAway);
}

// A forked child keeps only the calling thread.
void OnlyThisThread() {
  Caller& caller = ThisCaller();
  AllCallers().all = {&caller};
  AllCallers().mutex.unlock();
}

[[maybe_unused]] const int at_fork = pthread_atfork(
    [] {
      ThisCaller();
      AllCallers().mutex.lock();
    },
    [] { AllCallers().mutex.unlock(); }, OnlyThisThread);

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

CallScope::CallScope() {
  Caller& caller = ThisCaller();
  ++caller.depth;
  StayIfEnding(&caller);
}

CallScope::~CallScope() {
  Caller& caller = ThisCaller();
  caller.returned = Now();
  --caller.depth;
  StayIfEnding(&caller);
}

void EndCalls() {
  ender = &ThisCaller();
  CancelAllRuns();
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!AreAllAway() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def_packed("tvm_stretch.end_calls", Packed(EndCalls));
}

}  // namespace tvm_stretch
