"""Regions to ONNX models, and those to an engine's code."""
