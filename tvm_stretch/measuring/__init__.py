"""Measurements on a device: kernels, hand-overs, what a processor supports."""
