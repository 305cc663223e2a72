#include "device_memory.h"

#include <cstdint>
#include <cstring>

#include "graph.h"

namespace tvm_stretch::opencl {

void CheckBufferBytes(const Device& device, size_t bytes) {
  if (bytes <= device.info.max_buffer_bytes) return;
  TVM_FFI_THROW(DeviceError) << "expected at most " << device.info.max_buffer_bytes
                             << " bytes in one buffer of " << device.info.name << ", got " << bytes
                             << "; place fewer operators on this device";
}

std::shared_ptr<char> AllocatePinned(const Device& device, size_t bytes) {
  struct Owner {
    Queue queue;
    Buffer buffer;
    void* data = nullptr;
    ~Owner() {
      if (data == nullptr) return;
      CL().EnqueueUnmapMemObject(queue.get(), buffer.get(), data, 0, nullptr, nullptr);
      CL().Finish(queue.get());
    }
  };
  if (bytes == 0) return nullptr;
  auto owner = std::make_shared<Owner>();
  cl_int code = CL_SUCCESS;
  owner->queue = Queue(CL().CreateCommandQueue(device.context, device.id, 0, &code));
  Check(code, "clCreateCommandQueue");
  const cl_bitfield flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
  const size_t size = bytes + kAlignment;
  owner->buffer = Buffer(CL().CreateBuffer(device.context, flags, size, nullptr, &code));
  Check(code, "clCreateBuffer");
  owner->data =
      CL().EnqueueMapBuffer(owner->queue.get(), owner->buffer.get(), kTrue,
                            CL_MAP_READ | CL_MAP_WRITE, 0, size, 0, nullptr, nullptr, &code);
  Check(code, "clEnqueueMapBuffer");
  const auto start = reinterpret_cast<uintptr_t>(owner->data);
  char* const data =
      static_cast<char*>(owner->data) + (kAlignment - start % kAlignment) % kAlignment;
  std::memset(data, 0, bytes);
  return {owner, data};
}

Buffer DeviceMemory::ImageOf(const Device& device, DLDataType element) const {
  const bool is_half = element.bits == 16;
  if (element.code != kDLFloat || (!is_half && element.bits != 32)) {
    TVM_FFI_THROW(ValueError) << "expected float32 or float16 for a tensor in an image, got "
                              << "another type; compile the model again";
  }
  const size_t pixels = bytes_ / (4 * element.bits / 8);
  if (pixels > device.info.max_image_pixels) {
    TVM_FFI_THROW(DeviceError) << "expected at most " << device.info.max_image_pixels
                               << " pixels in an image of " << device.info.name << ", got "
                               << pixels << "; place fewer operators on this device";
  }
  const cl_image_format format{CL_RGBA, is_half ? CL_HALF_FLOAT : CL_FLOAT};
  cl_image_desc description{};
  description.type = CL_MEM_OBJECT_IMAGE1D_BUFFER;
  description.width = pixels;
  description.buffer = buffer_;
  cl_int code = CL_SUCCESS;
  Buffer image(
      CL().CreateImage(device.context, CL_MEM_READ_ONLY, &format, &description, nullptr, &code));
  Check(code, "clCreateImage");
  return image;
}

DeviceMemory::DeviceMemory(const Device& device, char* host, size_t bytes, Contents contents)
    : host_(host), bytes_(bytes) {
  CheckBufferBytes(device, bytes);
  const bool is_weights = contents == Contents::kUpload;
  // Mobile GPUs copy host memory anyway, and copy it back for each map.
  const bool is_own = device.memory == MemoryKind::kMirror || device.memory == MemoryKind::kMapped;
  cl_bitfield flags = is_weights ? CL_MEM_READ_ONLY : CL_MEM_READ_WRITE;
  void* source = host;
  size_t size = bytes;
  if (!is_own) {
    flags |= CL_MEM_USE_HOST_PTR;
  } else {
    // Kernels load whole vectors without checks, so our own buffer has a margin.
    size = (bytes + kAlignment) / kAlignment * kAlignment;
    source = nullptr;
  }
  cl_int code = CL_SUCCESS;
  own_ = Buffer(CL().CreateBuffer(device.context, flags, size, source, &code));
  Check(code, "clCreateBuffer");
  buffer_ = own_.get();
  if (!is_own || !is_weights || bytes == 0) return;
  Queue queue(CL().CreateCommandQueue(device.context, device.id, 0, &code));
  Check(code, "clCreateCommandQueue");
  Check(CL().EnqueueWriteBuffer(queue.get(), buffer_, kTrue, 0, bytes, host, 0, nullptr, nullptr),
        "clEnqueueWriteBuffer");
}

}  // namespace tvm_stretch::opencl
