// The models of an engine as functions of tensors that lie in memory of the host.
#pragma once

#include <dlpack/dlpack.h>

#include <vector>

#include "runtime.h"

namespace tvm_stretch::engine {

class Session {
 public:
  Session(const Runtime& runtime, const ModelSpec& model);

  // Runs the model. The first tensors are its inputs, the last its outputs; what lies between are
  // constants, which the model has. They are read and written where they lie, unless rows of a
  // tensor have gaps or the device has memory of its own: the engine then works on a dense copy.
  // Throws std::runtime_error.
  void Run(const std::vector<const DLTensor*>& given);

 private:
  // A tensor as the session knows it, and its dense copy, which lies in `own` or in the device's
  // memory.
  struct Operand {
    const DLTensor* tensor = nullptr;
    OrtValue* value = nullptr;
    char* dense = nullptr;
    std::vector<char> own;
  };

  void Bind(const std::vector<const DLTensor*>& tensors);
  // Makes the operand's value, in the device's memory if there is any.
  void BindOne(const DLTensor& tensor, Operand* operand);

  const Runtime& runtime_;
  const size_t inputs_;
  OrtSession* session_;
  OrtMemoryInfo* memory_ = nullptr;
  OrtAllocator* shared_ = nullptr;
  std::vector<std::string> names_;
  std::vector<Operand> operands_;  // of the last run; regions always have the same
  std::vector<OrtValue*> values_;
  std::vector<const char*> name_pointers_;
};

}  // namespace tvm_stretch::engine
