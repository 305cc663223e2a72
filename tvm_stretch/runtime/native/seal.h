// The end of an exported file: a fingerprint of all bytes before it; runtime/seal.py writes it.
#ifndef TVM_STRETCH_SEAL_H_
#define TVM_STRETCH_SEAL_H_

#include <tvm/ffi/string.h>

#include <cstdint>
#include <cstring>

#include "memory.h"

namespace tvm_stretch {

struct Seal {
  char magic[8];
  int64_t bytes;
  int64_t fingerprint;

  bool IsThere() const { return std::memcmp(magic, "TVMSTRS1", sizeof(magic)) == 0; }

  // Whether the file's first bytes, so many, are those that were sealed. It reads them all.
  bool Fits(const ffi::String& path, int64_t count) const {
    return bytes == count && fingerprint == FingerprintFile(path, count);
  }
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_SEAL_H_
