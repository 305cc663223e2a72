"""Costs of kernels: measurements, models learned from them, and predictions."""

from tvm_stretch.base.exports import exported

__getattr__ = exported(
    __name__,
    {"ProcessorProfile": "profile", "load_profile": "profile_file"},
)
