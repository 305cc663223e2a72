// States of an instance: how the results of a run become what the next one reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "instance.h"
#include "memory.h"
#include "sizes.h"

namespace tvm_stretch {

int64_t BytesToSlide(const GraphSpec& spec, const StateSpec& state) {
  return RoundUp(spec.inputs[state.input].bytes, state.slide);
}

namespace {

// The place that the network's own search finds: it compares one score after the other.
int64_t Greatest(const float* scores, int64_t width) {
  int64_t best = 0;
  for (int64_t i = 1; i < width; ++i) {
    if (!(scores[best] >= scores[i])) best = i;
  }
  return best;
}

}  // namespace

void Instance::Choose() {
  for (size_t i = 0; i < samplers_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.scores < 0 || !samplers_[i].draws()) continue;
    const TensorSpec& next = spec_.output(state.output);
    const int64_t id = spec_.lengths[last_length()].outputs[state.scores];
    const TensorSpec& scores = spec_.tensors[id];
    const int64_t width = scores.shape.back(), item = next.dtype.bits / 8;
    const int64_t count = next.bytes / item;
    const int64_t rows = scores.bytes / static_cast<int64_t>(sizeof(float)) / width / count;
    const auto* row = static_cast<const float*>(cpu_.tensors().at(id)->data);
    char* to = outputs_[state.output];
    for (int64_t j = 0; j < count; ++j, row += rows * width, to += item) {
      // of several positions, the last one counts
      const int64_t drawn = samplers_[i].Draw(row + (rows - 1) * width, width);
      if (drawn < 0) continue;  // what the network found stays
      StoreInteger(drawn, item, to);
    }
  }
}

std::vector<Instance::Choice> Instance::Accept(size_t state, const std::vector<int64_t>& guesses,
                                               int64_t most,
                                               const std::function<bool(int64_t)>& is_end) {
  Sampler& sampler = samplers_[state];
  const int64_t id = spec_.lengths[last_length()].outputs[spec_.states[state].scores];
  const int64_t width = spec_.tensors[id].shape.back();
  const auto* row = static_cast<const float*>(cpu_.tensors().at(id)->data);
  std::vector<Choice> choices;
  for (size_t i = 0; i <= guesses.size(); ++i, row += width) {
    const int64_t drawn = sampler.draws() ? sampler.Draw(row, width) : -1;
    const int64_t value = drawn < 0 ? Greatest(row, width) : drawn;
    choices.push_back({value, sampler.state()});
    const bool is_last = i == guesses.size() || static_cast<int64_t>(choices.size()) == most;
    if (is_last || value != guesses[i] || is_end(value)) break;
  }
  return choices;
}

void Instance::Rewind(size_t state, const Choice& last, int64_t count) {
  const StateSpec& chosen = spec_.states[state];
  held_[state] = spec_.output(chosen.output).bytes;
  StoreInteger(last.value, held_[state], inputs_[chosen.input]);
  samplers_[state].GoTo(last.drawn);
  for (const StateSpec& counter : spec_.states) {
    if (&counter == &chosen || counter.rewind <= 0) continue;
    const TensorSpec& next = spec_.output(counter.output);
    const int64_t item = next.dtype.bits / 8;
    char* const first = inputs_[counter.input];
    for (char* at = first; at < first + next.bytes; at += item) {
      StoreInteger(IntegerAt(at, item) - count * counter.rewind, item, at);
    }
  }
  FollowStates();
}

void Instance::UseSampling(const SamplingSpec& sampling) {
  for (size_t i = 0; i < samplers_.size(); ++i) {
    if (spec_.states[i].scores >= 0) samplers_[i].Use(sampling);
  }
}

void Instance::StateIsSet(size_t input) {
  if (spec_.states[input - spec_.arguments].starts >= 0) written_.Forget();
  held_[input - spec_.arguments] = spec_.input(input, length()).bytes;
}

bool Instance::Holds(size_t length) const {
  if (spec_.lengths.size() == 1) return true;
  for (size_t i = 0; i < held_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.is_fed && spec_.input(state.input, length).bytes != held_[i]) return false;
  }
  return true;
}

void Instance::FollowStates() {
  for (size_t i = 0; i < spec_.lengths.size() && !Holds(length()); ++i) {
    if (Holds(i)) UseLength(i);
  }
}

void Instance::CopyStates(const Instance& other) {
  for (const StateSpec& state : spec_.states) {
    std::memcpy(inputs_[state.input], other.inputs_[state.input], spec_.inputs[state.input].bytes);
  }
  written_.Forget();
  held_ = other.held_;
  samplers_ = other.samplers_;
  UseLength(other.length());
}

void Instance::Advance() {
  for (size_t i = 0; i < held_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    held_[i] = spec_.output(state.output).bytes;
    char*& input = inputs_[state.input];
    char*& output = outputs_[state.output];
    if (state.slide > 0) {
      Slide(state);
    } else if (takes_inputs_[state.input] && takes_outputs_[state.output]) {
      std::swap(input, output);
      BindInput(state.input, input);
      BindOutput(state.output, output);
    } else if (state.starts >= 0) {
      written_.Keep(i, input, output);
    } else {
      std::memcpy(input, output, held_[i]);
    }
  }
  FollowStates();
}

void Instance::Slide(const StateSpec& state) {
  char* const first = memory_.inputs[state.input];
  char* next = outputs_[state.output];
  if (next + state.slide > first + BytesToSlide(spec_, state)) {
    std::memmove(first, next, spec_.input(state.input).bytes);
    next = first;
  }
  inputs_[state.input] = next;
  BindInput(state.input, next);
}

// Each length appends a number of rows of its own.
void Instance::PlaceNextStates() {
  const std::vector<int64_t>& slides = spec_.lengths[length()].slides;
  for (size_t i = 0; i < slides.size(); ++i) {
    if (slides[i] == 0) continue;
    const StateSpec& state = spec_.states[i];
    outputs_[state.output] = inputs_[state.input] + slides[i];
    BindOutput(state.output, outputs_[state.output]);
  }
}

void Instance::ResetStates() {
  for (const StateSpec& state : spec_.states) {
    const size_t bytes = spec_.inputs[state.input].bytes;
    if (state.initial < 0) {
      std::memset(inputs_[state.input], 0, bytes);
    } else {
      std::memcpy(inputs_[state.input], memory_.constant + state.initial, bytes);
    }
  }
  written_.Forget();
  for (size_t i = 0; i < held_.size(); ++i) {
    held_[i] = spec_.output(spec_.states[i].output).bytes;
    samplers_[i].Restart();
  }
  FollowStates();
}

}  // namespace tvm_stretch
