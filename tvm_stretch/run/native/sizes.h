// Products of sizes that come from a file, a caller or another machine, and integers in memory.
#pragma once

#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstring>

namespace tvm_stretch {

// one * other. Throws ValueError if that is no 64-bit number, because memory of the remainder would
// be too small.
inline int64_t Times(int64_t one, int64_t other) {
  int64_t product = 0;
  if (__builtin_mul_overflow(one, other, &product)) {
    TVM_FFI_THROW(ValueError) << "expected less than 2^63 bytes for a tensor, got " << one
                              << " times " << other << "; use a smaller shape or fewer steps";
  }
  return product;
}

// The product of all sizes between two iterators.
template <typename Iterator>
int64_t Product(Iterator first, Iterator last) {
  int64_t product = 1;
  for (; first != last; ++first) product = Times(product, *first);
  return product;
}

// An integer of 4 or 8 bytes.
inline int64_t IntegerAt(const char* data, int64_t bytes) {
  if (bytes == 8) return *reinterpret_cast<const int64_t*>(data);
  return *reinterpret_cast<const int32_t*>(data);
}

// Stores an integer in 4 or 8 bytes.
inline void StoreInteger(int64_t value, int64_t bytes, char* to) {
  const auto narrow = static_cast<int32_t>(value);
  std::memcpy(to, bytes == 4 ? static_cast<const void*>(&narrow) : &value, bytes);
}

}  // namespace tvm_stretch
