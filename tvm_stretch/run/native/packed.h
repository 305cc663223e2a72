// Functions for TVM's registry.
#pragma once

#include <tvm/ffi/function.h>

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "processor.h"

namespace tvm_stretch {

namespace ffi = tvm::ffi;

// Calls it; missing memory is an error of ours, because tvm-ffi would only tell `std::bad_alloc`.
template <typename Call>
auto OrNoMemory(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    throw NoMemoryError();
  }
}

// Throws TypeError if there are fewer or more arguments.
void RequireCount(const ffi::PackedArgs& args, int low, int high, const char* method);

// `cast` is always inlined, with its message.
template <typename T>
[[gnu::noinline]] T ArgumentOf(const ffi::AnyView& value) {
  return value.cast<T>();
}

template <typename Result, typename... Args, size_t... number>
void CallPlain(Result (*function)(Args...), const ffi::PackedArgs& args, ffi::Any* result,
               std::index_sequence<number...>) {
  if constexpr (std::is_void_v<Result>) {
    function(ArgumentOf<std::decay_t<Args>>(args[number])...);
  } else {
    *result = function(ArgumentOf<std::decay_t<Args>>(args[number])...);
  }
}

// A function for `def_packed`. `def` itself writes messages with the whole signature, of 2 KB for
// each function: a tenth of the library that an app carries.
template <typename Result, typename... Args>
auto Packed(Result (*function)(Args...)) {
  return [function](const ffi::PackedArgs& args, ffi::Any* result) {
    constexpr int kCount = sizeof...(Args);
    RequireCount(args, kCount, kCount, "a function of the registry");
    OrNoMemory([&] { CallPlain(function, args, result, std::index_sequence_for<Args...>()); });
  };
}

}  // namespace tvm_stretch
