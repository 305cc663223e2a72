#include "clock.h"

#include <limits>

namespace tvm_stretch::opencl {
namespace {

constexpr int kTries = 5;

int64_t TimeOf(cl_event event, cl_uint what) {
  cl_ulong time = 0;
  Check(CL().GetEventProfilingInfo(event, what, sizeof(time), &time, nullptr),
        "clGetEventProfilingInfo");
  return static_cast<int64_t>(time);
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

}  // namespace tvm_stretch::opencl
