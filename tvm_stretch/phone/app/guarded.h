// Exceptions of C++ become statuses of C, and the text of the last one of a thread.
#pragma once

#include <tvm/ffi/error.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "errors.h"
#include "tvm_stretch.h"

namespace tvm_stretch {

namespace ffi = tvm::ffi;

namespace app {

inline thread_local std::string last_text;
// It points to `last_text`, or to a constant where memory is missing.
inline thread_local const char* last_error = "";

inline bool IsMemory(const ffi::Error& error) {
  return error.message().find("free memory") != std::string::npos;
}

// tvm-ffi makes such an error of C++'s when its own functions find no memory.
inline void RequireMemory(const ffi::Error& error) {
  if (error.message() == "std::bad_alloc") throw std::bad_alloc();
}

inline TvmStretchStatus StatusOf(const ffi::Error& error) {
  const std::string kind = error.kind();
  if (kind == "ValueError" || kind == "TypeError") return TVM_STRETCH_INVALID;
  if (kind == kArtifactError) return TVM_STRETCH_BAD_ARTIFACT;
  if (kind == kInputError) return TVM_STRETCH_BAD_VALUES;
  if (kind == kDeviceError) return TVM_STRETCH_DEVICE;
  if (kind == kRunCancelled) return TVM_STRETCH_CANCELLED;
  if (IsMemory(error)) return TVM_STRETCH_NO_MEMORY;
  return kind == kRunError ? TVM_STRETCH_RUN : TVM_STRETCH_INTERNAL;
}

inline TvmStretchStatus Fail(TvmStretchStatus status, std::string text) {
  last_text = std::move(text);
  last_error = last_text.c_str();
  return status;
}

template <typename Call>
TvmStretchStatus Told(Call call) {
  try {
    call();
    return TVM_STRETCH_OK;
  } catch (const ffi::Error& error) {
    RequireMemory(error);
    return Fail(StatusOf(error), error.message());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return Fail(TVM_STRETCH_INTERNAL, error.what());
  } catch (...) {
    return Fail(TVM_STRETCH_INTERNAL, "expected no error, got one without a text; report it");
  }
}

// Even the text of an error may find no memory.
template <typename Call>
TvmStretchStatus Guarded(Call call) {
  try {
    return Told(call);
  } catch (const std::bad_alloc&) {
    last_error = "expected more free memory, got none; free some";
    return TVM_STRETCH_NO_MEMORY;
  }
}

inline void Require(const void* pointer, const char* what) {
  if (pointer != nullptr) return;
  TVM_FFI_THROW(ValueError) << "expected a pointer for " << what << ", got NULL; see tvm_stretch.h";
}

}  // namespace app
}  // namespace tvm_stretch
