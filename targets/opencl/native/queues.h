// The queues of an instance: kernels in order, and copies beside them.
//
//   kernels    region 0 ====  region 1 ==========  region 2 =====
//   receives                  region 2's ...
//   sends                     region 0's ...
#ifndef TVM_STRETCH_OPENCL_QUEUES_H_
#define TVM_STRETCH_OPENCL_QUEUES_H_

#include <array>

#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

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

#endif  // TVM_STRETCH_OPENCL_QUEUES_H_
