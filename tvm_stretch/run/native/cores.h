// Cores of the host, and the affinity of threads.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <mutex>
#include <string>
#include <vector>

namespace tvm_stretch {

// TVM's thread pool of the calling thread: how many workers a run uses, and on which cores.

// Called before kernels run: `threads` threads share the cores that the calling thread may use now,
// and workers keep off its present core. A worker that is woken on the core of its caller often
// stays there, and then the two take turns: the kernels are as slow as with one thread. One thread:
// the kernels are serial and the pool is never touched.
void UseThreads(int threads);

// Numbers of cores, as the operating system counts them.
using Cores = std::vector<int>;

// The calling thread, as the operating system counts it.
pid_t ThisThread();

// Parses "0,4-7"; "" gives no cores. Throws ValueError that names `field`.
Cores ParseCores(const std::string& text, const std::string& field);

// The same, of cores that the calling thread may use; throws ValueError if it may use none of them.
Cores ParseUsableCores(const std::string& text, const std::string& field);

// The cores that the calling thread may use.
Cores AllowedCores();

// `cores` without those in `taken`.
Cores Without(const Cores& cores, const Cores& taken);

// The cores of smallest capacity among `cores`, as Linux tells on phones; none if all are equal.
Cores LittleCores(const Cores& cores, const std::string& folder = "/sys/devices/system/cpu");

// While it lives, the calling thread stays on `cores`; does nothing if there are none, or none that
// the thread may use.
class CoresScope {
 public:
  explicit CoresScope(const Cores& cores);
  ~CoresScope();
  CoresScope(const CoresScope&) = delete;
  CoresScope& operator=(const CoresScope&) = delete;

  bool active() const { return active_; }

 private:
  bool active_ = false;
  cpu_set_t before_;
};

// The affinity of a thread of ours that serves another processor.
class ThreadCores {
 public:
  // Called on that thread before anything else.
  void Begin();
  // Any thread, at any time; without cores, the thread gets back its first affinity.
  void Set(const Cores& cores);

 private:
  void Apply() const;

  std::mutex mutex_;  // guards what follows
  pid_t thread_ = 0;  // 0 until it has begun
  cpu_set_t before_;  // of fixed size, because a thread that begins must not fail
  Cores wanted_;
};

constexpr int kNoCore = -1;

// Threads that keep off one core: that of a thread which waits for them.
class ApartThreads {
 public:
  ApartThreads() = default;
  explicit ApartThreads(const std::vector<pid_t>& threads);

  // The threads may use this core instead of the one before no more. Where a thread may use no more
  // cores than there are threads, it may use this one too.
  void KeepOff(int core);
  int avoided() const { return avoided_; }

 private:
  struct Apart {
    pid_t thread;
    cpu_set_t given;  // its affinity, as somebody else decided
    cpu_set_t ours;   // the same without the core; empty at first
  };

  std::vector<Apart> threads_;
  int avoided_ = kNoCore;
};

}  // namespace tvm_stretch
