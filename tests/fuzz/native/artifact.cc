// The bytes of an artifact: headers and seal, which are read before the file is mapped as code.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tvm_stretch/phone/app/tvm_stretch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  TvmStretchModel* model = nullptr;
  const TvmStretchStatus status = tvm_stretch_load_memory(data, bytes, &model);
  if (status == TVM_STRETCH_OK) {
    tvm_stretch_free(model);
    return 0;
  }
  const bool is_clear = strstr(tvm_stretch_last_error(), "expected ") != nullptr;
  if (status != TVM_STRETCH_BAD_ARTIFACT || model != nullptr || !is_clear) {
    std::fprintf(stderr, "status %d: %s\n", status, tvm_stretch_last_error());
    std::abort();
  }
  return 0;
}
