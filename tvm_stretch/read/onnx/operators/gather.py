"""Operators that read or write at computed places.

What happens with indices that count from the end, or are out of range: passes/guard_operators.py.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast


@converter("Gather")
def _gather(node: Node) -> relax.Expr:
    return relax.op.take(node[0], node[1], node.axis(0))


@converter("GatherElements")
def _gather_elements(node: Node) -> relax.Expr:
    return relax.op.gather_elements(node[0], node[1], node.axis(0))


@converter("GatherND")
def _gather_nd(node: Node) -> relax.Expr:
    return relax.op.gather_nd(node[0], node[1], node.attr("batch_dims", 0))


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@converter("Scatter", "ScatterElements")
def _scatter_elements(node: Node) -> relax.Expr:
    """Write every element at its full coordinates: the index along one axis, its own elsewhere."""
    axis, rank, shape = node.axis(0), node.rank(), node.shape(1)
    index = cast(node, node[1], "int64")
    node.check_table(rank, *shape)
    own = np.indices(shape, dtype="int64")
    parts = [
        relax.op.expand_dims(index, rank) if i == axis else as_expr(own[i][..., None])
        for i in range(rank)
    ]
    places = node.emit(relax.op.concat(parts, rank)) if rank > 1 else parts[0]
    reduction = _REDUCTIONS[node.attr("reduction", "none")]
    return relax.op.scatter_nd(node[0], places, node[2], reduction)


@converter("ScatterND")
def _scatter_nd(node: Node) -> relax.Expr:
    reduction = _REDUCTIONS[node.attr("reduction", "none")]
    return relax.op.scatter_nd(node[0], node[1], node[2], reduction)


def write_rows(
    node: Node, cache: relax.Expr, rows: relax.Expr, places: relax.Expr, axis: int
) -> relax.Expr:
    """``cache`` with ``rows`` at ``places`` (batch, steps) of an axis after the first.

    The form is that of `passes/write_places.py`, so a state is written where it lies.
    """
    shape, new = shape_of(cache), shape_of(rows)
    batch, steps = shape[0], new[axis]
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    each = node.emit(relax.op.reshape(places, [batch, 1, steps, 1]))
    each = node.emit(relax.op.broadcast_to(each, [batch, outer // batch, steps, 1]))
    each = node.emit(relax.op.reshape(each, [outer, steps, 1]))
    numbers = np.arange(outer, dtype=str(places.ty.dtype)).reshape(outer, 1, 1)
    pieces = as_expr(np.broadcast_to(numbers, (outer, steps, 1)).copy())
    written = relax.op.scatter_nd(
        node.emit(relax.op.reshape(cache, [outer, shape[axis], inner])),
        node.emit(relax.op.concat([pieces, each], 2)),
        node.emit(relax.op.reshape(rows, [outer, steps, inner])),
        "update",
    )
    return node.emit(relax.op.reshape(node.emit(written), shape))


@converter("TensorScatter")
def _tensor_scatter(node: Node) -> relax.Expr:
    """Writes at one place of each part of a batch."""
    axis, (batch, *_) = node.axis(-2), node.shape()
    length, steps = node.shape()[axis], node.shape(1)[axis]
    if axis == 0:
        raise node.refuse("an axis after the batch", "axis 0")
    first = as_expr(np.zeros((batch, 1), "int64"))
    if node.has(2):
        first = node.emit(relax.op.reshape(cast(node, node[2], "int64"), [batch, 1]))
    places = node.emit(relax.op.add(first, as_expr(np.arange(steps)[None])))
    if node.attr("mode", "linear") == "circular":
        places = node.emit(relax.op.mod(places, relax.const(length, "int64")))
    return write_rows(node, node[0], node[1], places, axis)


@converter("Compress")
def _compress(node: Node) -> relax.Expr:
    chosen = np.flatnonzero(node.const(1, "condition")).astype("int32")
    x, axis = node[0], 0
    if node.attr("axis") is None:
        x = relax.op.reshape(x, (int(np.prod(node.shape())),))
    else:
        axis = node.axis(0)
    if not chosen.size:
        raise node.refuse("a condition that keeps something", "one that keeps nothing")
    return relax.op.take(x, as_expr(chosen), axis, mode="clip")


@converter("OneHot")
def _one_hot(node: Node) -> relax.Expr:
    """Compare with 0..depth-1: indices out of range match nothing."""
    depth = int(node.const(1, "depth").reshape(-1)[0])
    axis = node.axis(-1, rank=node.rank() + 1)
    node.check_table(depth)
    steps = np.arange(depth, dtype="int64").reshape([-1] + [1] * (node.rank() - axis))
    indices = cast(node, node[0], "int64")
    below = relax.op.less(indices, relax.const(0, "int64"))
    indices = relax.op.where(below, relax.op.add(indices, relax.const(depth, "int64")), indices)
    match = relax.op.equal(relax.op.expand_dims(node.emit(indices), axis), as_expr(steps))
    off, on = (relax.op.take(node[2], as_expr(np.int32(i)[None]), 0, mode="clip") for i in (0, 1))
    return relax.op.where(match, node.emit(on), node.emit(off))


@converter("Range")
def _range(node: Node) -> Value:
    start, limit, delta = (node.const(i, what).item() for i, what in enumerate(_RANGE))
    if not delta:
        raise node.refuse("a step other than 0", "0")
    node.check_table(max(math.ceil((limit - start) / delta), 0))
    return np.arange(start, limit, delta).astype(node.dtype())


_RANGE = ("start", "limit", "delta")
