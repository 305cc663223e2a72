// Commands that a region enqueues: kernels, copies, and maps and unmaps that transfer memory
// between device and host (handover.h).
#pragma once

#include <array>
#include <vector>

#include "device_memory.h"
#include "handle.h"
#include "processor.h"
#include "queues.h"

namespace tvm_stretch::opencl {

struct Command {
  enum class Kind { kKernel, kCopy, kWrite, kRead, kMap, kUnmap };
  Kind kind;
  Span span;              // its name and id for the timeline
  bool is_traced = true;  // whether the timeline shows it
  Lane lane = Lane::kKernels;

  Kernel kernel;  // its arguments are set
  std::array<size_t, 3> global_size;
  std::array<size_t, 3> group_size;

  cl_mem buffer = nullptr;  // that is written, read, mapped or copied to
  size_t offset = 0;
  size_t bytes = 0;
  char* host = nullptr;  // the same bytes on the host
  cl_mem from = nullptr;
  size_t from_offset = 0;
  cl_bitfield map_flags = 0;
  bool* is_mapped = nullptr;  // updated by maps and unmaps
};

// Copies `bytes` at `host` to the device's memory (back to the host).
void AppendReceive(const DeviceMemory& memory, char* host, size_t bytes, const Span& span,
                   Lane lane, std::vector<Command>* commands);
void AppendSend(const DeviceMemory& memory, char* host, size_t bytes, const Span& span, Lane lane,
                std::vector<Command>* commands);

// Does not block. The command begins after the events `after`, if it copies or is a kernel; `event`
// may be null.
cl_int Enqueue(const Command& command, const Queues& queues, const std::vector<cl_event>& after,
               cl_event* event);

}  // namespace tvm_stretch::opencl
