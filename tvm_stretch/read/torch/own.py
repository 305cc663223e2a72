"""Operators of our own for torch's graphs, which decompositions call and kernels here compute.

    _fft_c2r(z, [1], 0, 8)   ->   torch.ops.tvm_stretch.dft(pairs, 8, True, True)

Torch only learns the shapes of their results: graphs hold them from the decomposition of a program
to its translation, and no file can name them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.torch.importer import as_onnx, dtype_of
from tvm_stretch.targets.kernels.matrices import MORE_ROWS, factor_call

_LIBRARY = torch.library.Library("tvm_stretch", "FRAGMENT")
OWN = torch.ops.tvm_stretch
WRITTEN: dict[Any, Callable[..., Any]] = {}
"""Functions of torch that compute an operator of torch in simpler ones."""


def instead_of(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for operators of torch: ``@instead_of("fmax.default")``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            operator, _, overload = name.partition(".")
            WRITTEN[getattr(getattr(torch.ops.aten, operator), overload)] = function
        return function

    return register


def as_tensor(x: torch.Tensor | float, kind: torch.dtype) -> torch.Tensor:
    """A number too; `torch.as_tensor` would make a constant of it, which a program has to list."""
    return x.to(kind) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=kind)


def _define(schema: str, shape: Any) -> None:
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], shape, "Meta")


def _dft_shape(x: torch.Tensor, length: int, inverse: bool, onesided: bool) -> torch.Tensor:
    count = length // 2 + 1 if onesided and not inverse else length
    return x.new_empty((*x.shape[:-2], count, 1 if onesided and inverse else 2))


_define("dft(Tensor x, int length, bool inverse, bool onesided) -> Tensor", _dft_shape)


def _factor_shape(x: torch.Tensor, kind: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-2] + MORE_ROWS[kind](x.shape[-1]), x.shape[-1]))


_define("factor(Tensor x, str kind) -> Tensor", _factor_shape)
_define("factor2(Tensor a, Tensor x, str kind) -> Tensor", lambda a, x, kind: x.new_empty(x.shape))


def _factor(node: Any, importer: Any) -> relax.Expr:
    """Batches become one axis."""
    *operands, kind = importer.retrieve_args(node)
    emit = importer.block_builder.emit
    shapes = [shape_of(x) for x in operands]
    flat = [
        emit(relax.op.reshape(x, [prod(shape[:-2]), *shape[-2:]]))
        for x, shape in zip(operands, shapes, strict=True)
    ]
    found = emit(factor_call(importer.block_builder, kind, *flat))
    return emit(relax.op.reshape(found, [*shapes[-1][:-2], *shape_of(found)[1:]]))


def _dft(node: Any, importer: Any) -> relax.Expr:
    """The axis before that of the parts, which are one of real numbers and two of complex ones."""
    x, length, inverse, onesided = importer.retrieve_args(node)
    attributes = {"inverse": int(inverse), "onesided": int(onesided)}
    inputs = [x, np.asarray(length), np.asarray(-2)]
    return as_onnx(node, importer, "DFT", inputs, attributes)


def _same_bits(node: Any, importer: Any) -> relax.Expr:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype_of(node)))
    return as_onnx(node, importer, "BitCast", [importer.env[node.args[0]]], {"to": kind})


OWN_CONVERTERS = {
    "dft.default": _dft,
    "factor.default": _factor,
    "factor2.default": _factor,
    "view.dtype": _same_bits,
}
"""By torch's name."""
