// A session with one DSP: the way to it (transport.h), and a thread that communicates with it.
// Callers queue a Job and go on; with an empty queue the thread spins for a while, and then sleeps.
// A caller that has nothing else to do communicates itself, unless the DSP has to be started.
//
// A DSP that ends, gives a wrong answer, or exceeds its deadline is killed, and the job in progress
// fails. The next job starts the DSP again: at once after the first failure, after growing pauses
// if it keeps failing.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "code.h"
#include "cores.h"
#include "image.h"
#include "process.h"
#include "processor.h"
#include "spin.h"
#include "transport.h"

namespace tvm_stretch::dsp {

class Session;

// A task for the thread that communicates.
class Job {
 public:
  virtual ~Job() = default;
  virtual bool IsReady() const = 0;            // under the session's mutex
  virtual void Execute(Session* session) = 0;  // while nothing else communicates
};

// The result of running a region.
struct Reply {
  uint64_t packets = 0;
  uint64_t nanoseconds = 0;
  std::vector<DspSpan> spans;  // of the region's nodes, if it was traced
};

class Session {
 public:
  // Starts the DSP in the background. All of the program outlives this.
  Session(const CodeSpec& code, const Image& image, const SharedBlock& block,
          const SharedBlock& weights);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Any thread. Jobs run in order, each when it is ready.
  void Push(Job* job);
  void Notify();  // the first job may be ready now
  // The only job of a run: executes it on this thread if the DSP runs, else as Push().
  void ExecuteHere(Job* job);
  std::mutex& mutex() { return mutex_; }
  std::chrono::microseconds spin() const { return code_.spin; }

  // In a job: runs a region. Throws DeviceError after killing the DSP.
  Reply Invoke(uint32_t region, bool traced);

  // Records the overhead of a region for Health(): the time until the thread took it, and all time
  // that was not computing. A `launch_ns` below 0 is not known yet.
  void NoteHandover(int64_t launch_ns, int64_t handover_ns);

  // Whether a DSP runs, or the next job would start the failed one again.
  bool MayTryAgain() const;

  // The thread stays on these cores, unless the environment sets its cores; any thread. Without
  // any it stays on a phone's little cores, because it would take the CPU's kernels a big one.
  void SetAffinity(const Cores& cores) {
    if (cores_.empty()) affinity_.Set(cores.empty() ? LittleCores(allowed_) : cores);
  }

  // The state of the DSP as JSON; any thread.
  std::string Health() const;

 private:
  using Clock = Transport::Clock;
  enum class State { kStarting, kRunning, kFailed, kStopped };

  void Work();
  Job* AwaitJob();
  Job* TakeJob(bool* stop);
  void Idle(uint32_t seen);
  int EndFile();
  void LookAfter();
  void EnsureRunning();
  void Start();
  DspAnswer Ask(DspOperation operation, uint32_t region, bool traced, Clock::duration deadline);
  [[noreturn]] void Fail(const std::string& reason);
  void Stop();
  void Note(State state);

  const CodeSpec& code_;
  const Image& image_;
  std::atomic<bool> stop_{false};
  const DspSetup setup_;
  const Cores cores_;    // by the environment
  const Cores allowed_;  // of its creator
  File alarm_;           // an eventfd: wakes the thread

  std::mutex talk_mutex_;                 // held while communicating; guards the next member
  std::unique_ptr<Transport> transport_;  // started by the thread, with which a process would end

  std::mutex mutex_;  // guards the queue, and readiness of jobs
  std::deque<Job*> queue_;
  std::atomic<uint32_t> changes_{0};  // of the guarded members
  std::atomic<bool> sleeps_{false};

  mutable std::mutex health_mutex_;  // guards the rest
  State state_ = State::kStarting;
  pid_t pid_ = -1;
  int64_t starts_ = 0, failures_ = 0, regions_ = 0;
  int failures_in_a_row_ = 0;
  uint64_t packets_ = 0;
  int64_t launch_ns_ = 0, handover_ns_ = 0;
  std::string last_failure_;
  Clock::time_point next_try_;

  ThreadCores affinity_;
  std::thread thread_;  // last: it uses the above
};

}  // namespace tvm_stretch::dsp
