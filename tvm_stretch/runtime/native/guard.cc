#include "guard.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

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

// Numbers of a type as bits: their differences wrap.
template <typename T>
using Bits = std::make_unsigned_t<T>;

template <typename T>
constexpr bool HasSign(Bits<T> bits) {
  return bits >> (8 * sizeof(T) - 1);
}

#ifdef __x86_64__
template <typename Loop>
__attribute__((target("avx2"))) bool OnAvx2(const Loop& loop) {
  return loop();
}
#endif

// What a loop returns that is always inlined, on wider vectors than those of every machine.
template <typename Loop>
bool OnWideVectors(const Loop& loop) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return OnAvx2(loop);
#endif
  return loop();
}

// Whether a value may be outside of its range, for values of which each has its own: outside, one
// of the two differences is negative. The loop has no way out and compares nothing, so that it
// becomes one on vectors everywhere (SSE2 cannot compare 64 bits). There are false alarms if a
// range has more than half of all numbers of the type.
template <typename T, typename Low, typename High>
bool MayBeOutside(const T* values, int64_t count, const Low& low, const High& high) {
  return OnWideVectors([&]() __attribute__((always_inline)) {
    Bits<T> signs = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Bits<T> value = values[i];
      signs |= Bits<T>(value - low(i)) | Bits<T>(high(i) - value);
    }
    return HasSign<T>(signs);
  });
}

// The ranges of values in a row: those of the last dimension, over and over.
template <typename T>
class Ranges {
 public:
  explicit Ranges(const GuardSpec& guard) {
    const size_t repeat = guard.low.size() == 1 ? 1 : kBlock / guard.low.size() + 1;
    for (size_t i = 0; i < repeat; ++i) {
      for (int64_t low : guard.low) low_.push_back(Bound<T>(low));
      for (int64_t high : guard.high) high_.push_back(Bound<T>(high));
    }
  }

  // The first element outside of its range; `count` if there is none.
  int64_t FindOutside(const T* values, int64_t count) const {
    if (!MayHaveOutside(values, count)) return count;
    const int64_t block = low_.size();
    int64_t i = 0;
    while (i < count && values[i] >= T(low_[i % block]) && values[i] <= T(high_[i % block])) ++i;
    return i;
  }

 private:
  static constexpr size_t kBlock = 256;  // ranges that are read from memory, which takes longer

  bool MayHaveOutside(const T* values, int64_t count) const {
    const int64_t block = low_.size();
    if (block == 1) {
      const Bits<T> low = low_[0], high = high_[0];
      return MayBeOutside(
          values, count, [low](int64_t) { return low; }, [high](int64_t) { return high; });
    }
    for (int64_t start = 0; start < count; start += block) {
      const bool outside = MayBeOutside(
          values + start, std::min(block, count - start), [this](int64_t i) { return low_[i]; },
          [this](int64_t i) { return high_[i]; });
      if (outside) return true;
    }
    return false;
  }

  std::vector<Bits<T>> low_;
  std::vector<Bits<T>> high_;
};

// The first zero; `count` if there is none.
template <typename T>
int64_t FindZero(const T* values, int64_t count) {
  const bool zero_free = OnWideVectors([&]() __attribute__((always_inline)) {
    Bits<T> signs = ~Bits<T>{0};
    for (int64_t i = 0; i < count; ++i) {
      const Bits<T> value = values[i];
      signs &= value | Bits<T>(-value);  // negative unless it is zero
    }
    return HasSign<T>(signs);
  });
  return zero_free ? count : std::find(values, values + count, T{0}) - values;
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
  const int64_t found =
      guard.low.empty() ? FindZero(values, count) : Ranges<T>(guard).FindOutside(values, count);
  if (found < count) Refuse<T>(guard, tensor, found);
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
