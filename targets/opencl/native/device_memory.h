// A part of the executor's memory as a buffer of a device.
#pragma once

#include <cstddef>
#include <memory>

#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

enum class Contents {
  kUpload,     // the host's present bytes, which never change (weights)
  kUndefined,  // written before it is read (activations)
};

// Equal offsets on both sides: `host + offset` is the buffer's byte `offset`. `host` outlives it.
class DeviceMemory {
 public:
  // Throws DeviceError if the device lacks memory.
  DeviceMemory(const Device& device, char* host, size_t bytes, Contents contents);
  // Wraps memory that the driver has allocated; `buffer` outlives this.
  DeviceMemory(char* host, size_t bytes, cl_mem buffer)
      : host_(host), bytes_(bytes), buffer_(buffer) {}

  cl_mem buffer() const { return buffer_; }
  size_t OffsetOf(const char* address) const { return static_cast<size_t>(address - host_); }
  // The bytes as an image in which four elements are a pixel. Throws DeviceError if the device
  // has no such images.
  Buffer ImageOf(const Device& device, DLDataType element) const;
  bool Holds(const char* address) const { return address >= host_ && address < host_ + bytes_; }

 private:
  char* host_;
  size_t bytes_;
  Buffer own_;
  cl_mem buffer_;
};

// Zeroed memory of the host that a device with memory of its own copies from and to directly, which
// drivers do only from memory that they allocated. Throws DeviceError if there is none.
std::shared_ptr<char> AllocatePinned(const Device& device, size_t bytes);

// Throws DeviceError if the device does not support buffers of that size.
void CheckBufferBytes(const Device& device, size_t bytes);

}  // namespace tvm_stretch::opencl
