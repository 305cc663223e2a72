"""Operators that choose elements, whose number the data decide.

    NonZero([0 5 0 7])   places in front: [- 0 - 1]   ->   [1 3 0 0], of which 2 count

Results have room for the largest number; `Node.sizes` says how many elements count.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.onnx.node import Node, Value, converter
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.targets.kernels.suppression import Limits, suppression_call
from tvm_stretch.targets.kernels.top_k import Running, running_call


def _chosen(node: Node, mask: relax.Expr, count: int) -> tuple[relax.Expr, relax.Expr]:
    """Places of a vector's true elements in front, zeros after them; and how many are true."""
    emit = node.emit
    true = emit(relax.op.astype(mask, "int64"))
    column = emit(relax.op.reshape(true, (1, count, 1)))
    before = emit(
        running_call(node.bb, column, Running(product=False, exclusive=True, backwards=False))
    )
    before = emit(relax.op.reshape(before, (count,)))
    place = emit(relax.op.where(mask, before, constant(np.asarray(count, "int64"))))
    room = constant(np.zeros(count + 1, "int32"))  # the last place takes the others
    numbers = constant(np.arange(count, dtype="int32"))
    front = emit(relax.op.scatter_nd(room, emit(relax.op.expand_dims(place, 1)), numbers, "update"))
    front = emit(relax.op.strided_slice(front, [0], [0], [count]))
    return front, emit(relax.op.sum(true, axis=0, keepdims=True))


@converter("NonZero")
def _non_zero(node: Node) -> Value:
    shape = node.shape()
    count = prod(shape)
    if not count or not shape:
        raise node.refuse("a tensor of one dimension or more that has elements", str(shape))
    flat = node.emit(relax.op.reshape(node[0], (count,)))
    front, size = _chosen(node, node.emit(cast(node, flat, "bool")), count)
    rows = []
    for axis, extent in enumerate(shape):
        step = constant(np.asarray(prod(shape[axis + 1 :]), "int32"))
        row = node.emit(relax.op.floor_divide(front, step))
        rows.append(node.emit(relax.op.floor_mod(row, constant(np.asarray(extent, "int32")))))
    node.sizes[0] = 1, size
    return relax.op.astype(node.emit(relax.op.stack(rows, axis=0)), "int64")


@converter("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Value:
    """Rows of image, class and box, in this order, with equal classes by descending score."""
    images, classes, count = node.shape(1)
    most = _number(node, 2, "max_output_boxes_per_class", 0)
    limits = Limits(
        min(int(most), count),
        _number(node, 3, "iou_threshold", 0),
        _number(node, 4, "score_threshold", float(np.finfo("float32").min)),
    )
    if limits.most <= 0 or not images * classes:
        return np.zeros((0, 3), "int64")
    emit, room = node.emit, images * classes * limits.most
    kept = emit(suppression_call(node.bb, _corners(node), node[1], limits))
    box = emit(relax.op.astype(emit(relax.op.reshape(kept, (room, 1))), "int64"))
    front = np.indices((images, classes, limits.most), dtype="int64")[:2].reshape(2, room).T
    rows = emit(relax.op.concat([constant(front), box], 1))
    mask = emit(relax.op.greater_equal(kept, constant(np.zeros((), "int32"))))
    first, size = _chosen(node, emit(relax.op.reshape(mask, (room,))), room)
    rows = emit(relax.op.take(rows, first, 0))
    place = constant(np.arange(room, dtype="int64")[:, None])
    node.sizes[0] = 0, size
    inside = emit(relax.op.less(place, size))
    return relax.op.where(inside, rows, constant(np.zeros((), "int64")))


def _number(node: Node, index: int, what: str, default: float) -> float:
    given = node.optional_const(index, what)
    return default if given is None else float(given.reshape(-1)[0])


def _corners(node: Node) -> relax.Expr:
    """The boxes as lower and upper corners."""
    emit = node.emit
    first = emit(relax.op.strided_slice(node[0], [2], [0], [2]))
    second = emit(relax.op.strided_slice(node[0], [2], [2], [4]))
    if node.attr("center_point_box", 0):  # x, y, width, height
        half = emit(relax.op.multiply(second, node.scalar(0.5)))
        corners = [relax.op.subtract(first, half), relax.op.add(first, half)]
    else:
        corners = [relax.op.minimum(first, second), relax.op.maximum(first, second)]
    return emit(relax.op.concat([emit(corner) for corner in corners], 2))
