// Qualcomm's library libcdsprpc.so, which calls the DSP of a phone. It is found when it is first
// needed; neither its headers nor the SDK are: types and values are those of its public sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "processor.h"

namespace tvm_stretch::dsp {

// An argument of a call: a buffer.
struct RpcArgument {
  void* data;
  size_t bytes;
};

struct Cdsprpc {
  static constexpr int kDomain = 3;             // the DSP with vectors, among those of a chip
  static constexpr int kConnectionReset = 104;  // the process on the DSP has ended

  // As in the library; names that only some versions have may be null.
  void* (*rpcmem_alloc)(int heap, uint32_t flags, int bytes);
  void (*rpcmem_free)(void* memory);
  int (*rpcmem_to_fd)(void* memory);
  int (*remote_session_control)(uint32_t request, void* data, uint32_t bytes);
  int (*remote_handle64_open)(const char* name, uint64_t* handle);
  int (*remote_handle64_invoke)(uint64_t handle, uint32_t scalars, RpcArgument* arguments);
  int (*remote_handle64_close)(uint64_t handle);
  int (*fastrpc_mmap)(int domain, int fd, void* address, int offset, size_t bytes, int flags);
  int (*fastrpc_munmap)(int domain, int fd, void* address, size_t bytes);
  int (*remote_handle64_control)(uint64_t handle, uint32_t request, void* data, uint32_t bytes);
};

// The library of this process, which stays loaded. Throws DeviceError if there is none.
const Cdsprpc& TheCdsprpc();

// Why there is no library; empty if there is one.
std::string WhyNoCdsprpc();

// A call that returned an error, for people: "remote_handle64_open: AEE_ENOSUCH (0x27), ...".
std::string RpcError(const char* call, int code);

}  // namespace tvm_stretch::dsp
