"""Converters of ONNX operators to Relax, by family. Importing this package registers them."""

from tvm_stretch.frontend.onnx_ops import (  # noqa: F401
    activation,
    blocks,
    einsum,
    elementwise,
    gather,
    layers,
    microsoft,
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
