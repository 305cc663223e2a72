#include "tracker.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "wire.h"

namespace tvm_stretch::server {
namespace {

constexpr std::chrono::seconds kPatience{5};  // for an answer, a name, and each of its addresses
constexpr int kMostDescriptors = 1024;        // of this program

void WritePlaces(const Found& found, int to) {
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Place place{at->ai_family, at->ai_addrlen, {}};
    if (at->ai_addrlen > sizeof(place.address)) continue;
    std::memcpy(&place.address, at->ai_addr, at->ai_addrlen);
    if (write(to, &place, sizeof(place)) != sizeof(place)) return;
  }
}

constexpr std::chrono::seconds kPause{2};  // between two checks of the offer, or two attempts
constexpr int kMostMissed = 3;
constexpr size_t kDigits = 32;

// Codes of messages, as TVM numbers them.
constexpr const char *kPut = "3", *kUpdateInfo = "5", *kPendingKeys = "7";

std::string Quoted(const std::string& text) { return '"' + text + '"'; }  // options.cc checked it

}  // namespace

// Looking up a name has no timeout, and would block the server if a name server does not answer. So
// a child process does it, which can be killed.
Dial::Dial(const Address& address) : until_(Clock::now() + kPatience) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) {
    has_failed_ = true;
    return;
  }
  found_ = Handle(ends[0]);
  const Handle to(ends[1]);
  fcntl(found_.get(), F_SETFL, O_NONBLOCK);
  const Found number = Resolve(address, AI_NUMERICHOST);
  if (number != nullptr) {
    WritePlaces(number, to.get());
    return;
  }
  asking_ = fork();
  if (asking_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int other = STDERR_FILENO + 1; other < kMostDescriptors; ++other) {
    if (other != to.get()) close(other);  // the child must not keep connections open
  }
  WritePlaces(Resolve(address, 0), to.get());
  _exit(0);
}

Dial::~Dial() { EndAsking(); }

Handle Dial::Step() {
  if (found_.is_open()) ReadPlaces();
  if (!called_.is_open()) return Handle();
  pollfd waiting{called_.get(), POLLOUT, 0};
  const bool is_late = Clock::now() > until_;
  if (poll(&waiting, 1, 0) != 1 && !is_late) return Handle();
  int fault = 0;
  socklen_t size = sizeof(fault);
  const bool is_answered =
      !is_late && getsockopt(called_.get(), SOL_SOCKET, SO_ERROR, &fault, &size) == 0 && fault == 0;
  if (is_answered) return std::move(called_);
  CallNext();
  return Handle();
}

void Dial::ReadPlaces() {
  Place place{};
  for (;;) {
    const ssize_t got = read(found_.get(), &place, sizeof(place));
    if (got == sizeof(place)) {
      places_.push_back(place);
    } else if (got < 0 && errno == EAGAIN && Clock::now() <= until_) {
      return;
    } else {
      break;
    }
  }
  EndAsking();
  found_ = Handle();
  CallNext();
}

void Dial::EndAsking() {
  if (asking_ <= 0) return;
  kill(asking_, SIGKILL);
  waitpid(asking_, nullptr, 0);
  asking_ = -1;
}

void Dial::CallNext() {
  called_ = Handle();
  until_ = Clock::now() + kPatience;
  while (!places_.empty()) {
    const Place place = places_.front();
    places_.pop_front();
    Handle made(socket(place.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.is_open()) continue;
    const auto* where = reinterpret_cast<const sockaddr*>(&place.address);
    if (connect(made.get(), where, place.size) != 0 && errno != EINPROGRESS) continue;
    called_ = std::move(made);
    return;
  }
  has_failed_ = true;
}

void Tracker::Step() {
  if (state_ == State::kAway) {
    if (Clock::now() < next_) return;
    dial_ = std::make_unique<Dial>(address_);
    state_ = State::kDialing;
  }
  if (state_ == State::kDialing) {
    Handle connection = dial_->Step();
    if (connection.is_open()) return Greet(std::move(connection));
    if (dial_->has_failed()) Lose();
    return;
  }
  if (state_ == State::kReady) return GoOn();
  if (state_ == State::kGreeting) {
    const auto magic = talk_->TakeNumber();
    if (magic && *magic != kTrackerMagic) return Lose();
    if (magic) {
      const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
      return Say(State::kTelling, "[" + std::string(kUpdateInfo) +
                                      ", {\"key\": " + Quoted("server:" + key_) + ", \"addr\": [" +
                                      where + ", " + std::to_string(port_) + "]}]");
    }
  } else if (const auto answer = talk_->TakeText(kLongestAnswer)) {
    return Answered(*answer);
  }
  if (talk_->is_over() || Clock::now() > until_) Lose();
}

void Tracker::Greet(Handle connection) {
  dial_ = nullptr;
  talk_.emplace(std::move(connection));
  talk_->SendNumber(kTrackerMagic);
  state_ = State::kGreeting;
  until_ = Clock::now() + kPatience;
}

void Tracker::Say(State state, const std::string& message) {
  talk_->SendText(message);
  state_ = state;
  until_ = Clock::now() + kPatience;
}

// Sends the next message when no answer is pending.
void Tracker::GoOn() {
  if (matchkey_.empty()) return Offer();
  if (Clock::now() >= next_) Say(State::kAsking, "[" + std::string(kPendingKeys) + "]");
}

void Tracker::Offer() {
  const std::string digits = RandomDigits(kDigits);
  if (digits.empty()) return Lose();
  offered_ = key_ + ":" + digits;
  const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
  Say(State::kOffering, "[" + std::string(kPut) + ", " + Quoted(key_) + ", [" +
                            std::to_string(port_) + ", " + Quoted(offered_) + "], " + where + "]");
}

void Tracker::Answered(const std::string& answer) {
  if (state_ == State::kOffering) {
    matchkey_ = offered_;
    is_there_ = true;
    missed_ = 0;
  } else if (state_ == State::kAsking) {
    missed_ = answer.find(matchkey_) == std::string::npos ? missed_ + 1 : 0;
    if (missed_ > kMostMissed) matchkey_.clear();
  }
  state_ = State::kReady;
  next_ = Clock::now() + kPause;
}

void Tracker::Lose() {
  talk_.reset();
  dial_ = nullptr;
  matchkey_.clear();
  is_there_ = false;
  next_ = Clock::now() + kPause;
  state_ = State::kAway;
}

}  // namespace tvm_stretch::server
