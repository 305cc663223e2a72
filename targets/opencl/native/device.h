// The machine's OpenCL devices, described and in order of preference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver.h"

namespace tvm_stretch::opencl {

// How the device accesses the executor's memory.
enum class MemoryKind {
  kShared,  // the host's CPU, or a device that can use all host pointers: nothing to do
  kFine,    // fine-grained buffers of shared virtual memory: as above, if the driver allocates it
  kMapped,  // unified but not coherent, if the driver allocates it: maps and unmaps
  kMirror,  // separate memory: copies at equal offsets
};

const char* NameOf(MemoryKind kind);

struct DeviceInfo {
  std::string platform;
  std::string name;
  std::string vendor;
  std::string version;
  std::string driver;
  std::vector<std::string> extensions;
  cl_bitfield type = 0;
  cl_uint compute_units = 0;
  size_t max_group_size = 0;
  std::vector<size_t> max_group_sizes;  // by dimension
  cl_ulong local_bytes = 0;
  bool local_is_fast = false;  // not emulated in global memory
  cl_ulong max_buffer_bytes = 0;
  bool has_images = false;
  size_t max_image_pixels = 0;  // of an image that views a buffer
  bool unified = false;
  bool misoptimises = false;  // its compiler changes answers, so it must not optimise
  cl_bitfield svm = 0;
  bool last_event_tells = false;  // a failed command fails all later ones

  bool Has(const std::string& extension) const;
  bool is_cpu() const { return (type & CL_DEVICE_TYPE_CPU) != 0; }
  bool is_gpu() const { return (type & CL_DEVICE_TYPE_GPU) != 0; }
};

// One device with its context; lives as long as the process.
struct Device {
  int index;  // position in AllDevices(); TVM's device id
  cl_platform_id platform;
  cl_device_id id;
  DeviceInfo info;
  MemoryKind memory;
  cl_context context;
};

// All devices, GPUs first, then CPUs, then others. $TVM_STRETCH_OPENCL_DEVICE, a position in that
// list or a part of a device's or platform's name, puts one device first.
// Throws DeviceError if there is no driver or no device.
const std::vector<std::unique_ptr<Device>>& AllDevices();

// The device that the processor runs on.
inline const Device& DefaultDevice() { return *AllDevices().front(); }

// The default device with a context that works: a fault of one model's kernels may have broken the
// previous context, and new models then get another one.
Device WorkingDevice();

}  // namespace tvm_stretch::opencl
