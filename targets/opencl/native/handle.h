// Owners of OpenCL's objects.
#pragma once

#include <utility>

#include "driver.h"

namespace tvm_stretch::opencl {

// `Release` is the member of Api that frees a T.
template <typename T, cl_int (*Api::*Release)(T)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T object) : object_(object) {}
  Handle(Handle&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Handle() {
    if (object_ != nullptr) (CL().*Release)(object_);
  }

  T get() const { return object_; }
  // The caller must free the object.
  T release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T object_ = nullptr;
};

using Queue = Handle<cl_command_queue, &Api::ReleaseCommandQueue>;
using Buffer = Handle<cl_mem, &Api::ReleaseMemObject>;
using Program = Handle<cl_program, &Api::ReleaseProgram>;
using Kernel = Handle<cl_kernel, &Api::ReleaseKernel>;
using Event = Handle<cl_event, &Api::ReleaseEvent>;

}  // namespace tvm_stretch::opencl
