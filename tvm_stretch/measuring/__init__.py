"""Measurements on a device: kernels, transfers, and support of operators."""
