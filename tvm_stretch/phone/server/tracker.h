// Offers this device to clients through a tracker, each time with a new match key.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "wire.h"

namespace tvm_stretch::server {

// Connects without blocking, as name look-ups and connections may take long.

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

class Tracker {
 public:
  // `advertised` is the address for clients if the tracker sees another one; or "".
  Tracker(Address address, std::string key, int port, std::string advertised)
      : address_(std::move(address)),
        key_(std::move(key)),
        port_(port),
        advertised_(std::move(advertised)) {}

  // Makes or checks the offer, without waiting for the tracker; to be called repeatedly while there
  // is no session. The offer is made again if it was lost, because the tracker restarted, or a
  // client requested the device and never came.
  void Step();

  // The match key that the chosen client has to send; "" without an offer.
  const std::string& matchkey() const { return matchkey_; }
  void Taken() { matchkey_.clear(); }

  // Whether the tracker accepted the last offer.
  bool is_there() const { return is_there_; }
  // The socket of a pending answer; -1 if none is expected.
  int socket() const { return talk_ && state_ != State::kReady ? talk_->socket() : -1; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State {
    kAway,     // not connected
    kDialing,  // connecting
    kGreeting,
    kTelling,
    kOffering,
    kAsking,  // waiting for an answer
    kReady,   // answered
  };

  void Say(State state, const std::string& message);
  void Greet(Handle connection);
  void GoOn();
  void Offer();
  void Answered(const std::string& answer);
  void Lose();

  Address address_;
  std::string key_;
  int port_;
  std::string advertised_;
  State state_ = State::kAway;
  std::unique_ptr<Dial> dial_;
  std::optional<Talk> talk_;
  Clock::time_point until_;  // deadline of the answer
  Clock::time_point next_;   // when to check the offer, or to reconnect
  std::string offered_;      // match key of an unanswered offer
  std::string matchkey_;
  bool is_there_ = false;
  int missed_ = 0;  // checks in a row in which the tracker did not know the offer
};

}  // namespace tvm_stretch::server
