#include "guesses.h"

namespace tvm_stretch {
namespace {

// Values in a row that must have been there before: until guesses saved time, and then.
constexpr size_t kFewestKnown = 5, kFewestAfterSuccess = 3;
constexpr size_t kMostCompared = 8;     // of several such places, the one with the most is taken
constexpr double kLostTime = 0.015;     // of the time may be lost by guesses
constexpr double kSavedRuns = 8;        // plain runs that guesses may lose after they saved much
constexpr double kShareOfNewRun = 0.2;  // of a run in the usual time

}  // namespace

std::vector<int64_t> Guesses::Propose(size_t count) const {
  const size_t least = saved_ns_ > 0 ? kFewestAfterSuccess : kFewestKnown;
  if (all_.size() <= least || plain_ns_ == 0) return {};
  if (saved_ns_ < -(plain_ns_ + kLostTime * spent_ns_)) return {};
  size_t best = 0, follows = 0;
  for (size_t end = all_.size() - 1; end >= least && best < kMostCompared; --end) {
    size_t same = 0;
    while (same < std::min(end, kMostCompared) &&
           all_[end - 1 - same] == all_[all_.size() - 1 - same]) {
      ++same;
    }
    if (same <= best || same < least) continue;
    best = same;
    follows = end;
  }
  if (best == 0) return {};
  std::vector<int64_t> guesses;
  // where the text since then is shorter than that, it goes on repeating
  for (size_t i = 0; i < count; ++i) {
    const size_t at = follows + i;
    guesses.push_back(at < all_.size() ? all_[at] : guesses[at - all_.size()]);
  }
  return guesses;
}

void Guesses::RanPlain(int64_t ns) {
  const auto took = static_cast<double>(ns);
  plain_ns_ = plain_ns_ == 0 ? took : plain_ns_ + kShareOfNewRun * (took - plain_ns_);
  spent_ns_ += took;
}

void Guesses::RanGuessing(int64_t ns, size_t values) {
  const auto took = static_cast<double>(ns);
  spent_ns_ += took;
  saved_ns_ += static_cast<double>(values) * plain_ns_ - took;
  saved_ns_ = std::min(saved_ns_, kSavedRuns * plain_ns_);
}

}  // namespace tvm_stretch
