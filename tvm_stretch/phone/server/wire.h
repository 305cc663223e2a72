// The messages of TVM's RPC and its tracker that begin sessions, without blocking.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tvm_stretch::server {

// Proves knowledge of a secret without sending it: HMAC-SHA256 of a key that is used once.

// In hexadecimal digits.
std::string Sha256(const std::string& text);
std::string Proof(const std::string& secret, const std::string& text);

// Compares two texts in constant time.
bool SameText(const std::string& one, const std::string& other);

// `count` random hexadecimal digits; "" if the system has no random numbers.
std::string RandomDigits(size_t count);

inline constexpr int32_t kRpcMagic = 0xff271, kTrackerMagic = 0x2f271;
// Answers of a server: welcome; busy; another key.
inline constexpr int32_t kWelcome = kRpcMagic, kBusy = kRpcMagic + 1, kMismatch = kRpcMagic + 2;

// The longest message of a client that begins a session, and of a tracker.
inline constexpr int32_t kLongestGreeting = 4096, kLongestAnswer = 1 << 20;

// A file descriptor that is closed with its owner.
class Handle {
 public:
  explicit Handle(int number = -1) : number_(number) {}
  Handle(Handle&& other) noexcept : number_(other.Release()) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int Release();

 private:
  int number_;
};

// A connection that never blocks: callers retry later if data is missing.
class Talk {
 public:
  explicit Talk(Handle socket) : socket_(std::move(socket)) {}

  // Sends at once; if the peer's buffer is full, the connection is over.
  void SendNumber(int32_t number) { Send(&number, sizeof(number)); }
  // Texts are preceded by their length.
  void SendText(const std::string& text);

  // The next value once it is complete; no byte after it is read.
  std::optional<int32_t> TakeNumber();
  std::optional<std::string> TakeText(int32_t longest);

  // The peer closed the connection, does not read, or sent too much.
  bool is_over() const { return is_over_; }
  int socket() const { return socket_.get(); }
  Handle Release() { return std::move(socket_); }

 private:
  void Send(const void* data, size_t bytes);
  bool Fill(size_t bytes);

  Handle socket_;
  std::string taken_;           // of the incomplete value
  std::optional<size_t> size_;  // of the incomplete text
  bool is_over_ = false;
};

struct Address {
  std::string host;
  int port = 0;
};

// "192.0.2.7:9190" or "[::1]:9190".
std::optional<Address> ParseAddress(const std::string& text);

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves an address; null on failure. May take long without AI_NUMERICHOST.
Found Resolve(const Address& address, int flags);

// The handle is not open if the address is foreign or in use. Port 0 means any port.
Handle Listen(const Address& address);
int PortOf(const Handle& listener);

}  // namespace tvm_stretch::server
