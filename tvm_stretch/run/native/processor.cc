#include "processor.h"

#include <tvm/ffi/reflection/registry.h>

#include <chrono>
#include <map>
#include <utility>

#include "errors.h"
#include "memory.h"
#include "packed.h"

namespace tvm_stretch {
namespace {

// Only written while libraries are loaded, one at a time.
std::map<std::string, ProcessorFactory>& Factories() {
  static std::map<std::string, ProcessorFactory> factories;
  return factories;
}

// The kind that the last library wanted, if another library had it.
std::string& RefusedKind() {
  static std::string kind;
  return kind;
}

char* BaseOf(const MemoryMap& memory, const TensorSpec& tensor) {
  switch (tensor.memory) {
    case Memory::kInput:
      return memory.inputs.empty() ? nullptr : memory.inputs[tensor.buffer];
    case Memory::kOutput:
      return memory.outputs.empty() ? nullptr : memory.outputs[tensor.buffer];
    case Memory::kArena:
      return memory.arena;
    case Memory::kConstant:
      return memory.constant;
    case Memory::kPrepared:
      return memory.prepared;
  }
  return nullptr;
}

}  // namespace

char* AddressOf(const MemoryMap& memory, const TensorSpec& tensor) {
  char* base = BaseOf(memory, tensor);
  return base == nullptr ? nullptr : base + tensor.offset;
}

int64_t Now() {
  auto since_epoch = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count();
}

ffi::Error CancelledError() {
  return ffi::Error(kRunCancelled, "expected the run to end, got a call of cancel; run it again",
                    "");
}

ffi::Error NoMemoryError() {
  // Made while there is memory, and never destroyed, because a thread may still need it.
  static const ffi::Error& error = *new ffi::Error(
      kRunError, std::string("expected free memory for this call, got none; ") + kFreeMemory, "");
  return error;
}

namespace {
[[maybe_unused]] const ffi::Error made_early = NoMemoryError();
}

bool IsCancelled(const ffi::Error& error) { return error.kind() == kRunCancelled; }

void Task::Reset(bool) {
  std::lock_guard<std::mutex> lock(mutex_);
  is_complete_ = false;
  failure_.reset();
}

const Failure& Task::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  completed_.wait(lock, [this] { return is_complete(); });
  return failure_;  // not written again before the next Reset
}

void Task::Complete(Failure failure) {
  // Listeners come first: once Wait() returns, the next run may begin, and a later signal would be
  // taken for one of that run.
  for (const Listener& listener : listeners_) listener(failure);
  std::lock_guard<std::mutex> lock(mutex_);
  failure_ = std::move(failure);
  is_complete_ = true;
  completed_.notify_all();
}

void RegisterProcessor(const std::string& kind, ProcessorFactory factory) {
  if (!Factories().emplace(kind, std::move(factory)).second) RefusedKind() = kind;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def_packed("tvm_stretch.refused_processor",
                                          Packed(+[] { return std::exchange(RefusedKind(), ""); }));
}

std::unique_ptr<ProcessorProgram> CreateProcessorProgram(const ProcessorContext& context) {
  const ProcessorSpec& processor = context.graph.processors[context.index];
  auto found = Factories().find(processor.kind);
  if (found == Factories().end()) {
    std::string kinds = kCpuKind;
    for (const auto& entry : Factories()) kinds += ", " + entry.first;
    TVM_FFI_THROW(ValueError) << "expected one of " << kinds << " as kind of processor '"
                              << processor.name << "', got '" << processor.kind
                              << "'; install a version of tvm_stretch that has it";
  }
  return found->second(context);
}

}  // namespace tvm_stretch
