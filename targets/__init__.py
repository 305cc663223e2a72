"""Processors and their kernels, one file each; imported as `tvm_stretch.targets`."""
