"""ONNX: a model becomes Relax, one converter per operator."""
