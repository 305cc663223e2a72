// Products of sizes that come from a file, a caller or another machine.
#pragma once

#include <tvm/ffi/error.h>

#include <cstdint>

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

}  // namespace tvm_stretch
