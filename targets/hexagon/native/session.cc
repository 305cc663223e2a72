#include "session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <tvm/ffi/extra/json.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cdsprpc.h"
#include "errors.h"
#include "memory.h"

namespace tvm_stretch::dsp {
namespace {

namespace json = ffi::json;
using std::chrono::milliseconds;

constexpr const char* kCoresVariable = "TVM_STRETCH_DSP_CPUS";
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

std::string Meaning(const DspAnswer& answer, const Transport& transport) {
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
  return text + ": " + transport.text();
}

}  // namespace

Session::Session(const CodeSpec& code, const Image& image, const SharedBlock& block,
                 const SharedBlock& weights)
    : code_(code),
      image_(image),
      setup_{code, image, block, weights, stop_},
      cores_(ChosenCores()),
      allowed_(AllowedCores()),
      alarm_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (alarm_.fd() < 0) RefuseMemory(sizeof(uint64_t));
  SetAffinity({});
  thread_ = std::thread([this] {
    affinity_.Begin();
    Work();
  });
}

Session::~Session() {
  stop_ = true;
  Notify();
  if (thread_.joinable()) thread_.join();
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
    if (transport_) return job->Execute(this);
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
    pollfd files[] = {{alarm_.fd(), POLLIN, 0}, {EndFile(), POLLIN, 0}};
    poll(files, 2, static_cast<int>(Transport::kHeartbeat.count()));
  }
  sleeps_ = false;
  uint64_t count;
  (void)!read(alarm_.fd(), &count, sizeof(count));
  if (!changed()) Attempt([this] { LookAfter(); });
}

// What becomes readable when the process ends; -1 without one. It may be closed at any time, which
// only ends a poll.
int Session::EndFile() {
  std::lock_guard<std::mutex> lock(talk_mutex_);
  return transport_ ? transport_->pidfd() : -1;
}

void Session::LookAfter() {
  std::lock_guard<std::mutex> lock(talk_mutex_);
  if (!transport_) return;
  try {
    transport_->LookAfter();
  } catch (const DspEnded& ended) {
    Fail(ended.got);
  }
}

Reply Session::Invoke(uint32_t region, bool traced) {
  EnsureRunning();
  const DspAnswer answer = Ask(kDspInvoke, region, traced, code_.deadline);
  Reply reply;
  reply.packets = answer.packets;
  reply.nanoseconds = answer.nanoseconds;
  const auto [first, count] = image_.bounds[region];
  if (traced) {
    const DspSpan* const spans = transport_->spans() + first;
    reply.spans.assign(spans, spans + count);
  }
  std::lock_guard<std::mutex> lock(health_mutex_);
  ++regions_;
  packets_ += answer.packets;
  failures_in_a_row_ = 0;
  return reply;
}

void Session::EnsureRunning() {
  if (transport_) return;
  const bool runs_here = code_.by_fastrpc ? WhyNoCdsprpc().empty() : code_.runs_here;
  if (!runs_here) {
    Fail("no such processor (" + code_.device + " is another machine's" +
         (code_.by_fastrpc ? ": " + WhyNoCdsprpc() : "") + ")");
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
  // Where the environment names no cores, only the thread stays on little ones.
  const CoresScope everywhere(cores_.empty() ? allowed_ : Cores());
  try {
    transport_ = StartTransport(setup_);
  } catch (const DspEnded& ended) {
    Fail(ended.got);
  }
  Ask(kDspPing, 0, false, std::max<Clock::duration>(Transport::kStartDeadline, code_.deadline));
  Note(State::kRunning);
}

DspAnswer Session::Ask(DspOperation operation, uint32_t region, bool traced,
                       Clock::duration deadline) {
  try {
    const DspAnswer answer = transport_->Ask(operation, region, traced, deadline);
    if (answer.status == kDspOk) return answer;
    throw DspEnded{Meaning(answer, *transport_)};
  } catch (const DspEnded& ended) {
    Fail(ended.got);
  }
}

void Session::Fail(const std::string& reason) {
  transport_.reset();  // unfinished work is lost
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
  if (transport_) Attempt([this] { Ask(kDspShutDown, 0, false, Transport::kStopDeadline); });
  transport_.reset();
  Note(State::kStopped);
}

void Session::Note(State state) {
  std::lock_guard<std::mutex> lock(health_mutex_);
  state_ = state;
  pid_ = transport_ ? transport_->pid() : -1;
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
  return WholeJSON(health);
}

}  // namespace tvm_stretch::dsp
