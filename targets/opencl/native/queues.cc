#include "queues.h"

#include "priority.h"

namespace tvm_stretch::opencl {

Queues::Queues(const Device& device, bool copies, cl_bitfield properties) {
  for (size_t lane = 0; lane < (copies ? queues_.size() : 1); ++lane) {
    cl_int code = CL_SUCCESS;
    queues_[lane] = Queue(NewQueue(device, properties, &code));
    Check(code, "clCreateCommandQueue");
  }
}

void Queues::Finish() const {
  for (const Queue& queue : queues_) {
    if (queue) CL().Finish(queue.get());
  }
}

}  // namespace tvm_stretch::opencl
