// Converts a queue's clock to the steady clock of the host.
#ifndef TVM_STRETCH_OPENCL_CLOCK_H_
#define TVM_STRETCH_OPENCL_CLOCK_H_

#include "handle.h"
#include "processor.h"

namespace tvm_stretch::opencl {

class QueueClock {
 public:
  // Compares the clocks; the queue must be idle and support profiling.
  void Calibrate(cl_command_queue queue);

  // The times of a complete event, in nanoseconds of the steady clock, put into `span`.
  void Read(cl_event event, Span* span) const;

 private:
  int64_t offset_ = 0;  // steady clock minus queue's clock
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_CLOCK_H_
