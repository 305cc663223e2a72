// What all fuzzers ask: an input is taken, or refused by one clear error.
#ifndef TVM_STRETCH_TESTS_FUZZ_REFUSALS_H_
#define TVM_STRETCH_TESTS_FUZZ_REFUSALS_H_

#include <tvm/ffi/error.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace tvm_stretch::fuzz {

// Whether the call succeeded. Any exception but ours, or a text that is none of ours, is a finding.
template <typename Call>
bool IsTaken(const Call& call) {
  try {
    call();
    return true;
  } catch (const tvm::ffi::Error& error) {
    const std::string text = error.message();
    if (text.find("expected ") != std::string::npos) return false;
    std::fprintf(stderr, "a raw error: %s: %s\n", std::string(error.kind()).c_str(), text.c_str());
    std::abort();
  }
}

}  // namespace tvm_stretch::fuzz

#endif  // TVM_STRETCH_TESTS_FUZZ_REFUSALS_H_
