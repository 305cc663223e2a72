#include "tracker.h"

#include "secret.h"

namespace tvm_stretch::server {
namespace {

constexpr std::chrono::seconds kPatience{5};  // for an answer
constexpr std::chrono::seconds kPause{2};     // between two checks of the offer, or two attempts
constexpr int kMostMissed = 3;
constexpr size_t kDigits = 32;

// Codes of messages, as TVM numbers them.
constexpr const char *kPut = "3", *kUpdateInfo = "5", *kPendingKeys = "7";

std::string Quoted(const std::string& text) { return '"' + text + '"'; }  // options.cc checked it

}  // namespace

void Tracker::Step() {
  if (state_ == State::kAway) {
    if (Clock::now() < next_) return;
    dial_ = std::make_unique<Dial>(address_);
    state_ = State::kDialing;
  }
  if (state_ == State::kDialing) {
    Handle connection = dial_->Step();
    if (connection.is_open()) return Greet(std::move(connection));
    if (dial_->has_failed()) Lose();
    return;
  }
  if (state_ == State::kReady) return GoOn();
  if (state_ == State::kGreeting) {
    const auto magic = talk_->TakeNumber();
    if (magic && *magic != kTrackerMagic) return Lose();
    if (magic) {
      const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
      return Say(State::kTelling, "[" + std::string(kUpdateInfo) +
                                      ", {\"key\": " + Quoted("server:" + key_) + ", \"addr\": [" +
                                      where + ", " + std::to_string(port_) + "]}]");
    }
  } else if (const auto answer = talk_->TakeText(kLongestAnswer)) {
    return Answered(*answer);
  }
  if (talk_->is_over() || Clock::now() > until_) Lose();
}

void Tracker::Greet(Handle connection) {
  dial_ = nullptr;
  talk_.emplace(std::move(connection));
  talk_->SendNumber(kTrackerMagic);
  state_ = State::kGreeting;
  until_ = Clock::now() + kPatience;
}

void Tracker::Say(State state, const std::string& message) {
  talk_->SendText(message);
  state_ = state;
  until_ = Clock::now() + kPatience;
}

// Sends the next message when no answer is pending.
void Tracker::GoOn() {
  if (matchkey_.empty()) return Offer();
  if (Clock::now() >= next_) Say(State::kAsking, "[" + std::string(kPendingKeys) + "]");
}

void Tracker::Offer() {
  const std::string digits = RandomDigits(kDigits);
  if (digits.empty()) return Lose();
  offered_ = key_ + ":" + digits;
  const std::string where = advertised_.empty() ? "null" : Quoted(advertised_);
  Say(State::kOffering, "[" + std::string(kPut) + ", " + Quoted(key_) + ", [" +
                            std::to_string(port_) + ", " + Quoted(offered_) + "], " + where + "]");
}

void Tracker::Answered(const std::string& answer) {
  if (state_ == State::kOffering) {
    matchkey_ = offered_;
    is_there_ = true;
    missed_ = 0;
  } else if (state_ == State::kAsking) {
    missed_ = answer.find(matchkey_) == std::string::npos ? missed_ + 1 : 0;
    if (missed_ > kMostMissed) matchkey_.clear();
  }
  state_ = State::kReady;
  next_ = Clock::now() + kPause;
}

void Tracker::Lose() {
  talk_.reset();
  dial_ = nullptr;
  matchkey_.clear();
  is_there_ = false;
  next_ = Clock::now() + kPause;
  state_ = State::kAway;
}

}  // namespace tvm_stretch::server
