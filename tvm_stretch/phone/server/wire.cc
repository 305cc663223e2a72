#include "wire.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tvm_stretch::server {
namespace {

constexpr int kBacklog = 128;  // connections while the server is busy

}  // namespace

Found Resolve(const Address& address, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return Found(found, freeaddrinfo);
}

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

void Talk::Send(const void* data, size_t bytes) {
  const ssize_t sent = send(socket_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(bytes)) is_over_ = true;
}

void Talk::SendText(const std::string& text) {
  SendNumber(static_cast<int32_t>(text.size()));
  Send(text.data(), text.size());
}

// Whether `bytes` bytes have arrived.
bool Talk::Fill(size_t bytes) {
  while (taken_.size() < bytes && !is_over_) {
    char piece[4096];
    const size_t most = std::min(sizeof(piece), bytes - taken_.size());
    const ssize_t got = recv(socket_.get(), piece, most, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) is_over_ = true;
    if (got > 0) taken_.append(piece, static_cast<size_t>(got));
  }
  return !is_over_;
}

std::optional<int32_t> Talk::TakeNumber() {
  int32_t number = 0;
  if (!Fill(sizeof(number))) return std::nullopt;
  std::memcpy(&number, taken_.data(), sizeof(number));
  taken_.clear();
  return number;
}

std::optional<std::string> Talk::TakeText(int32_t longest) {
  if (!size_) {
    const auto size = TakeNumber();
    if (!size) return std::nullopt;
    if (*size < 0 || *size > longest) {
      is_over_ = true;
      return std::nullopt;
    }
    size_ = static_cast<size_t>(*size);
  }
  if (!Fill(*size_)) return std::nullopt;
  size_.reset();
  return std::exchange(taken_, "");
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

Handle Listen(const Address& address) {
  const Found found = Resolve(address, AI_PASSIVE);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    Handle made(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(made.get(), at->ai_addr, at->ai_addrlen) == 0 && listen(made.get(), kBacklog) == 0) {
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
