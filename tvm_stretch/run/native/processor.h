// How the executor runs regions on a processor: one interface for the CPU, for devices with a queue
// of commands (OpenCL) and for calls that block a thread (a DSP with remote procedure calls).
//
// Three classes with different lifetimes:
//
//   ProcessorProgram   one per loaded model: code is built, weights are uploaded; shared, immutable
//   Processor          one per instance of the model: has that instance's memory
//   Task               one per region of the instance: arguments are bound, runs once per run
//
// A run is, on the calling thread:
//
//   Reset(traced)      of every task
//   Start()            of every task but the CPU's, in the order of the regions: enqueued ahead
//   Start()            of the CPU's tasks, in their order: each waits for its `after`, then runs
//   Wait()                 of every task
//
// so no processor delays the launch of another's regions.
//
// A new kind of processor is a separate shared library that calls RegisterProcessor() while it is
// loaded: tvm_stretch/run/native_processor.py compiles and loads it, the package contains the
// headers, and tvm_stretch/run/testing/fake_processor.cc is one.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

struct ExternalMemory;

// A mapping that another process or device can share: it holds all memory of an instance that more
// than one processor accesses (arena, inputs, outputs), each part at a multiple of `kPageBytes`.
struct SharedBlock {
  char* data = nullptr;
  size_t bytes = 0;                   // a multiple of kPageBytes
  int fd = -1;                        // -1: one process and device alone can use it
  std::shared_ptr<char> from_device;  // result of AllocateBlock, if it was used
};

// The start of each memory of the graph.
struct MemoryMap {
  char* arena = nullptr;
  char* constant = nullptr;
  char* prepared = nullptr;
  std::vector<char*> inputs;
  std::vector<char*> outputs;
  SharedBlock block;
};

// The address of the tensor's first byte; null if the map lacks its memory.
TVM_STRETCH_API char* AddressOf(const MemoryMap& memory, const TensorSpec& tensor);

// A span of a region's time. Times are nanoseconds of std::chrono::steady_clock.
struct Span {
  enum class Kind { kKernel, kReceive, kSend, kWait };
  Kind kind;
  int64_t id;        // kernel: node; receive, send: tensor; wait: the region, or -1 for several
  std::string name;  // of the node or tensor; may add details, such as the entry of a program
  int64_t start;
  int64_t end;
  int64_t queued = 0;  // when the host enqueued and submitted it; 0: not known
  int64_t submitted = 0;
  int64_t packets = 0;  // executed by a DSP; 0 on processors that do not count packets
};

// The steady clock's nanoseconds.
TVM_STRETCH_API int64_t Now();

// The result of a task; empty if it succeeded.
using Failure = std::optional<ffi::Error>;

// The error of tasks that were cancelled before they began.
TVM_STRETCH_API ffi::Error CancelledError();
TVM_STRETCH_API bool IsCancelled(const ffi::Error& error);

// The error of missing host memory.
TVM_STRETCH_API ffi::Error NoMemoryError();

// Calls `action`, and returns its exception as a failure.
template <typename Action>
Failure Attempt(const Action& action) {
  try {
    action();
    return std::nullopt;
  } catch (const ffi::Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return NoMemoryError();
  } catch (const std::exception& error) {
    return ffi::Error("RuntimeError", error.what(), "");
  }
}

// One region bound to memory.
class TVM_STRETCH_API Task {
 public:
  using Listener = std::function<void(const Failure&)>;

  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Before each run; no task is running then. Overrides call this one.
  virtual void Reset(bool traced);

  // Returns at once and never throws; only the CPU's tasks run inside of it. The task begins when
  // the earlier tasks of its processor and all in `after` are complete, which some may be already.
  // If one of them failed, the task never begins and fails with the same error.
  virtual void Start() = 0;

  // Start() of a run's only task: its caller would only wait, so it may compute inside of this.
  virtual void StartAlone() { Start(); }

  // Returns when the task is complete or has failed; may be called by any number of threads.
  virtual const Failure& Wait();

  // A task that has not begun fails with CancelledError() instead; any thread, any time.
  virtual void Cancel() = 0;

  // The spans of the last traced run.
  virtual std::vector<Span> Spans() const { return {}; }

  // The listener is called once per run, by the thread that completes the task and before any
  // Wait() returns, so it must be quick. To be set only while binding.
  void OnComplete(Listener listener) { listeners_.push_back(std::move(listener)); }

 protected:
  // Implementations call this exactly once per run, on any thread.
  void Complete(Failure failure);

  // Whether Wait() would return at once; any thread.
  bool is_complete() const { return is_complete_; }

  // Whether completion has to be signalled without a Wait().
  bool has_listeners() const { return !listeners_.empty(); }

 private:
  std::vector<Listener> listeners_;
  std::mutex mutex_;  // guards the members below; the first may be read without it
  std::condition_variable completed_;
  std::atomic<bool> is_complete_{false};
  Failure failure_;
};

// One processor of one instance. Outlives its tasks.
class TVM_STRETCH_API Processor {
 public:
  virtual ~Processor() = default;

  // Later calls of Bind are for another plan, whose regions never run together with earlier ones.
  virtual void BeginPlan() = 0;

  // Called once for each of the processor's regions, in their order, when the instance is made.
  // `after` are the tasks of the regions with these ids; they outlive the new task.
  virtual std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) = 0;

  // Between runs: its regions read this input from external memory, or from the instance's own
  // again (null). False, or an exception, if they cannot: the instance's own is bound then.
  virtual bool BindInput(size_t /*input*/, const ExternalMemory* /*memory*/) { return false; }

  // Whether it accesses the host's memory itself, also while the CPU does, with the same atomics.
  virtual bool SharesMemory() const { return false; }

  // Between runs, after one of its regions failed: whether the next run may use it again.
  virtual bool MayTryAgain() const { return false; }

  // Between runs, after a failed or cancelled one: makes all memory usable by the host again.
  virtual void AfterFailure() {}

  // Its threads stay on these cores from now on; without cores, they get back their first affinity.
  virtual void SetAffinity(const std::vector<int>&) {}

  // The state of the processor as a JSON object; may be empty. Any thread.
  virtual std::string Health() const { return ""; }
};

// The part of a processor that all instances of a model share. Const methods are thread-safe.
class TVM_STRETCH_API ProcessorProgram {
 public:
  virtual ~ProcessorProgram() = default;

  // `memory` outlives the processor and is complete; the ports' pointers never change.
  virtual std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const = 0;

  // A zeroed block that this processor and the host share without copies; without data if it has no
  // such memory, or can use any memory. Where the graph has `several` devices, the block needs a
  // file descriptor, through which the others use it.
  virtual SharedBlock AllocateBlock(size_t /*bytes*/, bool /*several*/) const { return {}; }

  // The device, for messages; empty if the processor's name says enough.
  virtual std::string description() const { return ""; }

  // Cores of the host on which the processor's own threads run: the CPU's kernels keep off them.
  virtual std::vector<int> cores() const { return {}; }
};

// The arguments for a processor when a model is loaded. `graph` and weights outlive the program.
struct ProcessorContext {
  const GraphSpec& graph;
  size_t index;              // position among the graph's processors
  const MemoryMap& weights;  // only `constant` and `prepared`; already prepared
  ffi::Module code;          // compiled for this processor
  ffi::Module host_code;     // the library of the CPU's kernels
};

using ProcessorFactory =
    std::function<std::unique_ptr<ProcessorProgram>(const ProcessorContext& context)>;

// Registers a kind of processor; called while a library is loaded, where an exception would end the
// process. So a kind stays with the first library that registers it, and `load_processor` refuses
// the second.
TVM_STRETCH_API void RegisterProcessor(const std::string& kind, ProcessorFactory factory);

// Throws ValueError if no factory is registered for this kind.
std::unique_ptr<ProcessorProgram> CreateProcessorProgram(const ProcessorContext& context);

}  // namespace tvm_stretch
