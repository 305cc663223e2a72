#include "imports.h"

#include <algorithm>

namespace tvm_stretch::opencl {
namespace {

// Names and values of extensions that Khronos, Arm and Qualcomm publish.
constexpr cl_ulong kDmaBufHandle = 0x2067;
constexpr cl_properties kArmType = 0x40B2, kArmDmaBuf = 0x40B4, kArmHardwareBuffer = 0x41E2;
constexpr cl_uint kQcomIon = 0x40A8, kQcomDmaBuf = 0x411D, kQcomHardwareBuffer = 0x4119;
constexpr cl_uint kQcomUncached = 0x40A4, kQcomCoherent = 0x40A9;
constexpr cl_bitfield kQcomExternal = 1 << 29;

using ArmImport = cl_mem (*)(cl_context, cl_bitfield, const cl_properties*, void*, size_t, cl_int*);
using HandOver = cl_int (*)(cl_command_queue, cl_uint, const cl_mem*, cl_uint, const cl_event*,
                            cl_event*);

template <typename Function>
Function Extension(const Device& device, const char* name) {
  const auto find = CL().GetExtensionFunctionAddressForPlatform;
  return find == nullptr ? nullptr : reinterpret_cast<Function>(find(device.platform, name));
}

cl_mem ByArm(const Device& device, const ExternalMemory& memory, int64_t kind, cl_int* code) {
  const auto import = Extension<ArmImport>(device, "clImportMemoryARM");
  if (import == nullptr) return nullptr;
  const cl_properties properties[] = {kArmType, kind, 0};
  int fd = memory.fd;
  const bool is_file = kind == kArmDmaBuf;
  const size_t bytes = is_file ? memory.offset + memory.bytes : SIZE_MAX;  // all of a buffer
  void* const source = is_file ? &fd : memory.hardware_buffer;
  return import(device.context, CL_MEM_READ_ONLY, properties, source, bytes, code);
}

cl_mem ByQcom(const Device& device, const ExternalMemory& memory, int64_t kind, cl_int* code) {
  struct {
    cl_uint kind, cache;
    int fd;
    void* data;
  } file{static_cast<cl_uint>(kind), kQcomUncached, memory.fd, memory.data};
  struct {
    cl_uint kind, cache;
    void* buffer;
  } buffer{file.kind, kQcomUncached, memory.hardware_buffer};
  if (device.info.Has("cl_qcom_ext_host_ptr_iocoherent")) file.cache = buffer.cache = kQcomCoherent;
  if (memory.offset != 0) return nullptr;
  void* const source = memory.fd >= 0 ? static_cast<void*>(&file) : &buffer;
  constexpr cl_bitfield kFlags = CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR | kQcomExternal;
  return CL().CreateBuffer(device.context, kFlags, memory.bytes, source, code);
}

cl_mem ByKhronos(const Device& device, const ExternalMemory& memory, int64_t, cl_int* code) {
  const cl_ulong handle[] = {kDmaBufHandle, static_cast<cl_ulong>(memory.fd), 0};
  if (CL().CreateBufferWithProperties == nullptr) return nullptr;
  return CL().CreateBufferWithProperties(device.context, handle, CL_MEM_READ_ONLY,
                                         memory.offset + memory.bytes, nullptr, code);
}

// The ways in which drivers import memory, by the extensions that they name.
struct Way {
  const char* extension;
  bool is_file;  // else Android's buffers
  int64_t kind;
  cl_mem (*import)(const Device&, const ExternalMemory&, int64_t kind, cl_int*);
};
constexpr Way kWays[] = {
    {"cl_arm_import_memory_dma_buf", true, kArmDmaBuf, ByArm},
    {"cl_arm_import_memory_android_hardware_buffer", false, kArmHardwareBuffer, ByArm},
    {"cl_qcom_dmabuf_host_ptr", true, kQcomDmaBuf, ByQcom},
    {"cl_qcom_ion_host_ptr", true, kQcomIon, ByQcom},
    {"cl_qcom_android_ahardwarebuffer_host_ptr", false, kQcomHardwareBuffer, ByQcom},
    {"cl_khr_external_memory_dma_buf", true, 0, ByKhronos},
};

}  // namespace

const DeviceMemory* Imports::Find(const ExternalMemory& memory) {
  const auto is_it = [&](const Imported& one) { return one.id == memory.id; };
  const auto found = std::find_if(last_.begin(), last_.end(), is_it);
  if (found != last_.end()) {
    last_.splice(last_.begin(), last_, found);
  } else if (!Import(memory)) {
    return nullptr;
  }
  Imported& imported = last_.front();
  return imported.is_handed_over && !Acquire(&imported) ? nullptr : &imported.memory;
}

bool Imports::Import(const ExternalMemory& memory) {
  cl_int code = CL_SUCCESS;
  Buffer buffer;
  bool is_handed_over = false;
  for (const Way& way : kWays) {
    if (buffer || way.is_file != (memory.fd >= 0) || !device_.info.Has(way.extension)) continue;
    buffer = Buffer(way.import(device_, memory, way.kind, &code));
    is_handed_over = way.import == ByKhronos;
  }
  if (!buffer) return false;
  DeviceMemory whole(memory.data - memory.offset, memory.offset + memory.bytes, buffer.get());
  last_.push_front({memory.id, is_handed_over, false, std::move(buffer), std::move(whole)});
  if (last_.size() > kept_) last_.pop_back();
  return true;
}

// Khronos' way: the device sees what others wrote when it acquires the memory again.
bool Imports::Acquire(Imported* imported) {
  cl_int code = CL_SUCCESS;
  if (!queue_) queue_ = Queue(CL().CreateCommandQueue(device_.context, device_.id, 0, &code));
  const auto call = [&](const char* name) {
    const auto hand_over = Extension<HandOver>(device_, name);
    const cl_mem buffer = imported->buffer.get();
    return queue_ && hand_over != nullptr &&
           hand_over(queue_.get(), 1, &buffer, 0, nullptr, nullptr) == CL_SUCCESS;
  };
  if (imported->is_acquired && !call("clEnqueueReleaseExternalMemObjectsKHR")) return false;
  imported->is_acquired = call("clEnqueueAcquireExternalMemObjectsKHR");
  return imported->is_acquired && CL().Finish(queue_.get()) == CL_SUCCESS;
}

}  // namespace tvm_stretch::opencl
