// Inflates an upload (raw deflate, RFC 1951). zlib would be a second way: Debian has its header in
// a package of its own, a board without it could not load the server, and uploads need 200 lines of
// it.
#ifndef TVM_STRETCH_INFLATE_H_
#define TVM_STRETCH_INFLATE_H_

#include <cstddef>
#include <string>

#include "graph.h"

namespace tvm_stretch {

// Inflates `data` to exactly `size` bytes. Throws ValueError if it is damaged, or inflates to
// another size: a few bytes must not fill the memory of a phone.
TVM_STRETCH_API std::string Inflate(const char* data, size_t bytes, size_t size);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_INFLATE_H_
