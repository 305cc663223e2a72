#include "tvm_device_base.h"

#include <tvm/ffi/container/tensor.h>

#include "sizes.h"

namespace tvm::runtime {

size_t DeviceAPI::GetDataSize(const DLTensor& tensor, ffi::Optional<ffi::String>) {
  return ffi::GetDataSize(tensor);
}

void* DeviceAPI::AllocDataSpace(Device device, int ndim, const int64_t* shape, DLDataType dtype,
                                ffi::Optional<ffi::String> scope) {
  if (scope.has_value() && !(*scope).empty() && *scope != "global") {
    TVM_FFI_THROW(ValueError) << "expected memory of scope global on " << device << ", got "
                              << *scope << "; use buffers, not images";
  }
  DLTensor tensor{};
  tensor.ndim = ndim;
  tensor.shape = const_cast<int64_t*>(shape);
  tensor.dtype = dtype;
  return AllocDataSpace(device, tvm_stretch::CheckedBytes(tensor), kAllocAlignment, dtype);
}

void DeviceAPI::CopyDataFromTo(DLTensor* from, DLTensor* to, TVMStreamHandle stream) {
  const size_t bytes = ffi::GetDataSize(*from);
  if (bytes != ffi::GetDataSize(*to) || !ffi::IsContiguous(*from) || !ffi::IsContiguous(*to)) {
    TVM_FFI_THROW(ValueError) << "expected two contiguous tensors of one size for a copy, got "
                              << bytes << " and " << ffi::GetDataSize(*to)
                              << " bytes; make them contiguous first";
  }
  CopyDataFromTo(from->data, from->byte_offset, to->data, to->byte_offset, bytes, from->device,
                 to->device, from->dtype, stream);
}

void DeviceAPI::CopyDataFromTo(const void*, size_t, void*, size_t, size_t, Device, Device,
                               DLDataType, TVMStreamHandle) {
  TVM_FFI_THROW(NotImplementedError) << "expected a device that copies, got one that does not";
}

TVMStreamHandle DeviceAPI::CreateStream(Device) { return nullptr; }
void DeviceAPI::FreeStream(Device, TVMStreamHandle) {}
void DeviceAPI::SetStream(Device, TVMStreamHandle) {}
TVMStreamHandle DeviceAPI::GetCurrentStream(Device) { return nullptr; }
void DeviceAPI::SyncStreamFromTo(Device device, TVMStreamHandle from, TVMStreamHandle) {
  StreamSync(device, from);
}

void* DeviceAPI::AllocWorkspace(Device device, size_t bytes, DLDataType type) {
  return AllocDataSpace(device, bytes, kTempAllocaAlignment, type);
}
void DeviceAPI::FreeWorkspace(Device device, void* data) { FreeDataSpace(device, data); }

}  // namespace tvm::runtime
