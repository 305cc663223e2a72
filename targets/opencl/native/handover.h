// Memory that a GPU's driver allocates, and that host and GPU use alternately without copies.
//
// Arm and Qualcomm recommend it to avoid copies on their GPUs (CL_MEM_ALLOC_HOST_PTR, mapped);
// their drivers copy memory that the host allocated.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "command.h"
#include "device.h"
#include "handle.h"
#include "ownership.h"

namespace tvm_stretch::opencl {

// A zeroed block of such memory. All of it is mapped, unless a Handover manages it.
class DriversMemory {
 public:
  // Null if the driver has no memory that the host's kernels can use.
  static std::shared_ptr<char> Allocate(const Device& device, size_t bytes);
  // The owner of a block that `Allocate` returned; null for other blocks.
  static DriversMemory* Of(const std::shared_ptr<char>& block);

  ~DriversMemory();

  cl_mem buffer() const { return buffer_.get(); }
  cl_command_queue queue() const { return queue_.get(); }
  size_t bytes() const { return bytes_; }

  // Maps bytes and waits for it. Throws DeviceError, also if the driver has moved the block: the
  // page after the block stays mapped to prevent that.
  void Map(size_t offset, size_t bytes, cl_bitfield flags);
  void Unmap(size_t offset);
  void MapAll() { Map(0, bytes_, CL_MAP_READ | CL_MAP_WRITE); }

 private:
  struct Release;

  DriversMemory(const Device& device, size_t bytes);

  const size_t bytes_;
  Queue queue_;
  Buffer buffer_;
  char* data_ = nullptr;
};

// While it lives, bytes of the block are mapped according to the plan of owners.
class Handover {
 public:
  Handover(DriversMemory* memory, char* host, const Ownership& plan);
  ~Handover();

  // Appends the commands at the begin and the end of the device's region number `region`.
  void AppendTakes(size_t region, std::vector<Command>* commands);
  void AppendGives(size_t region, std::vector<Command>* commands);

  // After an aborted run, when nothing runs: restores the state between runs.
  void RestoreAfterFailure();

 private:
  struct Shared {
    Cell cell;
    bool is_mapped = false;  // accessed by the submitting thread, and between runs
  };

  void Restore();
  Command Change(Shared* shared, Command::Kind kind) const;

  DriversMemory* const memory_;
  char* const host_;
  std::deque<Shared> cells_;
};

}  // namespace tvm_stretch::opencl
