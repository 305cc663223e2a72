#include "guard.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <string>

#include "errors.h"

namespace tvm_stretch {
namespace {

// The bound as a number of type T; one that no T reaches is T's own.
template <typename T>
T Bound(int64_t bound) {
  using Limits = std::numeric_limits<T>;
  if (bound < 0)
    return std::is_signed_v<T> && bound > int64_t{Limits::min()} ? T(bound) : Limits::min();
  return static_cast<uint64_t>(bound) < uint64_t{Limits::max()} ? T(bound) : Limits::max();
}

// Whether all values, each `step` elements behind the other, are in the range.
template <typename T>
bool AreInside(const T* values, int64_t count, int64_t step, T low, T high) {
  int outside = 0;  // no way out of the loop: it becomes one on vectors
  for (int64_t i = 0; i < count; ++i)
    outside |= (values[i * step] < low) | (values[i * step] > high);
  return outside == 0;
}

template <typename T>
bool IsZeroFree(const T* values, int64_t count) {
  int zeros = 0;
  for (int64_t i = 0; i < count; ++i) zeros |= values[i] == 0;
  return zeros == 0;
}

std::string Place(const DLTensor& tensor, int64_t element) {
  std::string place = "]";
  for (int dim = tensor.ndim - 1; dim >= 0; --dim) {
    place = (dim > 0 ? ", " : "") + std::to_string(element % tensor.shape[dim]) + place;
    element /= tensor.shape[dim];
  }
  return "[" + place;
}

template <typename T>
[[noreturn]] void Refuse(const GuardSpec& guard, const DLTensor& tensor, int64_t element) {
  const size_t column = guard.low.size() > 1 ? element % guard.low.size() : 0;
  const std::string expected = guard.low.empty() ? "no zero"
                                                 : std::to_string(guard.low[column]) + " to " +
                                                       std::to_string(guard.high[column]);
  throw ffi::Error(kInputError,
                   "expected " + expected + " for " + guard.what + ", got " +
                       std::to_string(static_cast<const T*>(tensor.data)[element]) + " at " +
                       Place(tensor, element) + "; correct the inputs",
                   "");
}

template <typename T>
void Check(const GuardSpec& guard, const DLTensor& tensor) {
  const T* values = static_cast<const T*>(tensor.data);
  int64_t count = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) count *= tensor.shape[dim];
  if (guard.low.empty()) {
    if (IsZeroFree(values, count)) return;
    Refuse<T>(guard, tensor, std::find(values, values + count, T{0}) - values);
  }
  const int64_t step = static_cast<int64_t>(guard.low.size());
  for (int64_t column = 0; column < step; ++column) {
    const T low = Bound<T>(guard.low[column]), high = Bound<T>(guard.high[column]);
    if (AreInside(values + column, count / step, step, low, high)) continue;
    int64_t element = column;
    while (values[element] >= low && values[element] <= high) element += step;
    Refuse<T>(guard, tensor, element);
  }
}

void Check(const GuardSpec& guard, const DLTensor& tensor) {
  const bool is_signed = tensor.dtype.code == kDLInt;
  switch (tensor.dtype.bits) {
    case 8:
      return is_signed ? Check<int8_t>(guard, tensor) : Check<uint8_t>(guard, tensor);
    case 16:
      return is_signed ? Check<int16_t>(guard, tensor) : Check<uint16_t>(guard, tensor);
    case 32:
      return is_signed ? Check<int32_t>(guard, tensor) : Check<uint32_t>(guard, tensor);
    case 64:
      return is_signed ? Check<int64_t>(guard, tensor) : Check<uint64_t>(guard, tensor);
  }
}

}  // namespace

void CheckGuards(const GraphSpec& graph, BoundTensors* tensors) {
  for (const GuardSpec& guard : graph.guards) Check(guard, *tensors->at(guard.tensor));
}

}  // namespace tvm_stretch
