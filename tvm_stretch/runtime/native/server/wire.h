// Messages of TVM's RPC and of its tracker, as far as they begin sessions; none is waited for.
#ifndef TVM_STRETCH_SERVER_WIRE_H_
#define TVM_STRETCH_SERVER_WIRE_H_

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tvm_stretch::server {

inline constexpr int32_t kRpcMagic = 0xff271, kTrackerMagic = 0x2f271;
// What a server answers: welcome; somebody else is here; another key.
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

// A conversation that never waits: what is not there yet is asked for again later.
class Talk {
 public:
  explicit Talk(Handle socket) : socket_(std::move(socket)) {}

  // All at once; who does not read what we said before has lost us.
  void SendNumber(int32_t number) { Send(&number, sizeof(number)); }
  // Texts go with their length in front.
  void SendText(const std::string& text);

  // What has come, once all of it has; nothing beyond it is read.
  std::optional<int32_t> TakeNumber();
  std::optional<std::string> TakeText(int32_t longest);

  // The other side is gone, does not read, or says too much.
  bool is_over() const { return is_over_; }
  int socket() const { return socket_.get(); }
  Handle Release() { return std::move(socket_); }

 private:
  void Send(const void* data, size_t bytes);
  bool Fill(size_t bytes);

  Handle socket_;
  std::string taken_;           // of what is coming
  std::optional<size_t> size_;  // of the text that is coming
  bool is_over_ = false;
};

struct Address {
  std::string host;
  int port = 0;
};

// "192.0.2.7:9190" or "[::1]:9190".
std::optional<Address> ParseAddress(const std::string& text);

using Found = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Where an address leads; null where nowhere. May take long, without AI_NUMERICHOST.
Found Resolve(const Address& address, int flags);

// Not open where the address is not ours, or taken. Port 0 takes any.
Handle Listen(const Address& address);
int PortOf(const Handle& listener);

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_WIRE_H_
