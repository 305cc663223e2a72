"""Kernels to machine code, by LLVM."""
