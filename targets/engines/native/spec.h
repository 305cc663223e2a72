// What an engine is to do, as targets/engines/code/engine_code.py writes it:
//
//   tvm_stretch.engine 1
//   provider QNNExecutionProvider
//   package onnxruntime_qnn                  a Python package that may hold the libraries
//   library libonnxruntime_providers_qnn.so  empty: a provider of ONNX Runtime itself
//   hardware npu                             the provider's device: cpu, gpu, npu; empty: its first
//   threads 1                                of ONNX Runtime's own kernels
//   file backend_path libQnnHtp.so           an option of the provider that names a library
//   option htp_arch 73                       another option
//   memory QnnHtpShared enable_htp_shared_memory_allocator libcdsprpc.so
//                                            memory that the device maps too: its name, the option
//                                            that offers it, the library of the device that it
//                                            needs
//   compiled QNNExecutionProvider 0.1.0 ..   what compiled the models ahead; left out: nothing did
//   model 123456 1 2                         bytes, number of inputs and of outputs
//   end
//   (the bytes of the models)
//
// The inputs of a model are called i0, i1, .., its outputs o0, o1, ..
#ifndef TVM_STRETCH_ENGINE_SPEC_H_
#define TVM_STRETCH_ENGINE_SPEC_H_

#include <string>
#include <utility>
#include <vector>

namespace tvm_stretch::engine {

struct ModelSpec {
  std::string bytes;
  size_t inputs = 0;
  size_t outputs = 0;
};

// Memory of a provider that its device reads and writes without copies; no name: there is none.
struct MemorySpec {
  std::string name, option, library;
};

struct EngineSpec {
  std::string provider, package, library, hardware, compiled;
  int threads = 1;
  std::vector<std::pair<std::string, std::string>> files, options;
  MemorySpec memory;
  std::vector<ModelSpec> models;

  // Whether ONNX Runtime brings the provider: nothing can be refused and run elsewhere then.
  bool is_built_in() const { return library.empty(); }

  // Reads a file. Throws std::runtime_error.
  static EngineSpec FromFile(const std::string& path);
};

}  // namespace tvm_stretch::engine

#endif  // TVM_STRETCH_ENGINE_SPEC_H_
