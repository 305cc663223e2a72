#include "session.h"

#include <cstring>
#include <map>
#include <stdexcept>
#include <utility>

namespace tvm_stretch::engine {
namespace {

// ONNX's number of a type, by DLPack's code and bits.
int ElementType(const DLDataType& type) {
  static const std::map<std::pair<int, int>, int> kTypes = {
      {{kDLFloat, 32}, 1},  {{kDLUInt, 8}, 2},    {{kDLInt, 8}, 3},    {{kDLUInt, 16}, 4},
      {{kDLInt, 16}, 5},    {{kDLInt, 32}, 6},    {{kDLInt, 64}, 7},   {{kDLBool, 8}, 9},
      {{kDLFloat, 16}, 10}, {{kDLFloat, 64}, 11}, {{kDLUInt, 32}, 12}, {{kDLUInt, 64}, 13},
  };
  auto found = kTypes.find({type.code, type.bits});
  if (found == kTypes.end() || type.lanes != 1) {
    throw std::runtime_error("expected a type that ONNX has, got another");
  }
  return found->second;
}

size_t ItemBytes(const DLTensor& tensor) { return (tensor.dtype.bits + 7) / 8; }

bool HasGaps(const DLTensor& tensor) {
  int64_t dense = 1;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != dense) return true;
    dense *= tensor.shape[i];
  }
  return false;
}

size_t DenseBytes(const DLTensor& tensor) {
  size_t bytes = ItemBytes(tensor);
  for (int i = 0; i < tensor.ndim; ++i) bytes *= tensor.shape[i];
  return bytes;
}

// Copies between a tensor with gaps and its dense copy; `dense` moves on.
void Copy(const DLTensor& tensor, int axis, char* place, char** dense, bool gather) {
  const size_t item = ItemBytes(tensor);
  if (axis == tensor.ndim) {
    gather ? std::memcpy(*dense, place, item) : std::memcpy(place, *dense, item);
    *dense += item;
    return;
  }
  const bool is_run = axis == tensor.ndim - 1 && tensor.strides[axis] == 1;
  if (is_run) {
    const size_t bytes = item * tensor.shape[axis];
    gather ? std::memcpy(*dense, place, bytes) : std::memcpy(place, *dense, bytes);
    *dense += bytes;
    return;
  }
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
    Copy(tensor, axis + 1, place + i * tensor.strides[axis] * item, dense, gather);
  }
}

}  // namespace

Session::Session(const Runtime& runtime, const ModelSpec& model)
    : runtime_(runtime), inputs_(model.inputs), session_(runtime.NewSession(model.bytes)) {
  const Api& api = runtime.api();
  runtime.Check(api.CreateCpuMemoryInfo(kOrtDeviceAllocator, kOrtMemTypeDefault, &memory_),
                "the description of memory");
  shared_ = runtime.SharedMemory(session_);
  for (size_t i = 0; i < model.inputs; ++i) names_.push_back("i" + std::to_string(i));
  for (size_t i = 0; i < model.outputs; ++i) names_.push_back("o" + std::to_string(i));
  for (const std::string& name : names_) name_pointers_.push_back(name.c_str());
}

void Session::Bind(const std::vector<const DLTensor*>& tensors) {
  const Api& api = runtime_.api();
  for (const Operand& operand : operands_) api.ReleaseValue(operand.value);
  operands_.assign(tensors.size(), Operand());
  values_.clear();
  for (size_t i = 0; i < tensors.size(); ++i) {
    BindOne(*tensors[i], &operands_[i]);
    values_.push_back(operands_[i].value);
    operands_[i].tensor = tensors[i];  // now it is bound
  }
}

void Session::BindOne(const DLTensor& tensor, Operand* operand) {
  const Api& api = runtime_.api();
  const int type = ElementType(tensor.dtype);
  if (shared_ != nullptr) {
    runtime_.Check(
        api.CreateTensorAsOrtValue(shared_, tensor.shape, tensor.ndim, type, &operand->value),
        "a tensor in shared memory");
    void* data = nullptr;
    runtime_.Check(api.GetTensorMutableData(operand->value, &data), "the data of a tensor");
    operand->dense = static_cast<char*>(data);
    return;
  }
  if (HasGaps(tensor)) {
    operand->own.resize(DenseBytes(tensor));
    operand->dense = operand->own.data();
  }
  void* data = operand->dense == nullptr ? tensor.data : operand->dense;
  runtime_.Check(api.CreateTensorWithDataAsOrtValue(memory_, data, DenseBytes(tensor), tensor.shape,
                                                    tensor.ndim, type, &operand->value),
                 "a tensor");
}

void Session::Run(const std::vector<const DLTensor*>& given) {
  if (given.size() < names_.size()) {
    throw std::runtime_error("expected " + std::to_string(names_.size()) + " tensors, got " +
                             std::to_string(given.size()));
  }
  std::vector<const DLTensor*> tensors(given.begin(), given.begin() + inputs_);
  tensors.insert(tensors.end(), given.end() - (names_.size() - inputs_), given.end());
  bool is_bound = operands_.size() == tensors.size();
  for (size_t i = 0; is_bound && i < tensors.size(); ++i) {
    is_bound = operands_[i].tensor == tensors[i];
  }
  if (!is_bound) Bind(tensors);
  auto copy = [this](size_t i, bool gather) {
    Operand& operand = operands_[i];
    if (operand.dense == nullptr) return;
    char* dense = operand.dense;
    Copy(*operand.tensor, 0, static_cast<char*>(operand.tensor->data), &dense, gather);
  };
  for (size_t i = 0; i < inputs_; ++i) copy(i, true);
  runtime_.Check(runtime_.api().Run(session_, nullptr, name_pointers_.data(), values_.data(),
                                    inputs_, name_pointers_.data() + inputs_,
                                    names_.size() - inputs_, values_.data() + inputs_),
                 "a run");
  for (size_t i = inputs_; i < operands_.size(); ++i) copy(i, false);
}

}  // namespace tvm_stretch::engine
