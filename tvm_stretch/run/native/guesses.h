// Guesses of the values that a model will choose next, from what was read and chosen before: a text
// that repeats itself, as code and summaries do, is written several tokens at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tvm_stretch {

class Guesses {
 public:
  // A value was read or chosen.
  void Note(int64_t value) { all_.push_back(value); }
  void Forget() { all_.clear(); }
  // The last values were taken back.
  void TakeBack(size_t count) { all_.resize(all_.size() - std::min(count, all_.size())); }

  // The values that followed when the last ones were there before: `count` of them, or none. None,
  // too, while guesses cost more time than they save.
  std::vector<int64_t> Propose(size_t count) const;

  // A run that chose one value took so long.
  void RanPlain(int64_t ns);
  // A run with guesses took so long, and chose `values` values.
  void RanGuessing(int64_t ns, size_t values);

 private:
  std::vector<int64_t> all_;
  double plain_ns_ = 0;  // of one run, the usual one; 0: not known
  double spent_ns_ = 0;  // of all runs
  double saved_ns_ = 0;  // by guesses
};

}  // namespace tvm_stretch
