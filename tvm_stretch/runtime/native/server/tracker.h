// The tracker that lends this device to clients: it is offered under a new match key each time.
#ifndef TVM_STRETCH_SERVER_TRACKER_H_
#define TVM_STRETCH_SERVER_TRACKER_H_

#include <string>

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

  // Is offered, by a new match key; false if the tracker is not there. It takes its time to fail.
  bool Offer();
  // Whether the offer still stands: a tracker that is gone, or a client that asked and never came,
  // ends it.
  bool Stands();
  // The word that the client has to say who got the device; "" without an offer.
  const std::string& matchkey() const { return matchkey_; }
  void Taken() { matchkey_.clear(); }

 private:
  bool Register();
  std::optional<std::string> Ask(const std::string& message);

  Address address_;
  std::string key_;
  int port_;
  std::string advertised_;
  Handle connection_;
  std::string matchkey_;
  int missed_ = 0;  // how many times in a row nobody knew the offer
};

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_TRACKER_H_
