"""Costs of kernels: measurements, models learned from them, and predictions."""
