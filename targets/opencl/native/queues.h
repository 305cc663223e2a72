// The queues of an instance: kernels in order, and copies beside them.
//
//   kernels    region 0 ====  region 1 ==========  region 2 =====
//   receives                  region 2's ...
//   sends                     region 0's ...
#pragma once

#include <array>
#include <vector>

#include "device.h"
#include "handle.h"
#include "processor.h"

namespace tvm_stretch::opencl {

// Converts a queue's clock to the steady clock of the host.

class QueueClock {
 public:
  // Compares the clocks; the queue must be idle and support profiling.
  void Calibrate(cl_command_queue queue);

  // The times of a complete event, in nanoseconds of the steady clock, put into `span`.
  void Read(cl_event event, Span* span) const;

 private:
  int64_t offset_ = 0;  // steady clock minus queue's clock
};

// How urgent this program's work is on a GPU that others use too, such as the one that draws the
// screen. Drivers take it as a hint: Qualcomm's for a context, Khronos's for a queue.

// Properties of a context of the device, with the hint of $TVM_STRETCH_OPENCL_PRIORITY (low,
// medium, high; throws ValueError for other words) if the driver takes one.
std::vector<cl_properties> ContextProperties(const Device& device);

// A queue of the device, with the same hint.
cl_command_queue NewQueue(const Device& device, cl_bitfield properties, cl_int* code);

// Each lane is an in-order queue. Copies have lanes of their own only on a device with memory of
// its own, in plans where it has several regions. A copy may overlap kernels of other regions: the
// memory plan lets two tensors share bytes only if every access of one, including those of the
// other processor, which the copy serves, happens before every access of the other.
enum class Lane { kKernels, kReceives, kSends };

class Queues {
 public:
  Queues() = default;
  // Without `copies`, there is one queue for all lanes.
  Queues(const Device& device, bool copies, cl_bitfield properties);

  cl_command_queue at(Lane lane) const {
    const Queue& own = queues_[static_cast<size_t>(lane)];
    return own ? own.get() : queues_[0].get();
  }
  explicit operator bool() const { return static_cast<bool>(queues_[0]); }
  // Waits for all commands.
  void Finish() const;

 private:
  std::array<Queue, 3> queues_;
};

}  // namespace tvm_stretch::opencl
