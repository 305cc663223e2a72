// The graph of an artifact as JSON, and the header that stands before it in the file.
#include "graph.h"

#include <cstdint>

#include "program.h"
#include "refusals.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const auto* text = reinterpret_cast<const char*>(data);
  tvm_stretch::fuzz::IsTaken(
      [&] { tvm_stretch::GraphSpec::FromJSON(tvm::ffi::String(text, bytes)); });
  tvm_stretch::fuzz::IsTaken(
      [&] { tvm_stretch::GraphBytes::Decode(tvm::ffi::Bytes(text, bytes)); });
  return 0;
}
