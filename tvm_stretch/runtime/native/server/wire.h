// Messages of TVM's RPC and of its tracker, as far as they begin sessions; all of it in time.
#ifndef TVM_STRETCH_SERVER_WIRE_H_
#define TVM_STRETCH_SERVER_WIRE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

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

// Sends and receives until a moment, whatever the other side does.
class Talk {
 public:
  Talk(int socket, std::chrono::milliseconds patience)
      : socket_(socket), end_(std::chrono::steady_clock::now() + patience) {}

  bool Send(const void* data, size_t bytes) const;
  bool Receive(void* data, size_t bytes) const;
  bool SendNumber(int32_t number) const { return Send(&number, sizeof(number)); }
  std::optional<int32_t> ReceiveNumber() const;
  // Texts go with their length in front.
  bool SendText(const std::string& text) const;
  std::optional<std::string> ReceiveText(int32_t longest) const;

 private:
  bool Wait(short events) const;

  int socket_;
  std::chrono::steady_clock::time_point end_;
};

struct Address {
  std::string host;
  int port = 0;
};

// "192.0.2.7:9190" or "[::1]:9190".
std::optional<Address> ParseAddress(const std::string& text);

// Not open where nobody answers in time.
Handle Connect(const Address& address, std::chrono::milliseconds patience);
// Not open where the address is not ours, or taken. Port 0 takes any.
Handle Listen(const Address& address);
int PortOf(const Handle& listener);

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_WIRE_H_
