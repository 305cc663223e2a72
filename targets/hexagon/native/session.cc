#include "session.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <tvm/ffi/extra/json.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "errors.h"
#include "memory.h"

namespace tvm_stretch::dsp {
namespace {

namespace json = ffi::json;
using std::chrono::milliseconds;

constexpr const char* kCoresVariable = "TVM_STRETCH_DSP_CPUS";
constexpr milliseconds kStartDeadline{20'000};  // an emulator on a busy machine
constexpr milliseconds kStopDeadline{200};
constexpr milliseconds kPingDeadline{2'000};
constexpr milliseconds kHeartbeat{1'000};  // between pings of an idle DSP
constexpr milliseconds kLook{10};          // interval at which a sleeping thread checks the DSP
constexpr milliseconds kFirstPause{100};
constexpr milliseconds kLongestPause{10'000};

// The pause before the next start, after this number of failures in a row.
milliseconds Pause(int failures) {
  if (failures <= 1) return milliseconds{0};
  return std::min(kLongestPause, kFirstPause * (1 << std::min(failures - 2, 10)));
}

Cores ChosenCores() {
  const char* text = std::getenv(kCoresVariable);
  if (text == nullptr) return Cores();
  Cores cores;
  try {
    cores = ParseCores(text, kCoresVariable);
  } catch (const ffi::Error& error) {
    throw ffi::Error(kInputError, error.message(), "");
  }
  if (!cores.empty() && !CoresScope(cores).active()) {
    throw ffi::Error(kInputError,
                     std::string("expected cores that this process may use for ") + kCoresVariable +
                         ", got '" + text + "'; see /proc/self/status for those it may",
                     "");
  }
  return cores;
}

void Futex(uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

uint32_t Load(uint32_t* word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
void Store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

std::string Meaning(const DspAnswer& answer, const DspMailbox& mailbox) {
  static const char* const kMeanings[] = {"",
                                          "a command that something wrote over",
                                          "a damaged program",
                                          "a tensor outside its memory",
                                          "a node without kernel or operands",
                                          "no such region",
                                          "not enough memory there",
                                          "a kernel that failed"};
  std::string text = kMeanings[answer.status];
  if (answer.status != kDspKernelFailed) return text + " (" + std::to_string(answer.detail) + ")";
  return text + ": " + std::string(mailbox.text, strnlen(mailbox.text, DSP_TEXT_BYTES));
}

}  // namespace

Session::Session(const CodeSpec& code, const Image& image, int block_fd, int weights_fd)
    : code_(code),
      image_(image),
      shared_files_{block_fd, weights_fd},
      cores_(ChosenCores()),
      allowed_(AllowedCores()),
      control_bytes_(DSP_PROGRAM_OFFSET + image.bytes.size() +
                     image.nodes.size() * sizeof(DspSpan)),
      control_file_(MemoryFile("tvm_stretch_dsp_control", control_bytes_)),
      program_file_(MemoryFile("tvm_stretch_dsp_program", code.program.size())),
      alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  void* mapped =
      mmap(nullptr, control_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, control_file_.fd(), 0);
  if (mapped == MAP_FAILED || alarm_.fd() < 0) RefuseMemory(control_bytes_);
  control_ = static_cast<char*>(mapped);
  const ssize_t written = pwrite(program_file_.fd(), code.program.data(), code.program.size(), 0);
  if (written != static_cast<ssize_t>(code.program.size())) RefuseMemory(code.program.size());
  SetAffinity({});
  thread_ = std::thread([this] {
    affinity_.Begin();
    Work();
  });
}

Session::~Session() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  Notify();
  if (thread_.joinable()) thread_.join();
  munmap(control_, control_bytes_);
}

void Session::Push(Job* job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(job);
  }
  Notify();
}

void Session::ExecuteHere(Job* job) {
  {
    std::lock_guard<std::mutex> lock(talk_mutex_);
    if (process_) return job->Execute(this);
  }
  Push(job);
}

void Session::Notify() {
  changes_.fetch_add(1);
  if (!sleeps_.load()) return;
  const uint64_t one = 1;
  (void)!write(alarm_.fd(), &one, sizeof(one));  // if it is full, the thread is awake
}

void Session::Work() {
  const CoresScope scope(cores_);  // the emulator inherits them
  Attempt([this] {                 // the first job gets the error
    std::lock_guard<std::mutex> lock(talk_mutex_);
    EnsureRunning();
  });
  while (Job* job = AwaitJob()) {
    std::lock_guard<std::mutex> lock(talk_mutex_);
    job->Execute(this);
  }
  Stop();
}

Job* Session::AwaitJob() {
  while (true) {
    const uint32_t seen = changes_.load();
    bool stop = false;
    if (Job* job = TakeJob(&stop)) return job;
    if (stop) return nullptr;
    Idle(seen);
  }
}

Job* Session::TakeJob(bool* stop) {
  std::lock_guard<std::mutex> lock(mutex_);
  *stop = stop_;
  if (stop_ || queue_.empty() || !queue_.front()->IsReady()) return nullptr;
  Job* job = queue_.front();
  queue_.pop_front();
  return job;
}

// Returns when something changed, or after an interval.
void Session::Idle(uint32_t seen) {
  const auto changed = [&] { return changes_.load() != seen; };
  if (SpinFor(code_.spin, changed)) return;
  sleeps_ = true;
  if (!changed()) {
    pollfd files[] = {{alarm_.fd(), POLLIN, 0}, {ProcessFile(), POLLIN, 0}};
    poll(files, 2, static_cast<int>(kHeartbeat.count()));
  }
  sleeps_ = false;
  uint64_t count;
  (void)!read(alarm_.fd(), &count, sizeof(count));
  if (!changed()) Attempt([this] { LookAfter(); });
}

// What becomes readable when the process ends; -1 without one. It may be closed at any time, which
// only ends a poll.
int Session::ProcessFile() {
  std::lock_guard<std::mutex> lock(talk_mutex_);
  return process_ ? process_->pidfd() : -1;
}

// Detects that an idle DSP has ended or hangs.
void Session::LookAfter() {
  std::lock_guard<std::mutex> lock(talk_mutex_);
  if (!process_) return;
  if (process_->HasEnded()) Fail(code_.noun() + " that " + process_->HowItEnded());
  if (Clock::now() - last_used_ >= kHeartbeat) Ask(kDspPing, 0, false, kPingDeadline);
}

Reply Session::Invoke(uint32_t region, bool traced) {
  EnsureRunning();
  const DspAnswer answer = Ask(kDspInvoke, region, traced, code_.deadline);
  Reply reply;
  reply.packets = answer.packets;
  reply.nanoseconds = answer.nanoseconds;
  const auto [first, count] = image_.bounds[region];
  if (traced) {
    const auto* spans =
        reinterpret_cast<const DspSpan*>(At(DSP_PROGRAM_OFFSET + image_.bytes.size()));
    reply.spans.assign(spans + first, spans + first + count);
  }
  std::lock_guard<std::mutex> lock(health_mutex_);
  ++regions_;
  packets_ += answer.packets;
  failures_in_a_row_ = 0;
  return reply;
}

void Session::EnsureRunning() {
  if (process_) return;
  if (!code_.runs_here) {
    Fail("no such processor (" + code_.device + " is another machine's)");
  }
  if (!MayTryAgain()) {
    std::lock_guard<std::mutex> lock(health_mutex_);
    throw ffi::Error(kDeviceError,
                     "expected " + code_.noun() + " that runs, got " + last_failure_ + ", " +
                         std::to_string(failures_in_a_row_) +
                         " times in a row; it is started again after a pause",
                     "");
  }
  Start();
}

void Session::Start() {
  Note(State::kStarting);
  std::memset(control_, 0, control_bytes_);
  std::memcpy(At(DSP_PROGRAM_OFFSET), image_.bytes.data(), image_.bytes.size());
  number_ = 0;
  std::vector<std::string> command = code_.emulator;
  if (!code_.server.empty()) command.push_back(OwnProgram(code_.server));
  for (const char* word : {"/proc/self/fd/3", "4", "5", "6"}) command.emplace_back(word);
  command.push_back(std::to_string(code_.spin.count()));
  // Where the environment names no cores, only the thread stays on little ones.
  const CoresScope everywhere(cores_.empty() ? allowed_ : Cores());
  try {
    process_ = std::make_unique<ServerProcess>(
        command, std::vector<int>{program_file_.fd(), control_file_.fd(), shared_files_[0],
                                  shared_files_[1]});
  } catch (const ffi::Error& error) {
    Fail(error.message());
  }
  Ask(kDspPing, 0, false, std::max<Clock::duration>(kStartDeadline, code_.deadline));
  Note(State::kRunning);
}

DspAnswer Session::Ask(DspOperation operation, uint32_t region, bool traced,
                       Clock::duration deadline) {
  DspCommand command{number_ + 1, static_cast<uint32_t>(operation), region, traced ? 1u : 0u, 0};
  command.check = DspCommandCheck(&command);
  DspCommand* const slot = &mailbox()->command;
  slot->operation = command.operation;
  slot->region = command.region;
  slot->traced = command.traced;
  slot->check = command.check;
  number_ = command.number;
  last_used_ = Clock::now();
  Store(&slot->number, number_);
  if (Load(&mailbox()->dsp_sleeps) != 0) Futex(&slot->number, FUTEX_WAKE, 1, nullptr);
  const DspAnswer answer = AwaitAnswer(number_, last_used_ + deadline);
  if (answer.number != number_ || answer.check != DspAnswerCheck(&answer) ||
      answer.status > kDspKernelFailed) {
    Fail("an answer that something wrote over");
  }
  if (answer.status != kDspOk) Fail(Meaning(answer, *mailbox()));
  last_used_ = Clock::now();
  return answer;
}

DspAnswer Session::AwaitAnswer(uint32_t number, Clock::time_point deadline) {
  uint32_t* const slot = &mailbox()->answer.number;
  const auto answered = [&] { return Load(slot) != number - 1; };
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
  if (!SpinFor(std::min(code_.spin, left), answered)) SleepUntilAnswered(number - 1, deadline);
  DspAnswer answer;
  std::memcpy(&answer, &mailbox()->answer, sizeof(answer));
  return answer;
}

void Session::SleepUntilAnswered(uint32_t before, Clock::time_point deadline) {
  uint32_t* const slot = &mailbox()->answer.number;
  const timespec look{0, static_cast<long>(std::chrono::nanoseconds(kLook).count())};
  Store(&mailbox()->host_sleeps, 1);
  while (Load(slot) == before) {
    Futex(slot, FUTEX_WAIT, before, &look);
    if (Load(slot) != before) break;
    if (process_->HasEnded()) {
      if (Load(slot) != before) break;  // it answered before it ended
      Fail(code_.noun() + " that " + process_->HowItEnded());
    }
    if (Stops()) deadline = std::min<Clock::time_point>(deadline, last_used_ + kStopDeadline);
    if (Clock::now() > deadline) Fail("no answer within the deadline");
  }
  Store(&mailbox()->host_sleeps, 0);
}

void Session::Fail(const std::string& reason) {
  process_.reset();  // unfinished work is lost
  std::string message = "expected " + code_.noun() + " that runs, got " + reason;
  {
    std::lock_guard<std::mutex> lock(health_mutex_);
    state_ = State::kFailed;
    pid_ = -1;
    ++failures_;
    last_failure_ = reason;
    next_try_ = Clock::now() + Pause(++failures_in_a_row_);
  }
  throw ffi::Error(kDeviceError, message, "");
}

void Session::Stop() {
  if (process_) Attempt([this] { Ask(kDspShutDown, 0, false, kStopDeadline); });
  process_.reset();
  Note(State::kStopped);
}

// Whether the session is closing.
bool Session::Stops() {
  std::lock_guard<std::mutex> lock(mutex_);
  return stop_;
}

void Session::Note(State state) {
  std::lock_guard<std::mutex> lock(health_mutex_);
  state_ = state;
  pid_ = process_ ? process_->pid() : -1;
  if (state == State::kRunning) ++starts_;
}

void Session::NoteHandover(int64_t launch_ns, int64_t handover_ns) {
  std::lock_guard<std::mutex> lock(health_mutex_);
  if (launch_ns >= 0) launch_ns_ = launch_ns;
  handover_ns_ = handover_ns;
}

bool Session::MayTryAgain() const {
  std::lock_guard<std::mutex> lock(health_mutex_);
  return state_ != State::kFailed || Clock::now() >= next_try_;
}

std::string Session::Health() const {
  static const char* const kStates[] = {"starting", "running", "failed", "stopped"};
  std::lock_guard<std::mutex> lock(health_mutex_);
  const auto pause = std::chrono::duration_cast<milliseconds>(next_try_ - Clock::now()).count();
  json::Object health;
  health.Set(ffi::String("state"), ffi::String(kStates[static_cast<int>(state_)]));
  health.Set(ffi::String("device"), ffi::String(code_.device));
  health.Set(ffi::String("pid"), static_cast<int64_t>(pid_));
  health.Set(ffi::String("starts"), starts_);
  health.Set(ffi::String("failures"), failures_);
  health.Set(ffi::String("last_failure"), ffi::String(last_failure_));
  health.Set(ffi::String("pause_ms"),
             state_ == State::kFailed ? std::max<int64_t>(pause, 0) : int64_t{0});
  health.Set(ffi::String("regions"), regions_);
  health.Set(ffi::String("packets"), static_cast<int64_t>(packets_));
  health.Set(ffi::String("launch_ns"), launch_ns_);
  health.Set(ffi::String("handover_ns"), handover_ns_);
  return json::Stringify(health);
}

}  // namespace tvm_stretch::dsp
