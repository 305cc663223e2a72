#include "dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace tvm_stretch::server {
namespace {

constexpr std::chrono::seconds kPatience{5};  // for a name, and for each of its addresses
constexpr int kMostDescriptors = 1024;        // of this program

void WritePlaces(const Found& found, int to) {
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Place place{at->ai_family, at->ai_addrlen, {}};
    if (at->ai_addrlen > sizeof(place.address)) continue;
    std::memcpy(&place.address, at->ai_addr, at->ai_addrlen);
    if (write(to, &place, sizeof(place)) != sizeof(place)) return;
  }
}

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

}  // namespace tvm_stretch::server
