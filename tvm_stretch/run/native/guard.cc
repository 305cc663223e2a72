#include "guard.h"

#include <tvm/ffi/error.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "errors.h"
#include "sizes.h"

namespace tvm_stretch {
namespace {

// The bound as a value of type T, clamped to T's range.
template <typename T>
T Bound(int64_t bound) {
  using Limits = std::numeric_limits<T>;
  if (bound < 0)
    return std::is_signed_v<T> && bound > int64_t{Limits::min()} ? T(bound) : Limits::min();
  return static_cast<uint64_t>(bound) < uint64_t{Limits::max()} ? T(bound) : Limits::max();
}

// The unsigned type of the same size, whose differences wrap.
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

// Runs an inlined loop, compiled for wider vectors if this machine has them.
template <typename Loop>
bool OnWideVectors(const Loop& loop) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return OnAvx2(loop);
#endif
  return loop();
}

// Whether some value may be outside of its own range: then one of the two differences is negative.
// The loop has no exit and no comparison, so every compiler vectorizes it (SSE2 cannot compare 64
// bits). It gives false alarms if a range holds more than half of the type's values.
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

// Up to this number of values are checked one by one, which is done before a
// loop on vectors has begun.
constexpr int64_t kFew = 4;

// The same range for all values.
template <typename T>
class OneRange {
 public:
  explicit OneRange(const GuardSpec& guard)
      : low_(Bound<T>(guard.low[0])), high_(Bound<T>(guard.high[0])) {}

  // The first element outside of it; `count` if there is none.
  int64_t FindWrong(const T* values, int64_t count) const {
    const Bits<T> low = low_, high = high_;
    if (count > kFew &&
        !MayBeOutside(
            values, count, [low](int64_t) { return low; }, [high](int64_t) { return high; })) {
      return count;
    }
    int64_t i = 0;
    while (i < count && values[i] >= low_ && values[i] <= high_) ++i;
    return i;
  }

 private:
  T low_, high_;
};

// A range for each place in the last dimension, over and over.
template <typename T>
class Ranges {
 public:
  explicit Ranges(const GuardSpec& guard) {
    for (size_t i = 0; i < kBlock / guard.low.size() + 1; ++i) {
      for (int64_t low : guard.low) low_.push_back(Bound<T>(low));
      for (int64_t high : guard.high) high_.push_back(Bound<T>(high));
    }
  }

  // The first element outside of its range; `count` if there is none.
  int64_t FindWrong(const T* values, int64_t count) const {
    const int64_t block = low_.size();
    for (int64_t start = 0; start < count; start += block) {
      const T* here = values + start;
      const int64_t size = std::min(block, count - start);
      const bool outside = MayBeOutside(
          here, size, [this](int64_t i) { return low_[i]; },
          [this](int64_t i) { return high_[i]; });
      if (!outside) continue;
      for (int64_t i = 0; i < size; ++i) {
        if (here[i] < T(low_[i]) || here[i] > T(high_[i])) return start + i;
      }
    }
    return count;
  }

 private:
  static constexpr size_t kBlock = 256;  // ranges that are read from memory, which takes longer

  std::vector<Bits<T>> low_;
  std::vector<Bits<T>> high_;
};

// Forbids zero.
template <typename T>
class NoZero {
 public:
  explicit NoZero(const GuardSpec&) {}

  // The first zero; `count` if there is none.
  int64_t FindWrong(const T* values, int64_t count) const {
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
};

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

// The check of a tensor of type T by a Rule.
template <typename T, template <typename> class Rule>
class LookFor final : public Look {
 public:
  LookFor(const GuardSpec& guard, const DLTensor& tensor)
      : guard_(guard),
        tensor_(tensor),
        count_(Product(tensor.shape, tensor.shape + tensor.ndim)),
        rule_(guard) {}

  void Check() const final {
    const int64_t found = rule_.FindWrong(static_cast<const T*>(tensor_.data), count_);
    if (found < count_) Refuse<T>(guard_, tensor_, found);
  }

 private:
  const GuardSpec& guard_;
  const DLTensor& tensor_;
  const int64_t count_;
  const Rule<T> rule_;
};

template <typename T>
std::unique_ptr<Look> Prepare(const GuardSpec& guard, const DLTensor& tensor) {
  if (guard.low.empty()) return std::make_unique<LookFor<T, NoZero>>(guard, tensor);
  if (guard.low.size() == 1) return std::make_unique<LookFor<T, OneRange>>(guard, tensor);
  return std::make_unique<LookFor<T, Ranges>>(guard, tensor);
}

std::unique_ptr<Look> Prepare(const GuardSpec& guard, const DLTensor& tensor) {
  const bool is_signed = tensor.dtype.code == kDLInt;
  switch (tensor.dtype.bits) {
    case 8:
      return is_signed ? Prepare<int8_t>(guard, tensor) : Prepare<uint8_t>(guard, tensor);
    case 16:
      return is_signed ? Prepare<int16_t>(guard, tensor) : Prepare<uint16_t>(guard, tensor);
    case 32:
      return is_signed ? Prepare<int32_t>(guard, tensor) : Prepare<uint32_t>(guard, tensor);
    default:
      return is_signed ? Prepare<int64_t>(guard, tensor) : Prepare<uint64_t>(guard, tensor);
  }
}

}  // namespace

Guards::Guards(const std::vector<GuardSpec>& guards, BoundTensors* tensors) {
  for (const GuardSpec& guard : guards) {
    looks_.push_back(Prepare(guard, *tensors->at(guard.tensor)));
  }
}

}  // namespace tvm_stretch
