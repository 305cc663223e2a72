// Connects without blocking, as name look-ups and connections may take long.
#ifndef TVM_STRETCH_SERVER_DIAL_H_
#define TVM_STRETCH_SERVER_DIAL_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <deque>

#include "wire.h"

namespace tvm_stretch::server {

// The address of a listener.
struct Place {
  int family;
  socklen_t size;
  sockaddr_storage address;
};

class Dial {
 public:
  explicit Dial(const Address& address);
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

  // Makes progress if possible; the handle is open once one of the addresses answers.
  Handle Step();
  // No address answered in time.
  bool has_failed() const { return has_failed_; }

 private:
  using Clock = std::chrono::steady_clock;

  void ReadPlaces();
  void EndAsking();
  void CallNext();

  pid_t asking_ = -1;  // a process that looks up the name
  Handle found_;       // pipe from which its addresses are read
  std::deque<Place> places_;
  Handle called_;
  Clock::time_point until_;  // deadline of the current step
  bool has_failed_ = false;
};

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_DIAL_H_
