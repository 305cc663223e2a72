"""From scheduled kernels to code: object files of the CPU, OpenCL C; what was compiled is kept."""
