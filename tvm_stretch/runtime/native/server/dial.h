// Connecting to somebody, without ever waiting: names take their time, and so do hosts.
#ifndef TVM_STRETCH_SERVER_DIAL_H_
#define TVM_STRETCH_SERVER_DIAL_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <deque>

#include "wire.h"

namespace tvm_stretch::server {

// Where somebody listens.
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

  // Goes on, if it can; open once somebody answers, on the first of the places that does.
  Handle Step();
  // Nobody does, in time.
  bool has_failed() const { return has_failed_; }

 private:
  using Clock = std::chrono::steady_clock;

  void ReadPlaces();
  void EndAsking();
  void CallNext();

  pid_t asking_ = -1;  // a process that looks up the name
  Handle found_;       // where it writes places to
  std::deque<Place> places_;
  Handle called_;
  Clock::time_point until_;  // what it is at has time
  bool has_failed_ = false;
};

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_DIAL_H_
