"""From scheduled kernels to code: object files for the CPU, OpenCL C, and a cache of both."""
