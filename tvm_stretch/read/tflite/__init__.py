"""TFLite: a model becomes ONNX."""
