// Memory that the driver of a GPU allocates, and the host and the GPU use by turns without copies.
//
// Arm and Qualcomm name this as the way without copies on their GPUs (CL_MEM_ALLOC_HOST_PTR,
// mapped); what lies in memory of the host is copied behind the scenes.
#ifndef TVM_STRETCH_OPENCL_HANDOVER_H_
#define TVM_STRETCH_OPENCL_HANDOVER_H_

#include <deque>
#include <memory>
#include <vector>

#include "command.h"
#include "device.h"
#include "handle.h"
#include "ownership.h"

namespace tvm_stretch::opencl {

// A block of such memory, zeroed. All of it is mapped, unless a Handover has it.
class DriversMemory {
 public:
  // Null where the driver has no memory that kernels of the host can use.
  static std::shared_ptr<char> Allocate(const Device& device, size_t bytes);
  // Of what `Allocate` returned; null for other blocks.
  static DriversMemory* Of(const std::shared_ptr<char>& block);

  ~DriversMemory();

  cl_mem buffer() const { return buffer_.get(); }
  cl_command_queue queue() const { return queue_.get(); }
  size_t bytes() const { return bytes_; }

  // Maps bytes and waits for it. Throws DeviceError, also if the driver has moved the block: the
  // page behind it stays mapped so that drivers do not.
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

// While it lives, bytes of the block are mapped as the plan of their owners says.
class Handover {
 public:
  Handover(DriversMemory* memory, char* host, const Ownership& plan);
  ~Handover();

  // What the device's region number `region` begins and ends with.
  void AppendTakes(size_t region, std::vector<Command>* commands);
  void AppendGives(size_t region, std::vector<Command>* commands);

  // After a run that did not come to its end, when nothing runs: as it is between runs.
  void RestoreAfterFailure();

 private:
  struct Shared {
    Cell cell;
    bool is_mapped = false;  // touched by whoever submits, and between runs
  };

  void Restore();
  Command Change(Shared* shared, Command::Kind kind) const;

  DriversMemory* const memory_;
  char* const host_;
  std::deque<Shared> cells_;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_HANDOVER_H_
