// The tracker that lends this device to clients: it is offered under a new match key each time.
#ifndef TVM_STRETCH_SERVER_TRACKER_H_
#define TVM_STRETCH_SERVER_TRACKER_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "dial.h"
#include "wire.h"

namespace tvm_stretch::server {

class Tracker {
 public:
  // `advertised` is where clients find us, if that is not where the tracker sees us; or "".
  Tracker(Address address, std::string key, int port, std::string advertised)
      : address_(std::move(address)),
        key_(std::move(key)),
        port_(port),
        advertised_(std::move(advertised)) {}

  // Goes on with having us offered, without waiting for the tracker: to be called again and again
  // while there is no session. The offer is made, looked after, and made again where it does not
  // stand any more: a tracker that is gone, or a client that asked and never came, ends it.
  void Step();

  // The word that the client has to say who got the device; "" without an offer.
  const std::string& matchkey() const { return matchkey_; }
  void Taken() { matchkey_.clear(); }

  // Whether the tracker took the last offer.
  bool is_there() const { return is_there_; }
  // Where an answer comes; -1 while none is expected.
  int socket() const { return talk_ && state_ != State::kReady ? talk_->socket() : -1; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State {
    kAway,     // there is no connection
    kDialing,  // one is being made
    kGreeting,
    kTelling,
    kOffering,
    kAsking,  // the tracker is to answer
    kReady,   // it has answered
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
  Clock::time_point until_;  // the answer has time
  Clock::time_point next_;   // when to look after the offer, or to connect again
  std::string offered_;      // by a message that is not answered yet
  std::string matchkey_;
  bool is_there_ = false;
  int missed_ = 0;  // how many times in a row nobody knew the offer
};

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_TRACKER_H_
