"""Running sums and products, the first elements of an order, and the place of the largest.

TVM's own need routines of its runtime, which a network that runs alone on a phone does not carry.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import constant
from tvm_stretch.read.onnx.operators.movement import reshape
from tvm_stretch.targets.kernels.running import Running, running_call
from tvm_stretch.targets.kernels.top_k import top_k_call

MOST_SORTED = 1 << 30
"""K times the elements of a row: if they come in the worst order, each moves K others."""


@converter("CumSum", "CumProd")
def _cumulate(node: Node) -> relax.Expr:
    axis, shape = int(node.const(1, "axis").item()) % node.rank(), node.shape()
    running = Running(
        product=node.op == "CumProd",
        exclusive=bool(node.attr("exclusive", 0)),
        backwards=bool(node.attr("reverse", 0)),
    )
    three = [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]
    if 0 in three:
        return node[0]
    sums = running_call(node.bb, node.emit(reshape(node[0], three)), running)
    return reshape(node.emit(sums), shape)


@converter("TopK")
def _top_k(node: Node) -> tuple[relax.Expr, ...]:
    """The places of the first ``k``, and what stands there."""
    k = int(node.const(1, "K").item()) if node.opset >= 10 else int(node.attr("k"))
    axis, shape = node.axis(-1), node.shape()
    extent = shape[axis]
    if not 0 <= k <= extent:
        raise node.refuse(f"K from 0 to {extent}, the number of elements", str(k))
    if k == 0:
        nothing = [0 if i == axis else size for i, size in enumerate(shape)]
        return tuple(as_expr(np.zeros(nothing, dtype)) for dtype in (node.dtype(), "int64"))
    if k * extent > MOST_SORTED:
        raise node.refuse(f"at most {MOST_SORTED} for K times elements", f"{k} times {extent}")
    last = [*(i for i in range(len(shape)) if i != axis), axis]
    moved = node.emit(relax.op.permute_dims(node[0], last))
    matrix = node.emit(reshape(moved, [math.prod(shape) // extent, extent]))
    largest = bool(node.attr("largest", 1))
    places = node.emit(top_k_call(node.bb, matrix, k, largest=largest))
    places = node.emit(reshape(places, [*(shape[i] for i in last[:-1]), k]))
    indices = node.emit(relax.op.permute_dims(places, [last.index(i) for i in range(len(shape))]))
    indices = node.emit(relax.op.clip(indices, 0, extent - 1))  # so no later pass guards them
    return node.emit(relax.op.gather_elements(node[0], indices, axis)), indices


@converter("ArgMax", "ArgMin")
def _arg(node: Node) -> relax.Expr:
    return place_of_extreme(
        node,
        node.axis(0),
        largest=node.op == "ArgMax",
        last=bool(node.attr("select_last_index", 0)),
        keepdims=bool(node.attr("keepdims", 1)),
    )


def place_of_extreme(
    node: Node, axis: int, *, largest: bool, last: bool, keepdims: bool
) -> relax.Expr:
    """The first or last place of the largest or least number along an axis, or of NaN.

    TVM's own compares pairs of a number and its place: NaN makes any pair win, in no vectors.
    """
    x, shape = node[0], node.shape()
    most = relax.op.max if largest else relax.op.min
    found = relax.op.equal(x, node.emit(most(x, axis=[axis], keepdims=True)))
    if "float" in node.dtype():
        found = relax.op.logical_or(found, relax.op.isnan(x))
    extent = shape[axis]
    along = [extent if i == axis else 1 for i in range(len(shape))]
    places = constant(np.arange(extent).reshape(along), "int32")
    nowhere = constant(-1 if last else extent, "int32")
    marked = node.emit(relax.op.where(node.emit(found), places, nowhere))
    chosen = (relax.op.max if last else relax.op.min)(marked, axis=[axis], keepdims=keepdims)
    return relax.op.astype(node.emit(chosen), "int64")
