"""Reductions along axes, and running sums."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, Value, converter
from tvm_stretch.read.onnx.operators.elementwise import cast

_REDUCE = {
    "ReduceMean": relax.op.mean, "ReduceSum": relax.op.sum, "ReduceMax": relax.op.max,
    "ReduceMin": relax.op.min, "ReduceProd": relax.op.prod, "ReduceL1": relax.op.sum,
    "ReduceL2": relax.op.sum, "ReduceLogSum": relax.op.sum, "ReduceLogSumExp": relax.op.sum,
    "ReduceSumSquare": relax.op.sum,
}  # fmt: skip


@converter(*_REDUCE)
def _reduce(node: Node) -> Value:
    axes = node.optional_ints(1, "axes")
    if not axes:
        axes = [] if node.attr("noop_with_empty_axes", 0) else list(range(node.rank()))
    axes = sorted(axis % node.rank() for axis in axes)
    keepdims = bool(node.attr("keepdims", 1))
    shape = node.shape()
    if any(shape[axis] == 0 for axis in axes):
        return _of_nothing(node, axes, keepdims=keepdims)
    x, function = node[0], _REDUCE[node.op]
    if node.op == "ReduceLogSumExp":
        return _log_sum_exp(node, axes, keepdims=keepdims)
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        x = relax.op.multiply(x, x)
    elif node.op == "ReduceL1":
        x = relax.op.abs(x)
    if node.dtype() == "bool":
        x = relax.op.astype(x, "int8")
    if node.op == "ReduceMean" and "int" in node.dtype():
        return _mean_of_integers(node, axes, keepdims=keepdims)
    result = function(x, axis=axes, keepdims=keepdims) if axes else x
    if node.op == "ReduceL2":
        result = relax.op.sqrt(result)
    elif node.op == "ReduceLogSum":
        result = relax.op.log(result)
    return cast(node, node.emit(result), "bool") if node.dtype() == "bool" else result


def _mean_of_integers(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """In float64, as ONNX Runtime and NumPy do: a sum may be larger than the mean's type."""
    if not axes:
        return node[0]
    wide = node.emit(relax.op.astype(node[0], "float64"))
    mean = node.emit(relax.op.mean(wide, axis=axes, keepdims=keepdims))
    return relax.op.astype(mean, node.dtype())


def _log_sum_exp(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """Shifted by the maximum, so that nothing overflows."""
    x = node[0]
    if not axes:
        return x
    most = node.emit(relax.op.max(x, axis=axes, keepdims=True))
    infinite = relax.op.equal(relax.op.abs(most), node.scalar(np.inf))
    most = node.emit(relax.op.where(infinite, node.scalar(0), most))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, most)), axis=axes, keepdims=True)
    result = node.emit(relax.op.add(relax.op.log(total), most))
    return result if keepdims else relax.op.squeeze(result, axes)


def _of_nothing(node: Node, axes: list[int], *, keepdims: bool) -> np.ndarray:
    """The neutral element, when there is nothing to reduce."""
    dtype = np.dtype(node.dtype())
    lowest, highest = (
        (-np.inf, np.inf)
        if dtype.kind == "f"
        else (False, True)
        if dtype.kind == "b"
        else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    neutral = {
        "ReduceProd": 1, "ReduceMax": lowest, "ReduceMin": highest, "ReduceLogSum": -np.inf,
        "ReduceLogSumExp": -np.inf, "ReduceMean": np.nan,
    }.get(node.op, 0)  # fmt: skip
    shape = [
        1 if axis in axes else size
        for axis, size in enumerate(node.shape())
        if keepdims or axis not in axes
    ]
    return np.full(shape, neutral, dtype)
