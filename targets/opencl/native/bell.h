// Synchronises regions of a device on the host's CPU with other processors, without the driver.
//
// Kernels of a device on the host's CPU are threads of this process, so both sides can synchronise
// through memory: each kernel first waits until its region's bell is rung, and counts its finished
// work-items (targets/opencl/code/opencl_code.py writes that into the kernels).
#pragma once

#include <atomic>
#include <memory>

#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

// The bell of one region. It must outlive kernels that may read it.
class Bell {
 public:
  explicit Bell(const Device& device);

  // The argument of kernels.
  cl_mem buffer() const { return buffer_.get(); }

  // Before each run, when no kernel reads it. An open bell lets kernels begin at once.
  void Reset(bool is_open);
  // Lets the region's kernels begin, unless they were forbidden to.
  void Ring();
  // From now on, kernels that have not begun do nothing.
  void Forbid() { memory_->state = kNever; }

  bool is_silent() const { return memory_->state == kSilent; }
  bool is_forbidden() const { return memory_->state == kNever; }
  // The number of finished work-items; their results are visible.
  int32_t done() const { return memory_->done.load(std::memory_order_acquire); }

 private:
  enum State : int32_t { kSilent = 0, kRung = 1, kNever = 2 };

  // The layout in kernels: an int, and another one 16 ints later, each on its own cache line.
  struct alignas(64) Memory {
    std::atomic<int32_t> state{kRung};
    alignas(64) std::atomic<int32_t> done{0};
  };

  std::unique_ptr<Memory> memory_;
  Buffer buffer_;
};

// A bell that is always open, for devices that cannot read the host's memory.
Buffer CreateOpenBell(const Device& device);

}  // namespace tvm_stretch::opencl
