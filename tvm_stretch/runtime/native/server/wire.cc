#include "wire.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace tvm_stretch::server {
namespace {

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Found Resolve(const Address& address, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return Found(found, freeaddrinfo);
}

// Where somebody listens.
struct Place {
  int family;
  socklen_t size;
  sockaddr_storage address;
};

void WritePlaces(const Found& found, int to) {
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Place place{at->ai_family, at->ai_addrlen, {}};
    if (at->ai_addrlen > sizeof(place.address)) continue;
    std::memcpy(&place.address, at->ai_addr, at->ai_addrlen);
    if (write(to, &place, sizeof(place)) != sizeof(place)) return;
  }
}

// A name server that does not answer would keep us from our clients, and looking up a name has no
// deadline: a process of its own asks, and is ended.
std::vector<Place> Places(const Address& address, std::chrono::milliseconds patience) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const Handle from(ends[0]);
  Handle to(ends[1]);
  const pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // it has our port open, which others may want after us
    WritePlaces(Resolve(address, 0), to.get());
    _exit(0);
  }
  to = Handle();
  std::vector<Place> places;
  const auto end = std::chrono::steady_clock::now() + patience;
  for (Place place{}; process > 0;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd coming{from.get(), POLLIN, 0};
    if (left.count() <= 0 || poll(&coming, 1, static_cast<int>(left.count())) != 1) break;
    if (read(from.get(), &place, sizeof(place)) != sizeof(place)) break;
    places.push_back(place);
  }
  if (process > 0) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
  }
  return places;
}

bool IsConnected(int socket, std::chrono::milliseconds patience) {
  pollfd waiting{socket, POLLOUT, 0};
  int fault = 0;
  socklen_t size = sizeof(fault);
  return poll(&waiting, 1, static_cast<int>(patience.count())) == 1 &&
         getsockopt(socket, SOL_SOCKET, SO_ERROR, &fault, &size) == 0 && fault == 0;
}

}  // namespace

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    if (number_ >= 0) close(number_);
    number_ = other.Release();
  }
  return *this;
}

Handle::~Handle() {
  if (number_ >= 0) close(number_);
}

int Handle::Release() { return std::exchange(number_, -1); }

bool Talk::Wait(short events) const {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{socket_, events, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(left.count()));
    if (ready == 1) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

bool Talk::Send(const void* data, size_t bytes) const {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    if (!Wait(POLLOUT)) return false;
    const ssize_t sent = send(socket_, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) return false;
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool Talk::Receive(void* data, size_t bytes) const {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    if (!Wait(POLLIN)) return false;
    const ssize_t got = recv(socket_, at, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

std::optional<int32_t> Talk::ReceiveNumber() const {
  int32_t number = 0;
  if (!Receive(&number, sizeof(number))) return std::nullopt;
  return number;
}

bool Talk::SendText(const std::string& text) const {
  return SendNumber(static_cast<int32_t>(text.size())) && Send(text.data(), text.size());
}

std::optional<std::string> Talk::ReceiveText(int32_t longest) const {
  const auto size = ReceiveNumber();
  if (!size || *size < 0 || *size > longest) return std::nullopt;
  std::string text(static_cast<size_t>(*size), 0);
  if (!Receive(text.data(), text.size())) return std::nullopt;
  return text;
}

std::optional<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.size() - colon > 6) return std::nullopt;
  Address address{text.substr(0, colon), 0};
  for (size_t i = colon + 1; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    address.port = 10 * address.port + (text[i] - '0');
  }
  if (address.port < 1 || address.port > 65535) return std::nullopt;
  if (address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  return address;
}

Handle Connect(const Address& address, std::chrono::milliseconds patience) {
  for (const Place& place : Places(address, patience)) {
    Handle made(socket(place.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!made.is_open()) continue;
    const auto* where = reinterpret_cast<const sockaddr*>(&place.address);
    const int begun = connect(made.get(), where, place.size);
    if (begun != 0 && (errno != EINPROGRESS || !IsConnected(made.get(), patience))) continue;
    fcntl(made.get(), F_SETFL, fcntl(made.get(), F_GETFL) & ~O_NONBLOCK);
    return made;
  }
  return Handle();
}

Handle Listen(const Address& address) {
  const Found found = Resolve(address, AI_PASSIVE);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Handle made(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(made.get(), at->ai_addr, at->ai_addrlen) == 0 && listen(made.get(), 8) == 0) {
      return made;
    }
  }
  return Handle();
}

int PortOf(const Handle& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace tvm_stretch::server
