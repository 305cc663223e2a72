// Kinds of errors that callers distinguish; Python has a class for each (errors.py).
#pragma once

#include <tvm/ffi/error.h>

#include <string>

namespace tvm_stretch {

// An input has values outside the range that the network can compute with.
inline constexpr const char* kInputError = "InputError";
// A run cannot begin, or lacks memory.
inline constexpr const char* kRunError = "RunError";
// The bytes of a file are not what this machine can load, or cannot be read.
inline constexpr const char* kArtifactError = "ArtifactError";
// A processor other than the CPU, or its driver, is missing or fails.
inline constexpr const char* kDeviceError = "DeviceError";
// `cancel` was called.
inline constexpr const char* kRunCancelled = "RunCancelled";

// A fork has the memory of its parent, but neither its threads nor those of its drivers.
inline tvm::ffi::Error ForkError() {
  return tvm::ffi::Error(kRunError,
                         "expected a model in the process that began to use it, got a fork of that "
                         "one; start processes with spawn, and load the model there",
                         "");
}

}  // namespace tvm_stretch
