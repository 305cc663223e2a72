// Memory of cameras and other devices as buffers of a device: kernels read it where it is.
#pragma once

#include <list>

#include "device_memory.h"
#include "memory.h"

namespace tvm_stretch::opencl {

class Imports {
 public:
  // The last `kept` buffers stay imported: cameras fill a few in turns. `device` outlives this.
  Imports(const Device& device, size_t kept) : device_(device), kept_(kept) {}

  // The memory for the next run; null if the driver cannot import it.
  const DeviceMemory* Find(const ExternalMemory& memory);

 private:
  struct Imported {
    uint64_t id;
    bool is_handed_over;  // whether the device has to acquire it for each run
    bool is_acquired;
    Buffer buffer;
    DeviceMemory memory;
  };

  bool Import(const ExternalMemory& memory);
  bool Acquire(Imported* imported);

  const Device& device_;
  const size_t kept_;
  std::list<Imported> last_;  // the newest first
  Queue queue_;               // made when it is needed
};

}  // namespace tvm_stretch::opencl
