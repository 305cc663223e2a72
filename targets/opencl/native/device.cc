#include "device.h"

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "driver.h"
#include "handle.h"
#include "memory.h"
#include "packed.h"
#include "queues.h"

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kDeviceVariable = "TVM_STRETCH_OPENCL_DEVICE";
constexpr const char* kMemoryVariable = "TVM_STRETCH_OPENCL_MEMORY";

template <typename T>
T Number(cl_device_id device, cl_uint what) {
  T value{};
  // Older drivers do not know every property; it is then false, or 0.
  if (CL().GetDeviceInfo(device, what, sizeof(value), &value, nullptr) != CL_SUCCESS) return T{};
  return value;
}

std::string Text(cl_device_id device, cl_uint what) {
  return InfoString([&](size_t bytes, void* to, size_t* size) {
    return CL().GetDeviceInfo(device, what, bytes, to, size);
  });
}

std::string Text(cl_platform_id platform, cl_uint what) {
  return InfoString([&](size_t bytes, void* to, size_t* size) {
    return CL().GetPlatformInfo(platform, what, bytes, to, size);
  });
}

// LLVM 16, with which PoCL 5.0 is built, drops a condition of convolutions that compute several
// images in one group: `1 <= x % 100 / 10 + k` beside `x / 100`. LLVM 15 and 18 keep it.
bool Misoptimises(const std::string& version) {
  return version.find("PoCL") != std::string::npos && version.find("LLVM 16.") != std::string::npos;
}

DeviceInfo Describe(cl_platform_id platform, cl_device_id id) {
  DeviceInfo info;
  info.platform = Text(platform, CL_PLATFORM_NAME);
  info.misoptimises = Misoptimises(Text(platform, CL_PLATFORM_VERSION));
  info.name = Text(id, CL_DEVICE_NAME);
  info.vendor = Text(id, CL_DEVICE_VENDOR);
  info.version = Text(id, CL_DEVICE_VERSION);
  info.driver = Text(id, CL_DRIVER_VERSION);
  std::istringstream extensions(Text(id, CL_DEVICE_EXTENSIONS));
  for (std::string word; extensions >> word;) info.extensions.push_back(word);
  info.type = Number<cl_bitfield>(id, CL_DEVICE_TYPE);
  info.compute_units = Number<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  info.max_group_size = Number<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  size_t sizes[8] = {};
  if (CL().GetDeviceInfo(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof(sizes), sizes, nullptr) ==
      CL_SUCCESS) {
    info.max_group_sizes.assign(sizes, sizes + 3);
  }
  info.local_bytes = Number<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE);
  info.local_is_fast = Number<cl_uint>(id, CL_DEVICE_LOCAL_MEM_TYPE) == CL_LOCAL;
  info.max_buffer_bytes = Number<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  info.has_images = Number<cl_bool>(id, CL_DEVICE_IMAGE_SUPPORT) == kTrue;
  info.max_image_pixels = Number<size_t>(id, CL_DEVICE_IMAGE_MAX_BUFFER_SIZE);
  info.unified = Number<cl_bool>(id, CL_DEVICE_HOST_UNIFIED_MEMORY) == kTrue;
  info.svm = Number<cl_bitfield>(id, CL_DEVICE_SVM_CAPABILITIES);
  // A CUDA context is lost with the first failed kernel, and an event costs 2.5 us there.
  info.last_event_tells = info.vendor == "NVIDIA Corporation";
  return info;
}

MemoryKind ChooseMemory(const DeviceInfo& info) {
  const char* wanted = std::getenv(kMemoryVariable);
  if (wanted != nullptr && *wanted != '\0') {
    for (MemoryKind kind :
         {MemoryKind::kShared, MemoryKind::kFine, MemoryKind::kMapped, MemoryKind::kMirror}) {
      if (std::string(wanted) == NameOf(kind)) return kind;
    }
    TVM_FFI_THROW(ValueError) << "expected shared, fine, mapped or mirror for " << kMemoryVariable
                              << ", got '" << wanted << "'; correct or unset it";
  }
  if (info.is_cpu() || (info.svm & CL_DEVICE_SVM_FINE_GRAIN_SYSTEM) != 0) {
    return MemoryKind::kShared;
  }
  if (!info.unified)
    return MemoryKind::kMirror;  // its fine-grained memory would be accessed over a bus
  return (info.svm & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0 ? MemoryKind::kFine
                                                           : MemoryKind::kMapped;
}

int Rank(const DeviceInfo& info) { return info.is_gpu() ? 0 : info.is_cpu() ? 1 : 2; }

bool IsWanted(const Device& device, size_t position, const std::string& wanted) {
  if (!wanted.empty() && std::all_of(wanted.begin(), wanted.end(), ::isdigit)) {
    return wanted == std::to_string(position);
  }
  return device.info.name.find(wanted) != std::string::npos ||
         device.info.platform.find(wanted) != std::string::npos;
}

using Devices = std::vector<std::unique_ptr<Device>>;

cl_context NewContext(const Device& device) {
  const auto properties = ContextProperties(device);
  cl_int code = CL_SUCCESS;
  cl_context context =
      CL().CreateContext(properties.data(), 1, &device.id, nullptr, nullptr, &code);
  Check(code, "clCreateContext");
  return context;
}

bool Works(const Device& device) {
  cl_int queue_code = CL_SUCCESS, buffer_code = CL_SUCCESS;
  const int32_t value = 1;
  Queue queue(CL().CreateCommandQueue(device.context, device.id, 0, &queue_code));
  Buffer buffer(
      CL().CreateBuffer(device.context, CL_MEM_READ_WRITE, sizeof(value), nullptr, &buffer_code));
  return queue_code == CL_SUCCESS && buffer_code == CL_SUCCESS &&
         CL().EnqueueWriteBuffer(queue.get(), buffer.get(), kTrue, 0, sizeof(value), &value, 0,
                                 nullptr, nullptr) == CL_SUCCESS;
}

void PutWantedFirst(Devices* devices) {
  const char* wanted = std::getenv(kDeviceVariable);
  if (wanted == nullptr || *wanted == '\0') return;
  std::string names;
  for (size_t i = 0; i < devices->size(); ++i) {
    if (IsWanted(*(*devices)[i], i, wanted)) {
      std::rotate(devices->begin(), devices->begin() + static_cast<std::ptrdiff_t>(i),
                  devices->begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return;
    }
    names += (i == 0 ? "" : ", ") + std::to_string(i) + " (" + (*devices)[i]->info.name + ")";
  }
  TVM_FFI_THROW(ValueError) << "expected one of the devices " << names << " for " << kDeviceVariable
                            << ", got '" << wanted << "'; correct or unset it";
}

Devices FindDevices() {
  Devices devices;
  HostCoresScope cores;  // PoCL starts its workers at the first query of devices
  const KeepsSignalHandlers handlers;
  for (cl_platform_id platform : TheDriver().platforms) {
    cl_uint count = 0;
    if (CL().GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> ids(count);
    if (CL().GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr) != CL_SUCCESS) {
      continue;
    }
    for (cl_device_id id : ids) {
      if (Number<cl_bool>(id, CL_DEVICE_AVAILABLE) != kTrue) continue;
      DeviceInfo info = Describe(platform, id);
      MemoryKind memory = ChooseMemory(info);
      devices.push_back(
          std::make_unique<Device>(Device{0, platform, id, std::move(info), memory, nullptr}));
    }
  }
  if (devices.empty()) {
    TVM_FFI_THROW(DeviceError) << "expected an OpenCL device for processor opencl, got none (of "
                               << TheDriver().library << "); check the driver with clinfo";
  }
  std::stable_sort(devices.begin(), devices.end(),
                   [](const auto& a, const auto& b) { return Rank(a->info) < Rank(b->info); });
  PutWantedFirst(&devices);
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = *devices[i];
    device.index = static_cast<int>(i);
    device.context = NewContext(device);
  }
  return devices;
}

ffi::String DescribeDevices() {
  namespace json = ffi::json;
  json::Array list;
  for (const auto& device : AllDevices()) {
    const DeviceInfo& info = device->info;
    json::Object entry;
    auto set = [&entry](const char* key, const auto& value) { entry.Set(ffi::String(key), value); };
    auto set_number = [&set](const char* key, auto value) {
      set(key, static_cast<int64_t>(value));
    };
    set("platform", ffi::String(info.platform));
    set("name", ffi::String(info.name));
    set("vendor", ffi::String(info.vendor));
    set("version", ffi::String(info.version));
    set("driver", ffi::String(info.driver));
    set("type", ffi::String(info.is_gpu() ? "gpu" : info.is_cpu() ? "cpu" : "other"));
    set("memory", ffi::String(NameOf(device->memory)));
    json::Array extensions;
    for (const std::string& name : info.extensions) extensions.push_back(ffi::String(name));
    set("extensions", extensions);
    set_number("compute_units", info.compute_units);
    set_number("max_group_size", info.max_group_size);
    set_number("local_bytes", info.local_bytes);
    set("local_is_fast", info.local_is_fast);
    set_number("max_buffer_bytes", info.max_buffer_bytes);
    set("has_images", info.has_images);
    set("misoptimises", info.misoptimises);
    set_number("max_image_pixels", info.max_image_pixels);
    set("unified", info.unified);
    set("fp16", info.Has("cl_khr_fp16"));
    set("fp64", info.Has("cl_khr_fp64"));
    list.push_back(entry);
  }
  return WholeJSON(list);
}

}  // namespace

const char* NameOf(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kShared:
      return "shared";
    case MemoryKind::kFine:
      return "fine";
    case MemoryKind::kMapped:
      return "mapped";
    case MemoryKind::kMirror:
      return "mirror";
  }
  return "";
}

bool DeviceInfo::Has(const std::string& extension) const {
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

const Devices& AllDevices() {
  // Not destroyed at exit, because the driver's threads and exit handlers may run before.
  static const Devices& devices = *new Devices(FindDevices());
  static const pid_t process = getpid();
  if (process != getpid()) {
    TVM_FFI_THROW(RunError) << "expected OpenCL to be used first in this process, got a fork "
                               "of one that had used it; start processes with spawn";
  }
  return devices;
}

Device WorkingDevice() {
  static std::mutex mutex;  // guards `latest`
  static cl_context latest = DefaultDevice().context;
  std::lock_guard<std::mutex> lock(mutex);
  Device device = DefaultDevice();
  device.context = latest;
  if (!Works(device)) latest = device.context = NewContext(device);
  return device;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def_packed("tvm_stretch.opencl_devices",
                                               Packed(DescribeDevices));
}

}  // namespace tvm_stretch::opencl
