#include "tvm_device.h"

#include <algorithm>
#include <unordered_map>

namespace tvm_stretch::opencl {
namespace {

thread_local int current_device = 0;
thread_local std::unordered_map<int, cl_command_queue> current_streams;

Queue NewQueue(const Device& device) {
  cl_int code = CL_SUCCESS;
  Queue queue(CL().CreateCommandQueue(device.context, device.id, 0, &code));
  Check(code, "clCreateCommandQueue");
  return queue;
}

cl_mem BufferOf(const void* data) { return static_cast<const TensorMemory*>(data)->buffer.get(); }

}  // namespace

TvmDevice* TvmDevice::Get() {
  static auto* device = new TvmDevice();  // leaked, as TVM may free tensors at exit
  return device;
}

const opencl::Device& TvmDevice::At(Device device) {
  const auto& devices = AllDevices();
  if (device.device_id < 0 || static_cast<size_t>(device.device_id) >= devices.size()) {
    TVM_FFI_THROW(ValueError) << "expected one of " << devices.size()
                              << " OpenCL devices, got opencl(" << device.device_id
                              << "); tvm_stretch.opencl_devices() lists them";
  }
  return *devices[device.device_id];
}

cl_command_queue TvmDevice::QueueOf(Device device, TVMStreamHandle stream) {
  if (stream != nullptr) return static_cast<cl_command_queue>(stream);
  const opencl::Device& found = At(device);
  auto set = current_streams.find(device.device_id);
  if (set != current_streams.end() && set->second != nullptr) return set->second;
  std::lock_guard<std::mutex> lock(mutex_);
  queues_.resize(std::max(queues_.size(), AllDevices().size()));
  Queue& queue = queues_[device.device_id];
  if (!queue) queue = NewQueue(found);
  return queue.get();
}

const opencl::Device& TvmDevice::CurrentDevice() { return At(Device{kDLOpenCL, current_device}); }

cl_command_queue TvmDevice::CurrentQueue() {
  return QueueOf(Device{kDLOpenCL, current_device}, nullptr);
}

void TvmDevice::SetDevice(Device device) { current_device = At(device).index; }

void TvmDevice::GetAttr(Device device, tvm::runtime::DeviceAttrKind kind, ffi::Any* result) {
  using namespace tvm::runtime;  // NOLINT: the names of the kinds
  if (kind == kExist) {
    bool exists = false;
    try {
      exists = device.device_id >= 0 && static_cast<size_t>(device.device_id) < AllDevices().size();
    } catch (const ffi::Error&) {  // no driver, no device
    }
    *result = static_cast<int64_t>(exists);
    return;
  }
  const DeviceInfo& info = At(device).info;
  switch (kind) {
    case kMaxThreadsPerBlock:
      *result = static_cast<int64_t>(info.max_group_size);
      return;
    case kWarpSize:
      *result = int64_t{1};
      return;
    case kMaxSharedMemoryPerBlock:
      *result = static_cast<int64_t>(info.local_bytes);
      return;
    case kComputeVersion:
    case kApiVersion:
      *result = ffi::String(info.version);
      return;
    case kDeviceName:
      *result = ffi::String(info.name);
      return;
    case kMaxClockRate:
      *result = static_cast<int64_t>(info.clock_mhz) * 1000;  // TVM's unit is kHz
      return;
    case kMultiProcessorCount:
      *result = static_cast<int64_t>(info.compute_units);
      return;
    case kMaxThreadDimensions: {
      std::string sizes;
      for (size_t size : info.max_group_sizes) {
        sizes += (sizes.empty() ? "[" : ", ") + std::to_string(size);
      }
      *result = ffi::String(sizes + "]");
      return;
    }
    case kDriverVersion:
      *result = ffi::String(info.driver);
      return;
    case kTotalGlobalMemory:
      *result = static_cast<int64_t>(info.global_bytes);
      return;
    default:
      *result = nullptr;
  }
}

void TvmDevice::GetTargetProperty(Device device, const std::string& property, ffi::Any* result) {
  const DeviceInfo& info = At(device).info;
  if (property == "max_num_threads") *result = static_cast<int64_t>(info.max_group_size);
  if (property == "max_shared_memory_per_block") *result = static_cast<int64_t>(info.local_bytes);
  if (property == "thread_warp_size") *result = int64_t{1};
}

void* TvmDevice::AllocDataSpace(Device device, size_t bytes, size_t, DLDataType) {
  const opencl::Device& found = At(device);
  cl_int code = CL_SUCCESS;
  // OpenCL has no empty buffers.
  Buffer buffer(CL().CreateBuffer(found.context, CL_MEM_READ_WRITE, std::max<size_t>(bytes, 1),
                                  nullptr, &code));
  Check(code, "clCreateBuffer");
  return new TensorMemory{std::move(buffer)};
}

void TvmDevice::FreeDataSpace(Device, void* data) { delete static_cast<TensorMemory*>(data); }

TVMStreamHandle TvmDevice::CreateStream(Device device) { return NewQueue(At(device)).release(); }

void TvmDevice::FreeStream(Device, TVMStreamHandle stream) {
  for (auto& entry : current_streams) {
    if (entry.second == stream) entry.second = nullptr;
  }
  Queue(static_cast<cl_command_queue>(stream));
}

void TvmDevice::StreamSync(Device device, TVMStreamHandle stream) {
  Check(CL().Finish(QueueOf(device, stream)), "clFinish");
}

void TvmDevice::SetStream(Device device, TVMStreamHandle stream) {
  current_streams[device.device_id] = static_cast<cl_command_queue>(stream);
}

TVMStreamHandle TvmDevice::GetCurrentStream(Device device) { return QueueOf(device, nullptr); }

void TvmDevice::CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset,
                               size_t bytes, Device from_device, Device to_device, DLDataType,
                               TVMStreamHandle stream) {
  if (bytes == 0) return;
  const bool from_host = from_device.device_type == kDLCPU;
  const bool to_host = to_device.device_type == kDLCPU;
  if (from_host) {
    // Blocking, because the host's memory may change or be freed after this returns.
    Check(
        CL().EnqueueWriteBuffer(QueueOf(to_device, stream), BufferOf(to), kTrue, to_offset, bytes,
                                static_cast<const char*>(from) + from_offset, 0, nullptr, nullptr),
        "clEnqueueWriteBuffer");
  } else if (to_host) {
    Check(CL().EnqueueReadBuffer(QueueOf(from_device, stream), BufferOf(from), kTrue, from_offset,
                                 bytes, static_cast<char*>(to) + to_offset, 0, nullptr, nullptr),
          "clEnqueueReadBuffer");
  } else if (from_device.device_id == to_device.device_id) {
    cl_command_queue queue = QueueOf(to_device, stream);
    Check(CL().EnqueueCopyBuffer(queue, BufferOf(from), BufferOf(to), from_offset, to_offset, bytes,
                                 0, nullptr, nullptr),
          "clEnqueueCopyBuffer");
    Check(CL().Flush(queue), "clFlush");
  } else {
    std::vector<char> host(bytes);
    const Device cpu{kDLCPU, 0};
    CopyDataFromTo(from, from_offset, host.data(), 0, bytes, from_device, cpu, {}, nullptr);
    CopyDataFromTo(host.data(), 0, to, to_offset, bytes, cpu, to_device, {}, stream);
  }
}

}  // namespace tvm_stretch::opencl
