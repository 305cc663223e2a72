// What the mock driver's functions share: scripts, objects, and threads that execute commands.
#ifndef TVM_STRETCH_TESTS_MOCK_OPENCL_H_
#define TVM_STRETCH_TESTS_MOCK_OPENCL_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "targets/opencl/native/cl.h"

namespace tvm_stretch::opencl {

constexpr cl_int CL_INVALID_VALUE = -30;
constexpr cl_int CL_QUEUED = 3;

// Whether the word, with spaces around it, stands in $MOCK_OPENCL.
inline bool Wants(const char* word) {
  const char* all = std::getenv("MOCK_OPENCL");
  return all != nullptr && (" " + std::string(all) + " ").find(word) != std::string::npos;
}

// Failures to come. Looking for one orders nothing between threads, as in a real driver: else no
// race of the runtime would be found.
class Script {
 public:
  static Script& Get() {
    static Script& script = *new Script();
    return script;
  }
  void Add(const std::string& what, int skip, cl_int code) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_[what] = {skip, code};
    is_empty_ = false;
  }
  void Clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.clear();
    is_empty_ = true;
  }
  cl_int Next(const char* what) {
    if (is_empty_.load(std::memory_order_relaxed)) return CL_SUCCESS;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = entries_.find(what);
    if (found == entries_.end() || found->second.first-- > 0) return CL_SUCCESS;
    const cl_int code = found->second.second;
    entries_.erase(found);
    return code;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::pair<int, cl_int>> entries_;  // good calls before it, and the code
  std::atomic<bool> is_empty_{true};
};

inline std::atomic<int> live{0};  // objects that are not released

struct Object {
  Object() { live.fetch_add(1, std::memory_order_relaxed); }
  virtual ~Object() { live.fetch_sub(1, std::memory_order_relaxed); }
  void Retain() { references.fetch_add(1, std::memory_order_relaxed); }
  void Release() {
    if (--references == 0) delete this;
  }
  std::atomic<int> references{1};
};

// Keeps an object alive for a command.
template <typename T>
class Ref {
 public:
  explicit Ref(T* object) : object_(object) { object_->Retain(); }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref& operator=(const Ref&) = delete;
  ~Ref() { object_->Release(); }
  T* operator->() const { return object_; }
  T* get() const { return object_; }

 private:
  T* object_;
};

// Executes commands one after the other.
class Worker {
 public:
  Worker() : thread_([this] { Loop(); }) {}
  ~Worker() {
    Push(nullptr);
    thread_.join();
  }
  void Push(std::function<void()> command) {
    std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
    wake_.notify_one();
  }

 private:
  void Loop() {
    for (;;) {
      std::function<void()> command;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !commands_.empty(); });
        command = std::move(commands_.front());
        commands_.pop_front();
      }
      if (command == nullptr) return;
      command();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> commands_;
  std::thread thread_;
};

struct _cl_platform_id {};
struct _cl_device_id {};

struct _cl_context {  // the runtime keeps contexts for ever
  std::atomic<cl_int> lost{CL_SUCCESS};
};

struct _cl_mem : Object {
  _cl_mem(size_t size, char* host, bool is_alias) : host(host) {
    if (!is_alias) own.resize(size);
    if (!is_alias && host != nullptr) std::memcpy(own.data(), host, size);
    data = is_alias ? host : own.data();
  }
  // Of the driver: what the host sees when it is mapped is what the device saw, and the reverse.
  explicit _cl_mem(size_t size) : own(size), view(new (std::align_val_t(64)) char[size]) {
    host = view.get();
    data = own.data();
  }
  // An image, which views a buffer.
  explicit _cl_mem(_cl_mem* viewed) : viewed(viewed), host(viewed->host), data(viewed->data) {
    viewed->Retain();
  }
  ~_cl_mem() override {
    if (viewed != nullptr) viewed->Release();
  }
  cl_int Map(cl_bitfield flags, size_t offset, size_t bytes);
  cl_int Unmap(size_t offset);
  // Whether kernels may use these bytes: if nobody has mapped them, or only to read what they read.
  bool IsDevices(const char* start, size_t bytes, bool writes);

  struct FreeView {
    void operator()(char* start) const { operator delete[](start, std::align_val_t(64)); }
  };
  struct Mapping {
    size_t bytes;
    bool writes;
  };
  _cl_mem* viewed = nullptr;
  bool is_imported = false;          // memory of others
  std::atomic<bool> is_away{false};  // whether others have it now
  char* host;
  char* data;  // what kernels see
  std::vector<char> own;
  std::unique_ptr<char[], FreeView> view;
  std::mutex mutex;
  std::map<size_t, Mapping> mappings;  // by their offsets; guarded by `mutex`
};

struct _cl_program : Object {
  std::string source;
};

struct _cl_kernel : Object {
  std::string name;
  bool has_bell = false;
  std::vector<std::vector<char>> args;
};

struct _cl_event : Object {
  void Finish(cl_int result) {
    std::vector<std::function<void(cl_int)>> calls;
    {
      std::lock_guard<std::mutex> lock(mutex);
      status = result;
      calls.swap(callbacks);
      done.notify_all();
    }
    for (auto& call : calls) call(result);
  }
  std::mutex mutex;  // guards what follows
  std::condition_variable done;
  cl_int status = CL_QUEUED;
  cl_ulong queued = 0, start = 0, end = 0;
  std::vector<std::function<void(cl_int)>> callbacks;
};

// What has failed takes along all commands that stand behind it at that time.
struct QueueState {
  std::atomic<int64_t> enqueued{0};
  std::atomic<int64_t> failed{0};  // the commands before this one
  std::atomic<cl_int> code{CL_SUCCESS};
};

struct _cl_command_queue : Object {
  ~_cl_command_queue() override {
    if (owns_worker) delete worker;
  }
  _cl_context* context;
  Worker* worker;
  bool owns_worker;
  std::shared_ptr<QueueState> state = std::make_shared<QueueState>();
};

inline cl_ulong NowTicks() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<cl_ulong>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

inline cl_int WaitFor(cl_event event) {
  std::unique_lock<std::mutex> lock(event->mutex);
  event->done.wait(lock, [&] { return event->status <= CL_COMPLETE; });
  return event->status;
}

// Enqueues an action that returns how it went, once the events of `after` are complete.
inline cl_int EnqueueAction(const char* what, cl_command_queue queue, cl_uint count,
                            const cl_event* events, cl_event* out, std::function<cl_int()> work) {
  if (cl_int code = Script::Get().Next(what)) return code;
  if (cl_int code = queue->context->lost) return code;
  std::vector<Ref<_cl_event>> after;
  for (cl_uint i = 0; i < count; ++i) after.emplace_back(events[i]);
  auto action = [after = std::move(after), work = std::move(work)] {
    for (const Ref<_cl_event>& one : after) {
      if (WaitFor(one.get()) < CL_COMPLETE) return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
    }
    return work();
  };
  auto event = new _cl_event();
  event->queued = NowTicks();
  if (out != nullptr) {
    event->Retain();
    *out = event;
  }
  _cl_context* context = queue->context;
  queue->worker->Push([=, state = queue->state, number = queue->state->enqueued++] {
    const cl_ulong start = NowTicks();
    cl_int result = number < state->failed ? state->code.load() : context->lost.load();
    if (result == CL_SUCCESS) result = action();
    const bool is_lost = result == CL_NV_ILLEGAL_BUFFER_ACCESS || result == CL_DEVICE_NOT_AVAILABLE;
    if (is_lost) context->lost = result;
    if (result != CL_SUCCESS && number >= state->failed) {
      state->code = result;
      state->failed = state->enqueued.load();
    }
    {
      std::lock_guard<std::mutex> lock(event->mutex);
      event->start = start;
      event->end = NowTicks();
    }
    event->Finish(result);
    event->Release();
  });
  return CL_SUCCESS;
}

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_TESTS_MOCK_OPENCL_H_
