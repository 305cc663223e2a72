"""What kernels cost: measurements, models learned from them, and predictions."""
