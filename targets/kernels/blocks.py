"""Conversions into and out of the blocked layout, and calls of templates on blocked values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr, GenericConst

from tvm_stretch.targets.cpu.kernels.concat import merged
from tvm_stretch.targets.cpu.kernels.conv import gathers_pixels
from tvm_stretch.targets.kernels.layers import ConcatShape

from .layers import ConvShape
from .machine import VectorMachine
from .template import choose, kernel_call

# --- layouts --------------------------------------------------------------------------------------


def image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The NCHW shape of a feature map; a matrix (M, C) counts as M pixels: (1, C, M, 1)."""
    if len(shape) != 2:
        return tuple(shape)
    rows, channels = shape
    return (1, channels, rows, 1)


def blocked_shape(shape: Sequence[int], lanes: int) -> tuple[int, ...]:
    """NCHW[c] of an image or matrix."""
    n, c, h, w = image_shape(shape)
    return (n, -(-c // lanes), h, w, lanes)


def block_array(array: np.ndarray, lanes: int) -> np.ndarray:
    """A constant image in the blocked layout, padded with zeros."""
    n, c, h, w = array.shape
    padded = np.pad(array, ((0, 0), (0, -c % lanes), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def _same_bytes(shape: Sequence[int], lanes: int) -> bool:
    """Whether plain and blocked layout hold the same bytes in the same order."""
    image = image_shape(shape)
    return image[1] % lanes == 0 and image[2:] == (1, 1)


def block(bb: relax.BlockBuilder, data: Expr, shape: Sequence[int], lanes: int) -> relax.Var:
    """Plain -> blocked."""
    out = blocked_shape(shape, lanes)
    if _same_bytes(shape, lanes):
        return bb.emit(relax.op.reshape(data, out))
    channels = image_shape(shape)[1]

    def convert(x: te.Tensor) -> te.Tensor:
        def element(n: Expr, b: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
            c = b * lanes + lane
            place = (h, c) if len(shape) == 2 else (n, c, h, w)
            if channels % lanes == 0:
                return x[place]
            return tirx.if_then_else(c < channels, x[place], tirx.const(0, x.dtype))

        return te.compute(out, element, name="block_channels")

    return bb.emit(kernel_call(bb, "block_channels", lanes, convert, data))


def unblock(bb: relax.BlockBuilder, data: Expr, shape: Sequence[int]) -> relax.Var:
    """Blocked -> plain."""
    lanes = int(data.ty.shape.values[-1])
    if _same_bytes(shape, lanes):
        return bb.emit(relax.op.reshape(data, tuple(shape)))

    def convert(x: te.Tensor) -> te.Tensor:
        def element(*i: Expr) -> Expr:
            n, c, h, w = (0, i[1], i[0], 0) if len(shape) == 2 else i
            return x[n, c // lanes, h, w, c % lanes]

        return te.compute(tuple(shape), element, name="unblock_channels")

    return bb.emit(kernel_call(bb, "unblock_channels", tuple(shape), convert, data))


def interleave(
    bb: relax.BlockBuilder, data: Expr, shape: Sequence[int], between: tuple[int, int]
) -> relax.Var:
    """Interleave the pixels of blocked images that come one after the other: NCHW ``shape``.

    The result is blocked if each image's channels fill blocks, otherwise plain.
    """
    (rows, columns), lanes = between, int(data.ty.shape.values[-1])
    blocks, rest = divmod(int(shape[1]), lanes)

    def convert(x: te.Tensor) -> te.Tensor:
        def plain(n: Expr, o: Expr, h: Expr, w: Expr) -> Expr:
            c = (h % rows * columns + w % columns) * int(shape[1]) + o
            place = (n, c // lanes, h // rows, w // columns, c % lanes)
            return x[place]

        def blocked(n: Expr, b: Expr, h: Expr, w: Expr, lane: Expr) -> Expr:
            image = h % rows * columns + w % columns
            place = (n, image * blocks + b, h // rows, w // columns, lane)
            return x[place]

        out = tuple(shape) if rest else blocked_shape(shape, lanes)
        return te.compute(out, plain if rest else blocked, name="interleave")

    return bb.emit(kernel_call(bb, "interleave", (tuple(shape), between), convert, data))


# --- operators ------------------------------------------------------------------------------------


def concat(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    parts: Sequence[Expr],
    widths: Sequence[int],
) -> relax.Var:
    """Concatenate channels; a view if all parts but the last fill their blocks.

    Without a template, the plain loops are fused with their readers.
    """
    lanes = machine.lanes
    if all(width % lanes == 0 for width in widths[:-1]):
        return bb.emit(relax.op.concat(list(parts), axis=1))
    batch, _, height, width, _ = (int(d) for d in parts[0].ty.shape.values)
    template = choose(ConcatShape(tuple(widths), (batch, height, width)), machine)
    if template is not None:
        joined: relax.Var = template.call(bb, *parts)
        return joined

    def merge(*tensors: te.Tensor) -> te.Tensor:
        return merged(widths, lanes, tensors, {})

    return bb.emit(kernel_call(bb, "concat_channels", tuple(widths), merge, *parts))


def convolution(
    bb: relax.BlockBuilder,
    machine: VectorMachine,
    shape: ConvShape,
    data: Expr,
    weight: GenericConst,
    data_block: int,
    sums: str = "float32",
) -> relax.Var:
    """A convolution with the best template, in the type of its sums."""
    if gathers_pixels(shape, machine):
        data = subsample(bb, shape.stride, data)
    template = choose(shape, machine.summing(sums), data_block)
    result: relax.Var = template.call(bb, data, weight, sums=sums)
    return result


def subsample(bb: relax.BlockBuilder, stride: tuple[int, int], data: Expr) -> relax.Var:
    """The pixels that a strided 1x1 window reads, copied next to each other.

    Otherwise a convolution's channel blocks lie at multiples of the cache's set size: measured
    0.5x.
    """
    rows, columns = stride

    def pick(x: te.Tensor) -> te.Tensor:
        n, c, h, w, *lane = x.shape
        size = (n, c, -(-int(h) // rows), -(-int(w) // columns), *lane)

        def pixel(i: Expr, b: Expr, y: Expr, z: Expr, *v: Expr) -> Expr:
            place = (i, b, y * rows, z * columns, *v)
            return x[place]

        return te.compute(size, pixel, name="subsample")

    return bb.emit(kernel_call(bb, "subsample", stride, pick, data))
