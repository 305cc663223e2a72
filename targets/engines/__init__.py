"""Engines: vendors' runtimes that take whole regions, through a provider of ONNX Runtime."""
