"""Operators of torch that TVM's importer translates wrongly, or not at all.

x[:, i, j]                       one element for each pair, not rows i and columns j
conv2d(x: bfloat16, w, bias)     the bias is added in the network's type
x // 2, div(x, y, rounding_mode) both operands in the result's type
(x > 0).cumsum(1)                sums of booleans are integers
interpolate(x, (7, 7))           the nearest pixel is that below, not that of the nearest centre
x.unfold(2, 3, 1)                windows of 3: their elements are taken by constant indices
fold(x, (8, 8), 3)               each pixel is the sum of elements taken by constant indices
lstm(x, (h, c), weights, ..)     one layer after the other: `torch_recurrent.py`
x.amax(1), pad(x, .., "reflect") reductions and edges: `torch_reductions.py`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax

from tvm_stretch.frontend.gathered import gathered
from tvm_stretch.frontend.torch_recurrent import RECURRENT
from tvm_stretch.frontend.torch_reductions import REDUCTIONS
from tvm_stretch.frontend.windows import Windows, fold

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_KEPT = ("col2im.default", "unfold.default")
"""What torch would write in terms of strides, or of additions to places in memory."""


_DIVISIONS = ("div.Tensor", "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program in the few operators that TVM's importer, or a converter here, knows."""
    import torch

    table = torch.export.default_decompositions()
    for name in (*_KEPT, *RECURRENT):
        operator, _, overload = name.partition(".")
        table.pop(getattr(getattr(torch.ops.aten, operator), overload), None)
    return program.run_decompositions(table)


def converters() -> dict[str, Any]:
    """By torch's name, as TVM's importer wants them."""
    return {
        **REDUCTIONS,
        "index.Tensor": _index,
        "convolution.default": _convolution,
        "addmm.default": _addmm,
        "col2im.default": _fold,
        "unfold.default": _unfold,
        "upsample_nearest2d.vec": _nearest,
        "cumprod.default": _running(relax.op.cumprod),
        "cumsum.default": _running(relax.op.cumsum),
        **dict.fromkeys(_DIVISIONS, _divide),
        **dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), _matmul),
    }


def _index(node: Any, importer: Any) -> relax.Expr:
    """Bring the indexed axes to the front, take one element per tuple of indices, and go back.

    Axes that are indexed side by side stay where they were; others leave theirs in front.
    """
    x, indices = importer.retrieve_args(node)
    emit, rank = importer.block_builder.emit, len(x.ty.shape.values)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [emit(relax.op.astype(indices[axis], "int64")) for axis in axes]
    shape = _broadcast([[int(d) for d in index.ty.shape.values] for index in given])
    parts = [emit(relax.op.expand_dims(_widened(index, shape), len(shape))) for index in given]
    places = emit(relax.op.concat(parts, len(shape))) if len(parts) > 1 else parts[0]
    rest = [axis for axis in range(rank) if axis not in axes]
    front = emit(relax.op.permute_dims(x, axes + rest))
    taken = emit(relax.op.gather_nd(front, places))
    if axes != list(range(axes[0], axes[0] + len(axes))):
        return taken
    new, before = list(range(len(shape))), axes[0]
    others = list(range(len(shape), len(shape) + len(rest)))
    return emit(relax.op.permute_dims(taken, others[:before] + new + others[before:]))


def _broadcast(shapes: list[list[int]]) -> list[int]:
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def _widened(index: relax.Expr, shape: list[int]) -> relax.Expr:
    return relax.op.broadcast_to(index, relax.ShapeExpr(shape))


def _convolution(node: Any, importer: Any) -> relax.Expr:
    """TVM's importer computes in float32; what follows is in the network's type again."""
    emit = importer.block_builder.emit
    bias = importer.env[node.args[2]] if node.args[2] is not None else None
    node.update_arg(2, None)
    result = importer._convolution(node)
    dtype = importer.env[node.args[0]].ty.dtype
    if result.ty.dtype != dtype:
        result = emit(relax.op.astype(result, dtype))
    if bias is None:
        return result
    shape = [1, int(bias.ty.shape.values[0]), *(1 for _ in result.ty.shape.values[2:])]
    return emit(relax.op.add(result, emit(relax.op.reshape(bias, relax.ShapeExpr(shape)))))


def _matmul(node: Any, importer: Any) -> relax.Expr:
    a, b = (importer.env[arg] for arg in node.args[:2])
    return importer.block_builder.emit(relax.op.matmul(a, b))


def _addmm(node: Any, importer: Any) -> relax.Expr:
    """``beta * bias + alpha * (a @ b)``."""
    emit = importer.block_builder.emit
    bias, a, b = (importer.env[arg] for arg in node.args[:3])
    product = emit(relax.op.matmul(a, b))
    factors = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    terms = [
        value if factor == 1 else emit(relax.op.multiply(value, relax.const(factor, a.ty.dtype)))
        for value, factor in zip((bias, product), factors, strict=True)
        if factor
    ]
    return emit(relax.op.add(terms[1], terms[0])) if len(terms) == 2 else terms[0]


def _dtype(node: Any) -> str:
    """The type of a node's result."""
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _divide(node: Any, importer: Any) -> relax.Expr:
    """Numbers and operands of other types become the result's type first, as torch does it."""
    emit = importer.block_builder.emit
    x, y = importer.retrieve_args(node)[:2]
    mode = node.kwargs.get("rounding_mode")
    if node.target.__name__ == "floor_divide.default":
        mode = "floor"
    dtype = _dtype(node)

    def of_type(value: Any) -> relax.Expr:
        if not isinstance(value, relax.Expr):
            return relax.const(value, dtype)
        return value if str(value.ty.dtype) == dtype else emit(relax.op.astype(value, dtype))

    divide = relax.op.floor_divide if mode == "floor" else relax.op.divide
    result = emit(divide(of_type(x), of_type(y)))
    return emit(relax.op.trunc(result)) if mode == "trunc" and "float" in dtype else result


def _running(function: Callable[..., relax.Expr]) -> Callable[[Any, Any], relax.Expr]:
    """Running sums and products in the result's type."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, axis = importer.retrieve_args(node)[:2]
        return importer.block_builder.emit(function(x, axis, _dtype(node)))

    return convert


def _nearest(node: Any, importer: Any) -> relax.Expr:
    """Torch reads pixel ``floor(i * step)``; the importer takes the nearest centre.

    The step is the inverse of a given factor, or the sizes' ratio, for which there is a resize.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    old = [int(size) for size in x.ty.shape.values[2:]]
    new = [int(size) for size in node.meta["val"].shape[2:]]
    factors = (node.args[2] if len(node.args) > 2 else None) or [None, None]
    steps = [1 / f if f else o / n for f, o, n in zip(factors, old, new, strict=True)]
    places = [_read(*sizes) for sizes in zip(old, new, steps, strict=True)]
    ratios = [_read(o, n, o / n) for o, n in zip(old, new, strict=True)]
    if not all(map(np.array_equal, places, ratios)):
        return gathered(emit, x, dict(enumerate(places, 2)))
    return emit(
        relax.op.image.resize2d(
            x,
            relax.ShapeExpr(new),
            layout="NCHW",
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        )
    )


def _read(old: int, new: int, step: float) -> np.ndarray:
    """The pixel that each new one is."""
    places = np.arange(new, dtype="float32") * np.float32(step)
    return np.minimum(places.astype("int32"), old - 1)


def _unfold(node: Any, importer: Any) -> relax.Expr:
    """`x.unfold`: windows along one axis; their elements become the last axis."""
    emit = importer.block_builder.emit
    x, axis, size, step = importer.retrieve_args(node)
    rank = len(x.ty.shape.values)
    axis %= rank
    starts = np.arange(0, int(x.ty.shape.values[axis]) - size + 1, step)
    places = relax.const(starts[:, None] + np.arange(size), "int64")
    windows = emit(relax.op.take(x, places, axis))
    axes = [a for a in range(rank + 1) if a != axis + 1]
    return emit(relax.op.permute_dims(windows, [*axes, axis + 1]))


def _fold(node: Any, importer: Any) -> relax.Expr:
    """`fold`: where windows overlap, their elements are added."""
    x, size, kernel, dilation, padding, stride = importer.retrieve_args(node)
    windows = Windows(size, kernel, dilation, padding, padding, stride)
    return fold(importer.block_builder.emit, x, windows)
