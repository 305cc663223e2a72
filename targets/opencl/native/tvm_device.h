// TVM's `opencl` device, for tensors and for kernels of stock TVM.
#ifndef TVM_STRETCH_OPENCL_TVM_DEVICE_H_
#define TVM_STRETCH_OPENCL_TVM_DEVICE_H_

#include <memory>
#include <mutex>
#include <vector>

#include "device.h"
#include "handle.h"
#include "tvm_device_base.h"

namespace tvm_stretch::opencl {

// The object that a TVM tensor's `data` points to on this device.
struct TensorMemory {
  Buffer buffer;
};

// TVM's device id is the position in AllDevices(). A stream is an in-order queue; each device has a
// default one, unless TVM sets another.
class TvmDevice final : public tvm::runtime::DeviceAPI {
 public:
  using Device = tvm::Device;

  static TvmDevice* Get();

  // The device that TVM set last for the calling thread, and its queue.
  const opencl::Device& CurrentDevice();
  cl_command_queue CurrentQueue();

  void SetDevice(Device device) final;
  void GetAttr(Device device, tvm::runtime::DeviceAttrKind kind, ffi::Any* result) final;
  void GetTargetProperty(Device device, const std::string& property, ffi::Any* result) final;
  using DeviceAPI::AllocDataSpace;
  void* AllocDataSpace(Device device, size_t bytes, size_t alignment, DLDataType type) final;
  void FreeDataSpace(Device device, void* data) final;
  TVMStreamHandle CreateStream(Device device) final;
  void FreeStream(Device device, TVMStreamHandle stream) final;
  void StreamSync(Device device, TVMStreamHandle stream) final;
  void SetStream(Device device, TVMStreamHandle stream) final;
  TVMStreamHandle GetCurrentStream(Device device) final;
  using DeviceAPI::CopyDataFromTo;

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                      size_t bytes, Device from_device, Device to_device, DLDataType type,
                      TVMStreamHandle stream) final;

 private:
  const opencl::Device& At(Device device);
  cl_command_queue QueueOf(Device device, TVMStreamHandle stream);

  std::mutex mutex_;  // guards the queues
  std::vector<Queue> queues_;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_TVM_DEVICE_H_
