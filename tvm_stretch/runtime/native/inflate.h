// Undoes what zlib's raw deflate (RFC 1951) did to an upload; a phone need not have zlib.
#ifndef TVM_STRETCH_INFLATE_H_
#define TVM_STRETCH_INFLATE_H_

#include <cstddef>
#include <string>

#include "graph.h"

namespace tvm_stretch {

// The `size` bytes that `data` stands for. Throws ValueError if it is no deflated data, or stands
// for fewer or more: nobody fills the memory of a phone with a few bytes.
TVM_STRETCH_API std::string Inflate(const char* data, size_t bytes, size_t size);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_INFLATE_H_
