#include "wire.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tvm_stretch::server {
namespace {

constexpr size_t kBlock = 64;
using State = std::array<uint32_t, 8>;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4).
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Turn(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

void Mix(State* state, const uint8_t* block) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i) {
    words[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
               uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t near = words[i - 15], late = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (Turn(near, 7) ^ Turn(near, 18) ^ near >> 3) +
               (Turn(late, 17) ^ Turn(late, 19) ^ late >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (int i = 0; i < 64; ++i) {
    const uint32_t one =
        h + (Turn(e, 6) ^ Turn(e, 11) ^ Turn(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + words[i];
    const uint32_t two = (Turn(a, 2) ^ Turn(a, 13) ^ Turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
  }
  const State added{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < added.size(); ++i) (*state)[i] += added[i];
}

std::string Digest(const std::string& text) {
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<uint8_t> padded(text.begin(), text.end());
  padded.push_back(0x80);
  while (padded.size() % kBlock != kBlock - 8) padded.push_back(0);
  const uint64_t bits = 8 * uint64_t{text.size()};
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<uint8_t>(bits >> shift));
  for (size_t at = 0; at < padded.size(); at += kBlock) Mix(&state, padded.data() + at);
  std::string digest;
  for (uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  }
  return digest;
}

std::string Hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

constexpr int kBacklog = 128;  // connections while the server is busy

}  // namespace

std::string Sha256(const std::string& text) { return Hex(Digest(text)); }

std::string Proof(const std::string& secret, const std::string& text) {
  std::string key = secret.size() > kBlock ? Digest(secret) : secret;
  key.resize(kBlock, 0);
  std::string inner, outer;
  for (char byte : key) {
    inner += static_cast<char>(byte ^ 0x36);
    outer += static_cast<char>(byte ^ 0x5c);
  }
  return Hex(Digest(outer + Digest(inner + text)));
}

bool SameText(const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i) difference |= static_cast<unsigned>(one[i] ^ other[i]);
  return difference == 0;
}

std::string RandomDigits(size_t count) {
  std::string bytes((count + 1) / 2, 0);
  // Android has a function for it since API 28 only.
  const long got = syscall(SYS_getrandom, bytes.data(), bytes.size(), 0);
  return got == static_cast<long>(bytes.size()) ? Hex(bytes).substr(0, count) : "";
}

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
