#include "written_rows.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cstring>

namespace tvm_stretch {
namespace {

int64_t PlaceAt(const ffi::TensorView& places, int64_t i) {
  if (places.dtype().bits == 32) return static_cast<const int32_t*>(places.data_ptr())[i];
  return static_cast<const int64_t*>(places.data_ptr())[i];
}

// graph.cc checked the shapes.
void Write(const ffi::TensorView& places, const ffi::TensorView& rows, const ffi::TensorView& all,
           const ffi::TensorView& starts) {
  const int64_t depth = places.size(places.ndim() - 1), count = starts.size(0);
  const auto bytes = static_cast<int64_t>(ffi::GetDataSize(rows)) / count;  // of a row
  auto* start = static_cast<int64_t*>(starts.data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = 0;
    for (int64_t axis = 0; axis < depth; ++axis) {
      const int64_t size = all.size(axis), index = PlaceAt(places, i * depth + axis);
      place = place * size + std::clamp<int64_t>(index, 0, size - 1);
    }
    start[i] = place * bytes;
    std::memcpy(static_cast<char*>(all.data_ptr()) + start[i],
                static_cast<const char*>(rows.data_ptr()) + i * bytes, bytes);
  }
}

}  // namespace

ffi::Function MakeWriteKernel() { return ffi::Function::FromTyped(Write); }

void WrittenRows::Forget() {
  for (Lack& lack : lacks_) lack.all = true;
}

void WrittenRows::CatchUp(const std::vector<char*>& inputs, const std::vector<char*>& outputs) {
  for (size_t i = 0; i < lacks_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.starts < 0) continue;
    const char* from = inputs[state.input];
    char* to = outputs[state.output];
    if (lacks_[i].all) {
      std::memcpy(to, from, spec_.input(state.input).bytes);
    } else {
      for (int64_t start : lacks_[i].starts) std::memcpy(to + start, from + start, state.row);
    }
  }
  Forget();
}

void WrittenRows::Remember(const std::vector<char*>& outputs, size_t length) {
  for (size_t i = 0; i < lacks_.size(); ++i) {
    const StateSpec& state = spec_.states[i];
    if (state.starts < 0) continue;
    const auto* starts = reinterpret_cast<const int64_t*>(outputs[state.starts]);
    const int64_t count = spec_.output(state.starts, length).shape[0];
    const int64_t last = spec_.input(state.input).bytes - state.row;
    lacks_[i].starts.assign(starts, starts + count);
    lacks_[i].all = std::any_of(starts, starts + count,
                                [last](int64_t start) { return start < 0 || start > last; });
  }
}

}  // namespace tvm_stretch
