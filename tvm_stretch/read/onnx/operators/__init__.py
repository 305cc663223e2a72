"""Converters of ONNX operators to Relax, by family. Importing this package registers them."""

from tvm_stretch.read.onnx.operators import (  # noqa: F401
    activation,
    attention,
    blocks,
    deformed,
    einsum,
    elementwise,
    gather,
    layers,
    microsoft,
    microsoft_attention,
    movement,
    normalisation,
    ordering,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
    signal,
)
