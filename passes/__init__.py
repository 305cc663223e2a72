"""Relax to Relax passes, one per file; imported as `tvm_stretch.passes`."""

from tvm_stretch.exports import exported

__getattr__ = exported(__name__, {"detect_stages": "detect_blocks"})
