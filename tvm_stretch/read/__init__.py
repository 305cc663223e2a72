"""Read a trained network from ONNX, torch.export or Relax into canonical Relax.

load_network("resnet50.onnx", shapes={"x": (1, 3, 224, 224)})   ->   IRModule with one `main`
"""

from tvm_stretch.read.load import load_network, load_trainable, require_file

__all__ = ["load_network", "load_trainable", "require_file"]
