"""Reductions along axes, and running sums."""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from tvm_stretch.frontend.onnx_node import Node, Value, converter
from tvm_stretch.frontend.onnx_ops.elementwise import cast, constant

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
    if node.op in ("ReduceMax", "ReduceMin") and "float" in node.dtype() and axes:
        return _extreme(node, axes, keepdims=keepdims)
    x, function = node[0], _REDUCE[node.op]
    if node.op == "ReduceLogSumExp":
        return _log_sum_exp(node, axes, keepdims=keepdims)
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        x = relax.op.multiply(x, x)
    elif node.op == "ReduceL1":
        x = relax.op.abs(x)
    if node.dtype() == "bool":
        x = relax.op.astype(x, "int8")
    result = function(x, axis=axes, keepdims=keepdims) if axes else x
    if node.op == "ReduceL2":
        result = relax.op.sqrt(result)
    elif node.op == "ReduceLogSum":
        result = relax.op.log(result)
    return cast(node, node.emit(result), "bool") if node.dtype() == "bool" else result


def _extreme(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """Maximum or minimum that starts from an infinity: TVM's own starts from the largest number."""
    most = node.op == "ReduceMax"
    start = -np.inf if most else np.inf
    pick = tirx.max if most else tirx.min
    reducer = te.comm_reducer(lambda a, b: pick(a, b), lambda t: tirx.const(start, t))

    def compute(x: te.Tensor) -> te.Tensor:
        bounds = [te.reduce_axis((0, x.shape[axis])) for axis in axes]
        shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]

        def element(*place: tirx.Var) -> tirx.Expr:
            kept = iter(place)
            index = []
            for axis in range(len(x.shape)):
                if axis in axes:
                    index.append(bounds[axes.index(axis)])
                    if keepdims:
                        next(kept)
                else:
                    index.append(next(kept))
            return reducer(x[tuple(index)], axis=bounds)

        return te.compute(shape, element)

    return node.bb.emit_te(compute, node[0], primfunc_name_hint=node.op.lower())


def _log_sum_exp(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """Shifted by the maximum, so that nothing overflows."""
    x = node[0]
    if not axes:
        return x
    most = node.emit(relax.op.max(x, axis=axes, keepdims=True))
    # All minus infinity: shifted by a number instead, what is left is the logarithm of zero.
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


@converter("ArgMax", "ArgMin")
def _arg(node: Node) -> relax.Expr:
    function = relax.op.argmax if node.op == "ArgMax" else relax.op.argmin
    axis = node.axis(0)
    last = bool(node.attr("select_last_index", 0))
    x = relax.op.flip(node[0], axis) if last else node[0]
    found = function(x, axis=axis, keepdims=bool(node.attr("keepdims", 1)))
    if last:
        found = relax.op.subtract(constant(node.shape()[axis] - 1, "int64"), found)
    return found


@converter("CumSum", "CumProd")
def _cumulate(node: Node) -> relax.Expr:
    function = relax.op.cumsum if node.op == "CumSum" else relax.op.cumprod
    axis = int(node.const(1, "axis").item()) % node.rank()
    reverse = bool(node.attr("reverse", 0))
    x = relax.op.flip(node[0], axis) if reverse else node[0]
    exclusive = bool(node.attr("exclusive", 0))
    result = node.emit(function(x, axis=axis, dtype=node.dtype(), exclusive=exclusive))
    return relax.op.flip(result, axis) if reverse else result


@converter("TopK")
def _top_k(node: Node) -> tuple[relax.Expr, ...]:
    if node.dtype() in ("uint16", "uint32", "uint64", "int16", "bfloat16", "bool"):
        raise node.refuse("a type that TVM sorts", node.dtype())
    k = int(node.const(1, "K").item()) if node.opset >= 10 else int(node.attr("k"))
    best = node.emit(
        relax.op.topk(
            node[0], k, node.axis(-1), largest=bool(node.attr("largest", 1)), dtype="int64"
        )
    )
    return relax.TupleGetItem(best, 0), relax.TupleGetItem(best, 1)
