// ONNX Runtime and one of its providers, found when an engine starts; nothing is linked.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ort.h"

namespace tvm_stretch::engine {

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

class Runtime {
 public:
  // Loads ONNX Runtime, and the provider's library. Throws std::runtime_error that says what was
  // looked for, where, and what to install.
  explicit Runtime(const EngineSpec& spec);

  const Api& api() const { return api_; }

  // Throws std::runtime_error with the message of a status, and releases it.
  void Check(OrtStatus* status, const std::string& what) const;

  // Makes a session that runs a model on the provider alone. With a `context`, also writes the
  // model as the provider compiled it to that file.
  OrtSession* NewSession(const std::string& model, const std::string& context = "") const;

  // Memory of the provider that its device maps too; null where this device has none: its driver
  // copies tensors then.
  OrtAllocator* SharedMemory(const OrtSession* session) const;

  // "onnxruntime 1.32.0, QNNExecutionProvider 0.1.0"
  std::string Versions() const;

 private:
  void Load();
  void FindDevice();
  // The message of a status, in one line; releases it.
  std::string Message(OrtStatus* status) const;
  void SetOptions(OrtSessionOptions* options, const std::string& context) const;

  const EngineSpec& spec_;
  Api api_{};
  std::string version_;
  OrtEnv* env_ = nullptr;
  const OrtEpDevice* device_ = nullptr;
  bool shares_memory_ = false;
};

}  // namespace tvm_stretch::engine
