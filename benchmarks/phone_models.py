"""Converts an ONNX file for ExecuTorch or LiteRT; runs in their environment, which has no TVM.

python phone_models.py executorch net.onnx net.pte
python phone_models.py litert net.onnx net.tflite
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import torch
from onnx2torch import convert


def read(path: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The network as PyTorch has it, and inputs of its shapes."""
    proto = onnx.load(path)
    weights = {tensor.name for tensor in proto.graph.initializer}
    ports = [port.type.tensor_type for port in proto.graph.input if port.name not in weights]
    inputs = tuple(torch.randn([d.dim_value for d in port.shape.dim]) for port in ports)
    return convert(proto).eval(), inputs


def to_executorch(source: str, product: str) -> None:
    """Delegate supported operators to XNNPACK; ExecuTorch's own kernels run the rest."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    network, inputs = read(source)
    exported = torch.export.export(network, inputs)
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    Path(product).write_bytes(lowered.to_executorch().buffer)


def to_litert(source: str, product: str) -> None:
    """LiteRT gives its operators to XNNPACK when it loads them."""
    import litert_torch

    network, inputs = read(source)
    litert_torch.convert(network, inputs).export(product)


if __name__ == "__main__":
    {"executorch": to_executorch, "litert": to_litert}[sys.argv[1]](*sys.argv[2:])
