"""Operators that choose elements, whose number the data decide.

    NonZero([0 5 0 7])   places in front: [- 0 - 1]   ->   [1 3 0 0], of which 2 count
    Unique([7 5 7])      places in order: [1 0 -]     ->   [5 7 0], of which 2 count

Results have room for the largest number; `Node.sizes` says how many elements count.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.onnx.node import Node, Value, converter, static_shape
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.targets.kernels.suppression import Limits, suppression_call
from tvm_stretch.targets.kernels.top_k import Running, running_call


def chosen(node: Node, mask: relax.Expr, count: int) -> tuple[relax.Expr, relax.Expr]:
    """Places of a vector's true elements in front, zeros after them; and how many are true."""
    emit = node.emit
    true = emit(relax.op.astype(mask, "int64"))
    column = emit(relax.op.reshape(true, (1, count, 1)))
    before = emit(
        running_call(node.bb, column, Running(product=False, exclusive=True, backwards=False))
    )
    before = emit(relax.op.reshape(before, (count,)))
    return _in_front(node, mask, before), emit(relax.op.sum(true, axis=0, keepdims=True))


def _in_front(node: Node, mask: relax.Expr, before: relax.Expr) -> relax.Expr:
    """Places of a vector's true elements, each where ``before`` says, zeros after them."""
    emit, (count,) = node.emit, static_shape(mask)
    place = emit(relax.op.where(mask, before, constant(np.asarray(count, "int64"))))
    room = constant(np.zeros(count + 1, "int32"))  # the last place takes the others
    numbers = constant(np.arange(count, dtype="int32"))
    front = emit(relax.op.scatter_nd(room, emit(relax.op.expand_dims(place, 1)), numbers, "update"))
    return emit(relax.op.strided_slice(front, [0], [0], [count]))


def inside(node: Node, x: relax.Expr, axis: int, size: relax.Expr, fill: float = 0) -> relax.Expr:
    """``x`` with zeros, or another number, after its true size."""
    shape = static_shape(x)
    lined_up = [-1 if i == axis else 1 for i in range(len(shape))]
    place = constant(np.arange(shape[axis], dtype="int64").reshape(lined_up))
    is_inside = node.emit(relax.op.less(place, size))
    return node.emit(relax.op.where(is_inside, x, relax.const(fill, x.ty.dtype.dtype)))


@converter("NonZero")
def _non_zero(node: Node) -> Value:
    shape = node.shape()
    count = prod(shape)
    if not count or not shape:
        raise node.refuse("a tensor of one dimension or more that has elements", str(shape))
    flat = node.emit(relax.op.reshape(node[0], (count,)))
    front, size = chosen(node, node.emit(cast(node, flat, "bool")), count)
    rows = []
    for axis, extent in enumerate(shape):
        step = constant(np.asarray(prod(shape[axis + 1 :]), "int32"))
        row = node.emit(relax.op.floor_divide(front, step))
        rows.append(node.emit(relax.op.floor_mod(row, constant(np.asarray(extent, "int32")))))
    node.sizes[0] = 1, size
    return relax.op.astype(node.emit(relax.op.stack(rows, axis=0)), "int64")


@converter("Compress")
def _compress(node: Node) -> Value:
    """Slices, or elements, where a vector is true; it may be shorter than the axis."""
    x, axis = node[0], 0
    if node.attr("axis") is None:
        x = node.emit(relax.op.reshape(x, (prod(node.shape()),)))
    else:
        axis = node.axis(0)
    shape, count = static_shape(x), prod(node.shape(1))
    if not 0 < count <= shape[axis]:
        raise node.refuse(f"1 to {shape[axis]} conditions", f"{count}")
    front, size = chosen(node, node.emit(relax.op.reshape(node[1], (count,))), count)
    node.sizes[0] = axis, size
    return inside(node, node.emit(relax.op.take(x, front, axis)), axis, size)


_MOST_PAIRS = 1 << 24
_MOST_NUMBERS = 64


@converter("Unique")
def _unique(node: Node) -> tuple[Value, ...]:
    """Numbers, or slices along an axis; NaN is one number, the largest.

    All pairs are compared.
    """
    emit, x, axis = node.emit, node[0], 0
    if node.attr("axis") is None:
        x = emit(relax.op.reshape(x, (prod(node.shape()),)))
    else:
        axis = node.axis(0)
    shape = static_shape(x)
    count, numbers = shape[axis], prod(shape) // max(shape[axis], 1)
    if not 0 < count**2 * numbers <= _MOST_PAIRS or numbers > _MOST_NUMBERS:
        raise node.refuse(
            f"slices of {_MOST_NUMBERS} numbers with {_MOST_PAIRS} pairs of them, or fewer",
            f"{count} slices of {numbers}",
        )
    turned = [axis, *(i for i in range(len(shape)) if i != axis)]
    rows = emit(relax.op.reshape(emit(relax.op.permute_dims(x, turned)), (count, numbers)))
    same, less = _pairs(node, rows)
    first = emit(relax.op.argmax(emit(relax.op.astype(same, "int32")), 1))
    own = constant(np.arange(count, dtype="int64"))
    is_first = emit(relax.op.equal(first, own))
    before, size = chosen(node, is_first, count)
    if node.attr("sorted", 1):
        smaller = emit(relax.op.logical_and(less, emit(relax.op.expand_dims(is_first, 1))))
        rank = emit(relax.op.sum(emit(relax.op.astype(smaller, "int64")), 0))
        before = _in_front(node, is_first, rank)
    at = emit(
        relax.op.equal(emit(relax.op.expand_dims(first, 1)), emit(relax.op.astype(before, "int64")))
    )
    inverse = emit(relax.op.argmax(emit(relax.op.astype(at, "int32")), 1))
    counts = emit(relax.op.sum(emit(relax.op.astype(same, "int64")), 1))
    node.sizes |= {0: (axis, size), 1: (0, size), 3: (0, size)}
    results = (
        inside(node, emit(relax.op.take(x, before, axis)), axis, size),
        emit(relax.op.astype(before, "int64")),  # zeros follow already
        inverse,
        inside(node, emit(relax.op.take(counts, before, 0)), 0, size),
    )
    return results[: len(node.outputs)]


def _pairs(node: Node, rows: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Which rows are equal, and which (the first index) are less than which others."""
    emit, (count, numbers) = node.emit, static_shape(rows)
    same = less = None
    for k in reversed(range(numbers)):
        column = emit(relax.op.strided_slice(rows, [1], [k], [k + 1]))
        line = emit(relax.op.reshape(column, (1, count)))
        equal, below = emit(relax.op.equal(column, line)), emit(relax.op.less(column, line))
        if "float" in str(rows.ty.dtype):
            nans = emit(relax.op.isnan(column)), emit(relax.op.isnan(line))
            equal = emit(relax.op.logical_or(equal, emit(relax.op.logical_and(*nans))))
            above = emit(relax.op.logical_and(emit(relax.op.logical_not(nans[0])), nans[1]))
            below = emit(relax.op.logical_or(below, above))
        same = equal if same is None else emit(relax.op.logical_and(same, equal))
        less = below if less is None else emit(relax.op.where(equal, less, below))
    return same, less


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
    first, size = chosen(node, emit(relax.op.reshape(mask, (room,))), room)
    node.sizes[0] = 0, size
    return inside(node, emit(relax.op.take(rows, first, 0)), 0, size)


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
