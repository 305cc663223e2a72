// States of an instance: how the results of a run become what the next one reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "instance.h"
#include "memory.h"

namespace tvm_stretch {

int64_t BytesToSlide(const GraphSpec& spec, const StateSpec& state) {
  return RoundUp(spec.inputs[state.input].bytes, state.slide);
}

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
      const auto narrow = static_cast<int32_t>(drawn);
      std::memcpy(to, item == 4 ? static_cast<const void*>(&narrow) : &drawn, item);
    }
  }
}

void Instance::UseSampling(const SamplingSpec& sampling) {
  for (size_t i = 0; i < samplers_.size(); ++i) {
    if (spec_.states[i].scores >= 0) samplers_[i].Use(sampling);
  }
}

void Instance::StateIsSet(size_t input) {
  written_.Forget();
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
