#include <tvm/ffi/tvm_ffi.h>

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("tvm_stretch.runtime_version", []() { return 1; });
}
