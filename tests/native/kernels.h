// Kernels that are functions of the tests, and short ways to call the executor.
#ifndef TVM_STRETCH_TESTS_KERNELS_H_
#define TVM_STRETCH_TESTS_KERNELS_H_

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>

#include "graph.h"

namespace tvm_stretch::testing {

inline float* Floats(const ffi::TensorView& tensor) {
  return static_cast<float*>(tensor.data_ptr());
}

class Kernels final : public ffi::ModuleObj {
 public:
  explicit Kernels(const void* weights = nullptr) : weights_(weights) {}
  const char* kind() const final { return "test_kernels"; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name == "add") {
      return ffi::Function::FromTyped([](ffi::TensorView a, ffi::TensorView b, ffi::TensorView c) {
        for (int i = 0; i < 16; ++i) Floats(c)[i] = Floats(a)[i] + Floats(b)[i];
      });
    }
    if (name == "negative") {
      return ffi::Function::FromTyped([this](ffi::TensorView a, ffi::TensorView b) {
        ++prepared;
        for (int i = 0; i < 16; ++i) Floats(b)[i] = -Floats(a)[i];
      });
    }
    if (name == "fail") {
      return ffi::Function::FromTyped([](ffi::TensorView, ffi::TensorView, ffi::TensorView) {
        TVM_FFI_THROW(RuntimeError) << "kernel failed";
      });
    }
    if (name == "tvm_stretch_weights" && weights_ != nullptr) {
      return ffi::Function::FromTyped([this]() { return const_cast<void*>(weights_); });
    }
    return std::nullopt;
  }
  std::atomic<int> prepared{0};

 private:
  const void* weights_;
};

struct HostAllocator {
  void AllocData(DLTensor* tensor) {
    tensor->data = std::aligned_alloc(kAlignment, 64 + ffi::GetDataSize(*tensor) / 64 * 64);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

inline ffi::Tensor Filled(ffi::Shape shape, float value) {
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(HostAllocator(), shape, DLDataType{kDLFloat, 32, 1},
                                                DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < tensor.numel(); ++i) static_cast<float*>(tensor.data_ptr())[i] = value;
  return tensor;
}

inline float First(const ffi::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr())[0]; }

// An executor of the graph with 32 weights of value 3 and code for each processor.
template <typename... Code>
ffi::Module Create(const std::string& json, const Code&... code) {
  static const ffi::Function create =
      ffi::Function::GetGlobalRequired("tvm_stretch.create_executor");
  return create(ffi::String(json), Filled({32}, 3.0f), code...).template cast<ffi::Module>();
}

template <typename... Args>
ffi::Any Call(const ffi::Module& module, const char* method, const Args&... args) {
  return (*module->GetFunction(method))(args...);
}

inline std::string KindOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const ffi::Error& error) {
    return error.kind();
  }
  return "";
}

inline std::string ErrorOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const ffi::Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace tvm_stretch::testing

#endif  // TVM_STRETCH_TESTS_KERNELS_H_
