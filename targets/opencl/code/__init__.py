"""Kernels to OpenCL C."""
