"""Converters of ONNX operators to Relax, by family. Importing this package registers them."""

from tvm_stretch.read.onnx.operators import (  # noqa: F401
    activation,
    elementwise,
    features,
    gather,
    heads,
    layers,
    microsoft,
    microsoft_attention,
    movement,
    recurrent,
    reduction,
    resize,
    selection,
)
