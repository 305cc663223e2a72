#include "priority.h"

#include <cstdlib>
#include <string>

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kPriorityVariable = "TVM_STRETCH_OPENCL_PRIORITY";

struct Priority {
  const char* name;
  cl_properties of_context;
  cl_ulong of_queue;
};

constexpr Priority kPriorities[] = {
    {"low", CL_PRIORITY_HINT_LOW_QCOM, CL_QUEUE_PRIORITY_LOW_KHR},
    {"medium", CL_PRIORITY_HINT_NORMAL_QCOM, CL_QUEUE_PRIORITY_MED_KHR},
    {"high", CL_PRIORITY_HINT_HIGH_QCOM, CL_QUEUE_PRIORITY_HIGH_KHR},
};

// What the user wants; null: the driver decides.
const Priority* Wanted() {
  const char* text = std::getenv(kPriorityVariable);
  if (text == nullptr || *text == '\0') return nullptr;
  for (const Priority& priority : kPriorities) {
    if (std::string(text) == priority.name) return &priority;
  }
  TVM_FFI_THROW(ValueError) << "expected low, medium or high for " << kPriorityVariable << ", got '"
                            << text << "'; correct or unset it";
  TVM_FFI_UNREACHABLE();
}

}  // namespace

std::vector<cl_properties> ContextProperties(const Device& device) {
  std::vector<cl_properties> found = {CL_CONTEXT_PLATFORM,
                                      reinterpret_cast<cl_properties>(device.platform)};
  const Priority* wanted = Wanted();
  if (wanted != nullptr && device.info.Has("cl_qcom_priority_hint")) {
    found.insert(found.end(), {CL_CONTEXT_PRIORITY_HINT_QCOM, wanted->of_context});
  }
  found.push_back(0);
  return found;
}

cl_command_queue NewQueue(const Device& device, cl_bitfield properties, cl_int* code) {
  const Priority* wanted = Wanted();
  const auto create = CL().CreateCommandQueueWithProperties;
  if (wanted == nullptr || create == nullptr || !device.info.Has("cl_khr_priority_hints")) {
    return CL().CreateCommandQueue(device.context, device.id, properties, code);
  }
  const cl_ulong list[] = {CL_QUEUE_PROPERTIES, properties, CL_QUEUE_PRIORITY_KHR, wanted->of_queue,
                           0};
  return create(device.context, device.id, list, code);
}

}  // namespace tvm_stretch::opencl
