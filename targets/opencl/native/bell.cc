#include "bell.h"

#include <vector>

namespace tvm_stretch::opencl {

Bell::Bell(const Device& device) : memory_(std::make_unique<Memory>()) {
  static_assert(sizeof(Memory) == 32 * sizeof(int32_t));
  cl_int code = CL_SUCCESS;
  buffer_ = Buffer(CL().CreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                     sizeof(Memory), memory_.get(), &code));
  Check(code, "clCreateBuffer");
}

void Bell::Reset(bool is_open) {
  memory_->done = 0;
  memory_->state = is_open ? kRung : kSilent;
}

void Bell::Ring() {
  int32_t silent = kSilent;
  memory_->state.compare_exchange_strong(silent, kRung);
}

Buffer CreateOpenBell(const Device& device) {
  std::vector<int32_t> contents(32);
  contents[0] = 1;
  cl_int code = CL_SUCCESS;
  Buffer buffer(CL().CreateBuffer(device.context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                  contents.size() * sizeof(int32_t), contents.data(), &code));
  Check(code, "clCreateBuffer");
  return buffer;
}

}  // namespace tvm_stretch::opencl
