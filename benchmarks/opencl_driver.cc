// What the OpenCL driver itself takes: the floor for benchmarks/opencl_runtime.py, which builds and
// runs this. Prints medians in microseconds: enqueue, enqueue + flush + wait, each for one kernel.
//
//   opencl_driver <work-items> <rounds> <idle microseconds before each>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "targets/opencl/native/device.h"
#include "targets/opencl/native/host_cores.h"

using namespace tvm_stretch::opencl;
using Clock = std::chrono::steady_clock;

namespace {

const char* kSource =
    "__kernel void scale(__global const float* a, __global float* out) {"
    "  out[get_global_id(0)] = a[get_global_id(0)] * 1.5f + 1.0f; }";

double Since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 1;
  const size_t items = std::strtoul(argv[1], nullptr, 10);
  const int rounds = std::atoi(argv[2]);
  const double idle = std::atof(argv[3]);
  const Device& device = DefaultDevice();
  // As the executor does: the calling thread keeps off the driver's cores.
  tvm_stretch::CoresScope cores(tvm_stretch::Without(tvm_stretch::AllowedCores(), DriverCores()));
  cl_int code = CL_SUCCESS;
  auto queue = CL().CreateCommandQueue(device.context, device.id, 0, &code);
  auto program = CL().CreateProgramWithSource(device.context, 1, &kSource, nullptr, &code);
  Check(CL().BuildProgram(program, 1, &device.id, "", nullptr, nullptr), "clBuildProgram");
  auto kernel = CL().CreateKernel(program, "scale", &code);
  Check(code, "clCreateKernel");
  for (cl_uint i = 0; i < 2; ++i) {
    auto buffer = CL().CreateBuffer(device.context, CL_MEM_READ_WRITE, 4 * items, nullptr, &code);
    Check(CL().SetKernelArg(kernel, i, sizeof(buffer), &buffer), "clSetKernelArg");
  }
  const size_t global[] = {items, 1, 1}, local[] = {std::min<size_t>(items, 64), 1, 1};
  std::vector<double> enqueues, waits;
  for (int i = 0; i < rounds + 20; ++i) {
    auto start = Clock::now();
    while (Since(start) < idle) {
    }
    start = Clock::now();
    cl_event event = nullptr;
    Check(CL().EnqueueNDRangeKernel(queue, kernel, 3, nullptr, global, local, 0, nullptr, &event),
          "clEnqueueNDRangeKernel");
    const double enqueued = Since(start);
    Check(CL().Flush(queue), "clFlush");
    Check(CL().WaitForEvents(1, &event), "clWaitForEvents");
    const double waited = Since(start);
    CL().ReleaseEvent(event);
    if (i < 20) continue;
    enqueues.push_back(enqueued);
    waits.push_back(waited);
  }
  std::printf("%.3f %.3f\n", Median(enqueues), Median(waits));
}
