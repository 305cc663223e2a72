#include "tracker.h"

#include "secret.h"

namespace tvm_stretch::server {
namespace {

constexpr std::chrono::milliseconds kPatience{5000};
constexpr int kMostMissed = 3;
constexpr size_t kDigits = 32;

// Codes of messages, as TVM numbers them.
constexpr const char *kPut = "3", *kUpdateInfo = "5", *kPendingKeys = "7";

std::string Quoted(const std::string& text) { return '"' + text + '"'; }  // options.cc checked it

}  // namespace

std::optional<std::string> Tracker::Ask(const std::string& message) {
  const Talk talk(connection_.get(), kPatience);
  if (talk.SendText(message)) {
    if (auto answer = talk.ReceiveText(kLongestAnswer)) return answer;
  }
  connection_ = Handle();
  return std::nullopt;
}

bool Tracker::Register() {
  connection_ = Connect(address_, kPatience);
  if (!connection_.is_open()) return false;
  const Talk talk(connection_.get(), kPatience);
  if (!talk.SendNumber(kTrackerMagic) || talk.ReceiveNumber() != kTrackerMagic) {
    connection_ = Handle();
    return false;
  }
  const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
  return Ask("[" + std::string(kUpdateInfo) + ", {\"key\": " + Quoted("server:" + key_) +
             ", \"addr\": [" + where + ", " + std::to_string(port_) + "]}]")
      .has_value();
}

bool Tracker::Offer() {
  matchkey_.clear();
  missed_ = 0;
  if (!connection_.is_open() && !Register()) return false;
  const std::string digits = RandomDigits(kDigits);
  if (digits.empty()) return false;
  const std::string matchkey = key_ + ":" + digits;
  const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
  if (!Ask("[" + std::string(kPut) + ", " + Quoted(key_) + ", [" + std::to_string(port_) + ", " +
           Quoted(matchkey) + "], " + where + "]")) {
    return false;
  }
  matchkey_ = matchkey;
  return true;
}

bool Tracker::Stands() {
  if (matchkey_.empty()) return false;
  const auto pending = Ask("[" + std::string(kPendingKeys) + "]");
  if (!pending) return false;
  missed_ = pending->find(matchkey_) == std::string::npos ? missed_ + 1 : 0;
  return missed_ <= kMostMissed;
}

}  // namespace tvm_stretch::server
