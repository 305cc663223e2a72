// Deflated pieces of an upload: two bytes say how long the result is to be, the rest is deflated.
#include "inflate.h"

#include <cstdint>
#include <cstring>

#include "refusals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  uint16_t size;
  std::memcpy(&size, data, sizeof(size));
  tvm_stretch::fuzz::IsTaken([&] {
    const std::string whole =
        tvm_stretch::Inflate(reinterpret_cast<const char*>(data) + 2, bytes - 2, size);
    if (whole.size() != size) std::abort();
  });
  return 0;
}
