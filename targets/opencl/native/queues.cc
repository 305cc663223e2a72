#include "queues.h"

#include <cstdlib>
#include <limits>
#include <string>

namespace tvm_stretch::opencl {
namespace {

constexpr int kTries = 5;

int64_t TimeOf(cl_event event, cl_uint what) {
  cl_ulong time = 0;
  Check(CL().GetEventProfilingInfo(event, what, sizeof(time), &time, nullptr),
        "clGetEventProfilingInfo");
  return static_cast<int64_t>(time);
}

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

void QueueClock::Calibrate(cl_command_queue queue) {
  // "Queued" is read while the host enqueues, so it lies between the host's two readings.
  int64_t narrowest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kTries; ++i) {
    cl_event raw = nullptr;
    int64_t before = Now();
    Check(CL().EnqueueMarkerWithWaitList(queue, 0, nullptr, &raw), "clEnqueueMarkerWithWaitList");
    int64_t after = Now();
    Event event(raw);
    Check(CL().WaitForEvents(1, &raw), "clWaitForEvents");
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    offset_ = before + narrowest / 2 - TimeOf(raw, CL_PROFILING_COMMAND_QUEUED);
  }
}

void QueueClock::Read(cl_event event, Span* span) const {
  span->queued = TimeOf(event, CL_PROFILING_COMMAND_QUEUED) + offset_;
  span->submitted = TimeOf(event, CL_PROFILING_COMMAND_SUBMIT) + offset_;
  span->start = TimeOf(event, CL_PROFILING_COMMAND_START) + offset_;
  span->end = TimeOf(event, CL_PROFILING_COMMAND_END) + offset_;
}

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

Queues::Queues(const Device& device, bool copies, cl_bitfield properties) {
  for (size_t lane = 0; lane < (copies ? queues_.size() : 1); ++lane) {
    cl_int code = CL_SUCCESS;
    queues_[lane] = Queue(NewQueue(device, properties, &code));
    Check(code, "clCreateCommandQueue");
  }
}

void Queues::Finish() const {
  for (const Queue& queue : queues_) {
    if (queue) CL().Finish(queue.get());
  }
}

}  // namespace tvm_stretch::opencl
