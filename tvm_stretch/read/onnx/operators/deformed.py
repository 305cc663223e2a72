"""Convolutions whose taps are moved by computed offsets (`DeformConv`).

    y[o, p] = sum over taps k, channels c of w[o, c, k] * mask[k, p] * x[c, p + k + offset[k, p]]

    places, shares  ->  four rows of channels for each tap, weighted: (pixels, taps, channels)
                    ->  one product with the weights, (taps * channels, outputs)

Pixels come first and channels last, so that a tap reads a row of channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.layers import add_bias, window_attributes


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
    found = node.emit(relax.op.matmul(rows, weight))
    found = node.emit(relax.op.permute_dims(found, [0, 2, 1]))
    found = node.emit(relax.op.reshape(found, [outputs, batch, *sizes.out]))
    found = node.emit(relax.op.permute_dims(found, [1, 0, 2, 3]))
    return add_bias(node, found, 3)


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
    found = []
    for axis in (0, 1):
        steps = np.arange(sizes.out[axis]) * strides[axis] - pads[axis]
        moves = np.arange(sizes.window[axis]) * dilations[axis]
        grids = np.broadcast_to(
            np.expand_dims(steps, 1 - axis)[..., None, None], (*sizes.out, 1, 1)
        ) + np.expand_dims(moves, 1 - axis)
        own = np.broadcast_to(grids, (*sizes.out, *sizes.window)).reshape(1, 1, -1, sizes.taps)
        part = node.emit(relax.op.strided_slice(offsets, [0], [axis], [axis + 1]))
        part = node.emit(relax.op.reshape(part, sizes.places))
        found.append(node.emit(relax.op.add(part, as_expr(own.astype(node.dtype())))))
    return found[0], found[1]


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
    found = []
    for row, row_share in _neighbours(node, y, sizes.size[0]):
        for column, column_share in _neighbours(node, x, sizes.size[1]):
            index = relax.op.add(relax.op.multiply(row, columns), column)
            share = node.emit(relax.op.multiply(row_share, column_share))
            if mask is not None:
                share = node.emit(relax.op.multiply(share, mask))
            found.append((node.emit(relax.op.add(index, begin)), share))
    return found


def _neighbours(node: Node, place: relax.Var, size: int) -> list[tuple[relax.Var, relax.Var]]:
    """The pixels before and after a place along an axis; those outside have no share."""
    dtype = node.dtype()
    before = node.emit(relax.op.floor(place))
    after_share = node.emit(relax.op.subtract(place, before))
    one, last = node.scalar(1, dtype), size - 1
    shares = (node.emit(relax.op.subtract(one, after_share)), after_share)
    found = []
    for step, share in enumerate(shares):
        pixel = before if step == 0 else node.emit(relax.op.add(before, one))
        clipped = node.emit(relax.op.clip(pixel, 0, last))
        inside = node.emit(relax.op.equal(clipped, pixel))
        kept = node.emit(relax.op.where(inside, share, node.scalar(0, dtype)))
        found.append((node.emit(cast(node, clipped, "int32")), kept))
    return found
