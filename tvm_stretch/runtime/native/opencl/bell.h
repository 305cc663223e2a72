// Where the regions of a device that is the host's CPU meet other processors without the driver.
//
// Such a device's kernels are threads of this process, so they can wait for others, and be waited
// for, by looking at memory: each begins by waiting until its region's bell is rung, and counts its
// work-items when they are done (codegen/bells.py writes that into the kernels).
#ifndef TVM_STRETCH_OPENCL_BELL_H_
#define TVM_STRETCH_OPENCL_BELL_H_

#include <atomic>
#include <memory>

#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

// The bell of one region. While kernels may look at it, it must live.
class Bell {
 public:
  explicit Bell(const Device& device);

  // What kernels take as argument.
  cl_mem buffer() const { return buffer_.get(); }

  // Before each run, when no kernel looks at it. An open bell lets kernels begin at once.
  void Reset(bool is_open);
  // Lets the region's kernels begin, unless they were forbidden to.
  void Ring();
  // Kernels that have not begun do nothing, from now on.
  void Forbid() { memory_->state = kNever; }

  bool is_silent() const { return memory_->state == kSilent; }
  bool is_forbidden() const { return memory_->state == kNever; }
  // How many work-items are done; what they wrote is visible.
  int32_t done() const { return memory_->done.load(std::memory_order_acquire); }

 private:
  enum State : int32_t { kSilent = 0, kRung = 1, kNever = 2 };

  // As the kernels see it: an int, and another 16 ints further; each alone on its cache line.
  struct alignas(64) Memory {
    std::atomic<int32_t> state{kRung};
    alignas(64) std::atomic<int32_t> done{0};
  };

  std::unique_ptr<Memory> memory_;
  Buffer buffer_;
};

// A bell for kernels of devices that cannot look at the host's memory: always open.
Buffer CreateOpenBell(const Device& device);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_BELL_H_
