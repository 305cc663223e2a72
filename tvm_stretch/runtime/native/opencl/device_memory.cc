#include "device_memory.h"

#include "../graph.h"

namespace tvm_stretch::opencl {

DeviceMemory::DeviceMemory(const Device& device, char* host, size_t bytes, Contents contents)
    : host_(host), bytes_(bytes) {
  if (bytes > device.info.max_buffer_bytes) {
    TVM_FFI_THROW(DeviceError) << "expected at most " << device.info.max_buffer_bytes
                               << " bytes in one buffer of " << device.info.name << ", got "
                               << bytes << "; place fewer operators on this device";
  }
  const bool is_weights = contents == Contents::kUpload;
  cl_bitfield flags = is_weights ? CL_MEM_READ_ONLY : CL_MEM_READ_WRITE;
  void* source = host;
  size_t size = bytes;
  if (device.memory != MemoryKind::kMirror) {
    flags |= CL_MEM_USE_HOST_PTR;
  } else {
    // Kernels read whole vectors and never check, so a buffer of our own has a margin.
    size = (bytes + kAlignment) / kAlignment * kAlignment;
    source = nullptr;
  }
  cl_int code = CL_SUCCESS;
  buffer_ = Buffer(CL().CreateBuffer(device.context, flags, size, source, &code));
  Check(code, "clCreateBuffer");
  if (device.memory != MemoryKind::kMirror || !is_weights || bytes == 0) return;
  Queue queue(CL().CreateCommandQueue(device.context, device.id, 0, &code));
  Check(code, "clCreateCommandQueue");
  Check(CL().EnqueueWriteBuffer(queue.get(), buffer_.get(), kTrue, 0, bytes, host, 0, nullptr,
                                nullptr),
        "clEnqueueWriteBuffer");
}

}  // namespace tvm_stretch::opencl
