// Draws an index of a row of scores, as language models choose their next token.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

class Sampler {
 public:
  explicit Sampler(const SamplingSpec& spec) { Use(spec); }

  // From now on draws follow these numbers, and begin with their seed.
  void Use(const SamplingSpec& spec) {
    spec_ = spec;
    Restart();
  }
  void Restart() { state_ = static_cast<uint64_t>(spec_.seed); }
  // The random numbers go on from where they were.
  uint64_t state() const { return state_; }
  void GoTo(uint64_t state) { state_ = state; }
  bool draws() const { return spec_.temperature > 0; }

  // An index below `width`, with probability softmax(scores / temperature) among those that top_k,
  // then top_p, then min_p leave. A score that is no number is never drawn; infinite scores share
  // the whole probability. -1 if no score is above minus infinity.
  int64_t Draw(const float* scores, int64_t width);

 private:
  double Uniform();

  SamplingSpec spec_;
  uint64_t state_ = 0;                           // of the random numbers
  std::vector<std::pair<double, int64_t>> all_;  // weights and indices; kept to save allocations
};

}  // namespace tvm_stretch
