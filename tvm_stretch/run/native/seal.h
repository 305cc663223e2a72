// The end of an exported file: a fingerprint of the bytes before it; run/seal.py writes it.
//
// An artifact's weights are left out. They are most of the file, cannot harm the loader, and have a
// fingerprint in the graph, which is compared beside the kernels that prepare them (program.h).
#pragma once

#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstring>

#include "memory.h"

namespace tvm_stretch {

struct Seal {
  char magic[8];
  int64_t bytes;          // of the file, without this
  int64_t weights_start;  // the part that is left out
  int64_t weights_bytes;
  int64_t fingerprint;

  bool IsThere() const { return std::memcmp(magic, "TVMSTRS2", sizeof(magic)) == 0; }

  // Whether the part that is left out lies within a file of `count` bytes.
  bool HasParts(int64_t count) const {
    return bytes == count && weights_start >= 0 && weights_bytes >= 0 && weights_start <= bytes &&
           weights_bytes <= bytes - weights_start;
  }

  // Whether the file's first bytes, so many, are those that were sealed. It reads them all, but for
  // the weights.
  bool Fits(const ffi::String& path, int64_t count) const {
    return HasParts(count) && fingerprint == Measure(path);
  }

  int64_t Measure(const ffi::String& path) const {
    const int64_t end = weights_start + weights_bytes;
    const auto part = [&path](int64_t start, int64_t count) {
      return count == 0 ? 0 : FingerprintFile(path, start, count);
    };
    const int64_t parts[] = {bytes, weights_start, weights_bytes, part(0, weights_start),
                             part(end, bytes - end)};
    return static_cast<int64_t>(Fingerprint(parts, sizeof(parts)));
  }
};

}  // namespace tvm_stretch
