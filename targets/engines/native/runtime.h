// ONNX Runtime and one of its providers, found when an engine starts; nothing is linked.
#ifndef TVM_STRETCH_ENGINE_RUNTIME_H_
#define TVM_STRETCH_ENGINE_RUNTIME_H_

#include <string>

#include "ort.h"
#include "spec.h"

namespace tvm_stretch::engine {

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

#endif  // TVM_STRETCH_ENGINE_RUNTIME_H_
