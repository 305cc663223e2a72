#include "task.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "cores.h"
#include "submitter.h"

namespace tvm_stretch::opencl {
namespace {

// Polling is cheaper than sleeping for short waits, unless the driver needs the only core.
constexpr int64_t kPollNanoseconds = 30'000;

// Polling memory costs the driver nothing, so it may last longer; it yields the core meanwhile.
constexpr int64_t kBusyNanoseconds = 20'000;
constexpr int64_t kCountNanoseconds = 5'000'000;
constexpr int kLooks = 64;  // between two readings of the clock

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

bool MayPoll() { return AllowedCores().size() > 1; }

cl_int StatusOf(cl_event event) {
  cl_int status = CL_COMPLETE;
  cl_int code =
      CL().GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, nullptr);
  return code == CL_SUCCESS ? status : code;
}

int32_t CountWorkItems(const std::vector<Command>& commands) {
  size_t count = 0;
  for (const Command& command : commands) {
    const auto& size = command.global_size;
    if (command.kind == Command::Kind::kKernel) count += size[0] * size[1] * size[2];
  }
  return static_cast<int32_t>(count);  // overflows like the kernels' counter
}

}  // namespace

Bell::Bell(const Device& device) : memory_(std::make_unique<Memory>()) {
  static_assert(sizeof(Memory) == 32 * sizeof(int32_t));
  cl_int code = CL_SUCCESS;
  buffer_ = Buffer(CL().CreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                     sizeof(Memory), memory_.get(), &code));
  Check(code, "clCreateBuffer");
}

void Bell::Reset(bool is_open) {
  memory_->done = 0;
  memory_->state = is_open ? kRung : kSilent;
}

void Bell::Ring() {
  int32_t silent = kSilent;
  memory_->state.compare_exchange_strong(silent, kRung);
}

Buffer CreateOpenBell(const Device& device) {
  std::vector<int32_t> contents(32);
  contents[0] = 1;
  cl_int code = CL_SUCCESS;
  Buffer buffer(CL().CreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                  contents.size() * sizeof(int32_t), contents.data(), &code));
  Check(code, "clCreateBuffer");
  return buffer;
}

OpenCLTask::OpenCLTask(Submitter* submitter, OpenCLTask* previous, const RegionSpec& region,
                       std::vector<Command> commands, const std::vector<Task*>& after, Bell* bell,
                       bool last_event_tells)
    : submitter_(submitter),
      previous_(previous),
      region_(region),
      commands_(std::move(commands)),
      num_after_(static_cast<int>(after.size())),
      bell_(bell),
      work_items_(CountWorkItems(commands_)),
      last_event_tells_(last_event_tells || bell != nullptr) {
  events_.reserve(commands_.size() + 1);
  for (Task* task : after) {
    task->OnComplete([this](const Failure& failure) { OnDependency(failure); });
  }
}

OpenCLTask::~OpenCLTask() = default;

void OpenCLTask::Reset(bool traced) {
  Task::Reset(traced);
  if (previous_ == nullptr) submitter_->Reset(traced);
  events_.clear();
  dependency_failure_.reset();
  is_settled_ = false;
  traced_ = traced;
  is_alone_ = false;
  started_ = false;
  cancelled_ = false;
  pending_ = num_after_;
  state_ = kPending;
  may_begin_at_ = 0;
  if (bell_ != nullptr) bell_->Reset(num_after_ == 0);
}

void OpenCLTask::Start() {
  started_at_ = traced_ ? Now() : 0;
  if (previous_ == nullptr) submitter_->Begin();
  started_ = true;
  submitter_->SubmitReady();
}

void OpenCLTask::StartAlone() {
  is_alone_ = true;
  Start();
}

void OpenCLTask::OnDependency(const Failure& failure) {
  if (failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!dependency_failure_) dependency_failure_ = failure;
  }
  if (failure && bell_ != nullptr) submitter_->Forbid(this);
  if (pending_.fetch_sub(1) != 1) return;
  if (traced_) may_begin_at_ = Now();
  if (bell_ == nullptr) return submitter_->Wake();
  bell_->Ring();
  submitter_->SubmitReady();
}

void OpenCLTask::Cancel() {
  cancelled_ = true;
  bell_ != nullptr ? submitter_->Forbid(this) : submitter_->Wake();
}

bool OpenCLTask::IsReady() const {
  return started_ && (bell_ != nullptr || pending_ == 0 || cancelled_);
}

void OpenCLTask::Submit(const Queues& queues, const QueueClock* clock) {
  clock_ = clock;
  Failure failure;
  if (cancelled_) {
    failure = CancelledError();
  } else {
    std::lock_guard<std::mutex> lock(mutex_);
    failure = dependency_failure_;
  }
  if (!failure && previous_ != nullptr && previous_->state_ == kSettled) {
    failure = previous_->Task::Wait();
  }
  if (!failure) failure = EnqueueAll(queues);
  if (failure) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      is_settled_ = true;
    }
    Complete(std::move(failure));
    state_ = kSettled;
    return;
  }
  if (has_listeners()) ListenTo(events_.back().get());
  state_ = kOnDevice;
}

Failure OpenCLTask::EnqueueAll(const Queues& queues) {
  for (size_t i = 0; i < commands_.size(); ++i) {
    const cl_int code = EnqueueOne(queues, i);
    if (code != CL_SUCCESS) {
      NoteError();  // enqueued commands still run
      return Attempt([&] { Fail(code, "enqueueing '" + commands_[i].span.name + "'"); });
    }
  }
  const cl_int code = commands_.empty() ? EnqueueMarker(queues) : CL_SUCCESS;
  if (code == CL_SUCCESS) return std::nullopt;
  NoteError();
  return Attempt([&] { Fail(code, "submitting region '" + region_.name + "'"); });
}

// Enqueues a command, and flushes its queue after the last one of a lane: what waits in another
// queue for an event of this one would else wait for ever.
cl_int OpenCLTask::EnqueueOne(const Queues& queues, size_t index) {
  const Command& command = commands_[index];
  const bool is_last = IsLastOfLane(index);
  const bool wants_event = traced_ || !last_event_tells_ || is_last;
  cl_event event = nullptr;
  const cl_int code = Enqueue(command, queues, After(index), wants_event ? &event : nullptr);
  if (event != nullptr) events_.emplace_back(event);
  return code == CL_SUCCESS && is_last ? CL().Flush(queues.at(command.lane)) : code;
}

cl_int OpenCLTask::EnqueueMarker(const Queues& queues) {
  const std::vector<cl_event> after = After(0);
  cl_command_queue const queue = queues.at(Lane::kKernels);
  cl_event event = nullptr;
  const cl_int code = CL().EnqueueMarkerWithWaitList(
      queue, static_cast<cl_uint>(after.size()), after.empty() ? nullptr : after.data(), &event);
  if (event != nullptr) events_.emplace_back(event);
  return code == CL_SUCCESS ? CL().Flush(queue) : code;
}

bool OpenCLTask::IsLastOfLane(size_t index) const {
  return index + 1 == commands_.size() || commands_[index + 1].lane != commands_[index].lane;
}

Lane OpenCLTask::LastLane() const {
  return commands_.empty() ? Lane::kKernels : commands_.back().lane;
}

// Events of other lanes that a command waits for: of the command before it, and, for the region's
// last command, of the region before it, so that the end of a region is also the end of all
// earlier ones.
std::vector<cl_event> OpenCLTask::After(size_t index) const {
  std::vector<cl_event> after;
  if (index > 0 && IsLastOfLane(index - 1)) after.push_back(events_.back().get());
  const bool is_last = index + 1 >= commands_.size();
  if (is_last && previous_ != nullptr && previous_->state_ == kOnDevice &&
      previous_->LastLane() != LastLane()) {
    after.push_back(previous_->events_.back().get());
  }
  return after;
}

void OpenCLTask::NoteError() {
  // Stop this region's kernels and later ones from waiting, so that draining ends.
  if (bell_ != nullptr) submitter_->Forbid(this);
  submitter_->NoteError();
}

void OpenCLTask::ListenTo(cl_event event) {
  in_callback_ = true;
  auto callback = [](cl_event, cl_int status, void* task) {
    auto self = static_cast<OpenCLTask*>(task);
    self->Settle(status);
    self->in_callback_ = false;
  };
  cl_int code = CL().SetEventCallback(event, CL_COMPLETE, callback, this);
  if (code == CL_SUCCESS) return;
  // There will be no callback, so the submitting thread waits itself.
  in_callback_ = false;
  CL().WaitForEvents(1, &event);
  Settle(StatusOf(event));
}

const Failure& OpenCLTask::Wait() {
  if (state_ == kPending) submitter_->AwaitSubmission([this] { return state_ != kPending; });
  if (!has_listeners() && state_ == kOnDevice && !is_complete()) Await();
  const Failure& failure = Task::Wait();
  while (in_callback_) std::this_thread::yield();  // the callback uses this task until it returns
  if (failure) submitter_->DrainAfterError();
  return failure;
}

void OpenCLTask::Await() {
  // A thread that polls would take the core from kernels that are the driver's threads there.
  if (bell_ != nullptr && is_alone_) return Settle(SleepUntil(events_.back().get()));
  // A traced run needs the driver's times, which come a little later.
  const bool is_done = bell_ != nullptr && AwaitCount() && !traced_;
  Settle(is_done ? CL_COMPLETE : AwaitEvent());
}

// Polls memory for a while; returns whether all work-items are done. Meanwhile it enqueues later
// commands. It also checks the event, because after an error the count is never reached.
bool OpenCLTask::AwaitCount() {
  const int64_t start = Now();
  for (int64_t waited = 0; waited < kCountNanoseconds; waited = Now() - start) {
    for (int i = 0; i < kLooks; ++i) {
      if (bell_->done() == work_items_) return true;
      Pause();
    }
    submitter_->SubmitOne();
    if (waited < kBusyNanoseconds) continue;
    sched_yield();
    if (StatusOf(events_.back().get()) <= CL_COMPLETE) return false;
  }
  return false;
}

cl_int OpenCLTask::AwaitEvent() {
  cl_event event = events_.back().get();
  static const bool may_poll = MayPoll();
  const int64_t until = Now() + kPollNanoseconds;
  cl_int status = StatusOf(event);
  while (status > CL_COMPLETE && may_poll && Now() < until) status = StatusOf(event);
  return status > CL_COMPLETE ? SleepUntil(event) : status;
}

cl_int OpenCLTask::SleepUntil(cl_event event) {
  const cl_int code = CL().WaitForEvents(1, &event);
  const cl_int status = StatusOf(event);
  return status > CL_COMPLETE ? code : status;  // else the wait itself failed
}

void OpenCLTask::Settle(cl_int status) {
  // The last command also ends after all earlier tasks. Their failure is also this task's.
  Failure failure;
  if (previous_ != nullptr) {
    if (previous_->state_ == kOnDevice)
      previous_->Settle(StatusOf(previous_->events_.back().get()));
    failure = previous_->Task::Wait();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (is_settled_) return;
  is_settled_ = true;
  Complete(failure ? std::move(failure) : OwnFailure(status));
}

// Drivers may go on after a failed command; with bells the count shows it, else each event is
// checked.
cl_int OpenCLTask::FirstError(cl_int last) const {
  for (size_t i = 0; bell_ == nullptr && i < events_.size(); ++i) {
    const cl_int status = StatusOf(events_[i].get());
    if (status < CL_COMPLETE) return status;
  }
  return last;
}

Failure OpenCLTask::OwnFailure(cl_int last) {
  const cl_int status = FirstError(last);
  if (status < CL_COMPLETE) {
    NoteError();
    return Attempt([&] { Fail(status, "running region '" + region_.name + "'"); });
  }
  if (bell_ == nullptr || bell_->done() == work_items_) return std::nullopt;
  if (dependency_failure_) return dependency_failure_;
  if (bell_->is_forbidden()) return CancelledError();
  NoteError();  // the driver reports success although kernels did not finish
  return Attempt([&] { Fail(CL_OUT_OF_RESOURCES, "running region '" + region_.name + "'"); });
}

std::vector<Span> OpenCLTask::Spans() const {
  std::vector<Span> spans, work;
  const int64_t begin = may_begin_at_;  // a kernel may have waited for its bell until then
  int64_t waits_from = started_at_;
  const bool has_times = clock_ != nullptr && events_.size() == commands_.size();
  for (size_t i = 0; has_times && i < commands_.size(); ++i) {
    Span span = commands_[i].span;
    clock_->Read(events_[i].get(), &span);
    if (bell_ != nullptr && i == 0) waits_from = std::max(waits_from, span.start);
    span.start = std::clamp(begin, span.start, span.end);
    if (commands_[i].is_traced) work.push_back(std::move(span));
  }
  if (num_after_ > 0 && waits_from < begin) {
    int64_t region = region_.after.size() == 1 ? region_.after[0] : -1;
    spans.push_back(Span{Span::Kind::kWait, region, region_.name, waits_from, begin});
  }
  spans.insert(spans.end(), work.begin(), work.end());
  return spans;
}

}  // namespace tvm_stretch::opencl
