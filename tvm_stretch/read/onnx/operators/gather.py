"""Operators that read or write at computed places.

What happens with indices that count from the end, or are out of range: passes/guard_operators.py.

`DeformConv` moves its taps by computed offsets:

    y[o, p] = sum over taps k, channels c of w[o, c, k] * mask[k, p] * x[c, p + k + offset[k, p]]

    places, shares  ->  four rows of channels for each tap, weighted: (pixels, taps, channels)
                    ->  one product with the weights, (taps * channels, outputs)

Pixels come first and channels last, so that a tap reads a row of channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.layers import add_bias, window_attributes


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


def rows_written(node: Node) -> relax.Expr | None:
    """The place of each row, (rows, 1, 1), of a `ScatterElements` of whole rows; else None.

    Exporters write rows so: each place is repeated for all elements of its row.
    """
    spread: Any = node.bb.lookup_binding(node[1]) if isinstance(node[1], relax.Var) else None
    if kind_of(spread) != "broadcast_to" or node.axis(0) != 0 or node.rank() < 2:
        return None
    before, after = shape_of(spread.args[0]), node.shape(1)
    is_each = before == [after[0], *(1 for _ in after[1:])] and after[1:] == node.shape()[1:]
    return spread.args[0] if is_each else None


@converter("Scatter", "ScatterElements")
def _scatter_elements(node: Node) -> relax.Expr:
    """Write every element at its full coordinates: the index along one axis, its own elsewhere."""
    axis, rank, shape = node.axis(0), node.rank(), node.shape(1)
    rows = rows_written(node)
    if rows is not None:
        places = cast(node, node.emit(relax.op.reshape(rows, (shape[0], 1))), "int64")
        reduction = _REDUCTIONS[node.attr("reduction", "none")]
        return relax.op.scatter_nd(node[0], places, node[2], reduction)
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


@dataclass(frozen=True)
class _Sizes:
    """What the operands of a node say."""

    batch: int
    channels: int
    size: tuple[int, int]  # rows and columns of the input
    out: tuple[int, int]  # of the result
    window: tuple[int, int]
    shared: int  # pieces of the channels, each with offsets of its own

    @property
    def taps(self) -> int:
        """Offsets of a pixel."""
        return prod(self.window)

    @property
    def places(self) -> list[int]:
        """The shape of whatever there is for each tap."""
        return [self.batch, self.shared, prod(self.out), self.taps]


@converter("DeformConv")
def _deform_conv(node: Node) -> relax.Expr:
    if node.rank() != 4 or node.rank(1) != 4 or node.rank(2) != 4:
        raise node.refuse("2 spatial dimensions", f"an input of rank {node.rank()}")
    (batch, channels, *size), (outputs, _, *window) = node.shape(), node.shape(1)
    shared, groups = node.attr("offset_group", 1), node.attr("group", 1)
    out = node.shape(2)[2:]
    sizes = _Sizes(
        batch, channels, (size[0], size[1]), (out[0], out[1]), (window[0], window[1]), shared
    )
    if channels % shared or node.shape(2)[1] != 2 * shared * sizes.taps:
        raise node.refuse(
            f"{2 * sizes.taps} offsets for each of {shared} pieces of {channels} channels",
            f"offsets of shape {node.shape(2)}",
        )
    taps = _taps(node, sizes)
    pixels = batch * prod(sizes.out)
    wide = node.emit(relax.op.reshape(taps, [pixels, sizes.taps, groups, channels // groups]))
    wide = node.emit(relax.op.permute_dims(wide, [2, 0, 1, 3])) if groups > 1 else wide
    depth = sizes.taps * channels // groups
    rows = node.emit(relax.op.reshape(wide, [groups, pixels, depth]))
    weight = node.emit(
        relax.op.reshape(node[1], [groups, outputs // groups, channels // groups, sizes.taps])
    )
    weight = node.emit(relax.op.permute_dims(weight, [0, 3, 2, 1]))
    weight = node.emit(relax.op.reshape(weight, [groups, depth, outputs // groups]))
    product = node.emit(relax.op.matmul(rows, weight))
    product = node.emit(relax.op.permute_dims(product, [0, 2, 1]))
    product = node.emit(relax.op.reshape(product, [outputs, batch, *sizes.out]))
    product = node.emit(relax.op.permute_dims(product, [1, 0, 2, 3]))
    return add_bias(node, product, 3)


def _taps(node: Node, sizes: _Sizes) -> relax.Expr:
    """What each tap reads: (batch, pixels, taps, channels)."""
    own = sizes.channels // sizes.shared
    x = node.emit(relax.op.reshape(node[0], [sizes.batch * sizes.shared, own, prod(sizes.size)]))
    x = node.emit(relax.op.permute_dims(x, [0, 2, 1]))
    rows = node.emit(relax.op.reshape(x, [-1, own]))
    y, x_place = _places(node, sizes)
    total = None
    for index, share in _corners(node, sizes, y, x_place):
        read = node.emit(relax.op.take(rows, index, 0, mode="clip"))
        part = node.emit(relax.op.multiply(read, node.emit(relax.op.expand_dims(share, 4))))
        total = part if total is None else node.emit(relax.op.add(total, part))
    if sizes.shared > 1:
        total = node.emit(relax.op.permute_dims(total, [0, 2, 3, 1, 4]))
    return total


def _places(node: Node, sizes: _Sizes) -> tuple[relax.Var, relax.Var]:
    """Row and column that each tap reads, (batch, pieces, pixels, taps)."""
    strides, dilations = window_attributes(node, 2)
    pads = [int(pad) for pad in node.attr("pads", [0] * 4)]
    offsets = relax.op.reshape(node[2], [sizes.batch, sizes.shared, sizes.taps, 2, prod(sizes.out)])
    offsets = node.emit(relax.op.permute_dims(node.emit(offsets), [3, 0, 1, 4, 2]))
    places = []
    for axis in (0, 1):
        steps = np.arange(sizes.out[axis]) * strides[axis] - pads[axis]
        moves = np.arange(sizes.window[axis]) * dilations[axis]
        grids = np.broadcast_to(
            np.expand_dims(steps, 1 - axis)[..., None, None], (*sizes.out, 1, 1)
        ) + np.expand_dims(moves, 1 - axis)
        own = np.broadcast_to(grids, (*sizes.out, *sizes.window)).reshape(1, 1, -1, sizes.taps)
        part = node.emit(relax.op.strided_slice(offsets, [0], [axis], [axis + 1]))
        part = node.emit(relax.op.reshape(part, sizes.places))
        places.append(node.emit(relax.op.add(part, as_expr(own.astype(node.dtype())))))
    return places[0], places[1]


def _corners(
    node: Node, sizes: _Sizes, y: relax.Var, x: relax.Var
) -> list[tuple[relax.Var, relax.Var]]:
    """The row of channels at each of four pixels around a place, and its share of the tap."""
    mask = None
    if node.has(4):
        shape = [sizes.batch, sizes.shared, sizes.taps, prod(sizes.out)]
        mask = node.emit(relax.op.reshape(node[4], shape))
        mask = node.emit(relax.op.permute_dims(mask, [0, 1, 3, 2]))
    pieces = np.arange(sizes.batch * sizes.shared, dtype="int32") * prod(sizes.size)
    begin = as_expr(pieces.reshape(sizes.batch, sizes.shared, 1, 1))
    columns = relax.const(sizes.size[1], "int32")
    corners = []
    for row, row_share in _neighbours(node, y, sizes.size[0]):
        for column, column_share in _neighbours(node, x, sizes.size[1]):
            index = relax.op.add(relax.op.multiply(row, columns), column)
            share = node.emit(relax.op.multiply(row_share, column_share))
            if mask is not None:
                share = node.emit(relax.op.multiply(share, mask))
            corners.append((node.emit(relax.op.add(index, begin)), share))
    return corners


def _neighbours(node: Node, place: relax.Var, size: int) -> list[tuple[relax.Var, relax.Var]]:
    """The pixels before and after a place along an axis; those outside have no share."""
    dtype = node.dtype()
    before = node.emit(relax.op.floor(place))
    after_share = node.emit(relax.op.subtract(place, before))
    one, last = node.scalar(1, dtype), size - 1
    shares = (node.emit(relax.op.subtract(one, after_share)), after_share)
    neighbours = []
    for step, share in enumerate(shares):
        pixel = before if step == 0 else node.emit(relax.op.add(before, one))
        clipped = node.emit(relax.op.clip(pixel, 0, last))
        inside = node.emit(relax.op.equal(clipped, pixel))
        kept = node.emit(relax.op.where(inside, share, node.scalar(0, dtype)))
        neighbours.append((node.emit(cast(node, clipped, "int32")), kept))
    return neighbours
