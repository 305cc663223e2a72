"""Kernels for GPUs, one template a file."""
