"""Measurements on a device: kernels, transfers, and support of operators."""

from tvm_stretch.base.exports import exported

__getattr__ = exported(__name__, {"works_of_networks": "calibrate"})
