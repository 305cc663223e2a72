"""OpenCL: kernels of GPUs, OpenCL C, and the driver's side in C++ (native)."""
