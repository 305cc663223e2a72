// How the executor runs regions on a processor: one interface for the CPU, for devices with a queue
// of commands (OpenCL) and for calls that block a thread (a DSP behind a remote procedure call).
//
// Three steps, each with its own life time:
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
//   here Wait()             of every task
//
// so nothing that one processor does delays the launch of another's regions.
//
// A new kind of processor is a shared library of its own that calls RegisterProcessor() while it is
// loaded: tvm_stretch/runtime/native_processor.py compiles and loads it, this header and those that
// it needs come with the package, and tests/native/fake_processor.cc is one.
#ifndef TVM_STRETCH_PROCESSOR_H_
#define TVM_STRETCH_PROCESSOR_H_

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

// A mapping that another process or device can share: all memory of an instance that more than one
// processor touches (arena, inputs, outputs) lies in it, each part at a multiple of `kPageBytes`.
struct SharedBlock {
  char* data = nullptr;
  size_t bytes = 0;  // a multiple of kPageBytes
  int fd = -1;       // -1: nothing is shared with others, or the device itself allocated it
  std::shared_ptr<char> from_device;  // what AllocateBlock returned, if it is that
};

// Where each of the graph's memories starts.
struct MemoryMap {
  char* arena = nullptr;
  char* constant = nullptr;
  char* prepared = nullptr;
  std::vector<char*> inputs;
  std::vector<char*> outputs;
  SharedBlock block;
};

// Where the tensor's own bytes are; null if that memory is not in the map.
TVM_STRETCH_API char* AddressOf(const MemoryMap& memory, const TensorSpec& tensor);

// Something that a region spent time on. Times are nanoseconds of std::chrono::steady_clock.
struct Span {
  enum class Kind { kKernel, kReceive, kSend, kWait };
  Kind kind;
  int64_t id;        // kernel: node; receive, send: tensor; wait: the region, or -1 for several
  std::string name;  // of the node or tensor; may say more, such as the entry of a program
  int64_t start;
  int64_t end;
  int64_t queued = 0;  // when the host enqueued and submitted it; 0: not known
  int64_t submitted = 0;
  int64_t packets = 0;  // that a DSP executed, where somebody counts them
};

// The steady clock's nanoseconds.
TVM_STRETCH_API int64_t Now();

// How a task ended: nothing says that it went well.
using Failure = std::optional<ffi::Error>;

// The error of tasks that were cancelled before they began.
TVM_STRETCH_API ffi::Error CancelledError();
TVM_STRETCH_API bool IsCancelled(const ffi::Error& error);

// The error of what lacks memory of the host.
TVM_STRETCH_API ffi::Error NoMemoryError();

// Calls `action`; what it throws is the failure.
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

  // Returns at once and never throws (the CPU's tasks run here, though). The task begins when the
  // earlier tasks of its processor and all in `after` are complete; if one of these failed, it
  // never begins and fails with the same error. Some in `after` may be complete already.
  virtual void Start() = 0;

  // Returns when the task is complete or has failed; may be called by any number of threads.
  virtual const Failure& Wait();

  // A task that has not begun never does and fails with CancelledError(); any thread, any time.
  virtual void Cancel() = 0;

  // What happened in the last traced run.
  virtual std::vector<Span> Spans() const { return {}; }

  // Called once per run, by the thread that completes the task and before any Wait() returns, so
  // it must be quick. To be set while binding only.
  void OnComplete(Listener listener) { listeners_.push_back(std::move(listener)); }

 protected:
  // Implementations call this exactly once per run. It may come on any thread.
  void Complete(Failure failure);

  // Whether Wait() would return at once; any thread.
  bool is_complete() const { return is_complete_; }

  // Whether somebody wants to know of completion without waiting for it.
  bool has_listeners() const { return !listeners_.empty(); }

 private:
  std::vector<Listener> listeners_;
  std::mutex mutex_;  // guards what follows; the first of it may be read without
  std::condition_variable completed_;
  std::atomic<bool> is_complete_{false};
  Failure failure_;
};

// One processor of one instance. Outlives its tasks.
class TVM_STRETCH_API Processor {
 public:
  virtual ~Processor() = default;

  // The regions that are bound from now on are those of another plan: they never run together with
  // the ones before.
  virtual void BeginPlan() = 0;

  // Called once for each of the processor's regions, in their order, when the instance is made.
  // `after` are the tasks of the regions with these ids; they outlive the new task.
  virtual std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) = 0;

  // Between runs, after one of its regions failed: whether the next run may rely on it again.
  virtual bool MayTryAgain() const { return false; }

  // Between runs, after one that failed or was cancelled: the host may use all memory again.
  virtual void AfterFailure() {}

  // Any threads of ours that it has stay on these cores from now on; on none: wherever they began.
  virtual void SetAffinity(const std::vector<int>&) {}

  // How the processor is, as a JSON object; empty if it has nothing to say. Any thread.
  virtual std::string Health() const { return ""; }
};

// What all instances of a model share of one processor. Const methods may run on several threads.
class TVM_STRETCH_API ProcessorProgram {
 public:
  virtual ~ProcessorProgram() = default;

  // `memory` outlives the processor; all of it is there, the ports' pointers never change.
  virtual std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const = 0;

  // A zeroed block that this processor and the host see without copies; null if it has no memory of
  // that kind, or can take any. It has no file descriptor, so only the one device of a graph is
  // asked: with others, all share a mapping.
  virtual std::shared_ptr<char> AllocateBlock(size_t) const { return nullptr; }

  // The device, for messages; empty if there is nothing to say beyond the processor's name.
  virtual std::string description() const { return ""; }

  // Cores of the host on which the processor's own threads run: the CPU's kernels keep off them.
  virtual std::vector<int> cores() const { return {}; }
};

// What a processor gets when a model is loaded. `graph` and the weights outlive the program.
struct ProcessorContext {
  const GraphSpec& graph;
  size_t index;              // which of the graph's processors this is
  const MemoryMap& weights;  // only `constant` and `prepared`; already prepared
  ffi::Module code;          // what compiling made for this processor
  ffi::Module host_code;     // the library of the CPU's kernels
};

using ProcessorFactory =
    std::function<std::unique_ptr<ProcessorProgram>(const ProcessorContext& context)>;

// Makes processors of this kind known; called while a library is loaded.
TVM_STRETCH_API void RegisterProcessor(const std::string& kind, ProcessorFactory factory);

// Throws ValueError if nothing drives processors of this kind.
std::unique_ptr<ProcessorProgram> CreateProcessorProgram(const ProcessorContext& context);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PROCESSOR_H_
