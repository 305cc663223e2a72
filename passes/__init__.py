"""Relax to Relax passes, one per file; imported as `tvm_stretch.passes`."""
