"""Compute integer operators in float32: averages, and convolutions without byte products.

    y = integer_conv2d(x, w, bias, factor)
        ->  a = float(x - zero)                    # fused into the kernel that computes x
            s = conv2d(a, float(w))                # the templates of float32
            y = round((s + bias) * factor) + zero'

NN-Stretch's GPU computes quantised networks like this: the weights stay, the arithmetic changes.
Whole numbers up to 2**24 are exact in float32, in whatever order they are added. Weights tell which
sums may be larger; these are computed in parts of some input channels each, which are added in
int32. So the results equal those of integers. Winograd is not used, because its transforms have
fractions.

    y = integer_average(x, counts)
        ->  a = float(x - zero) * scale            # fused into the kernel that computes x
            s = conv2d(a, 1.0)                     # of each channel: sums row by row
            y = round(s / counts / scale' + zero')

Every rounding is the one of ONNX Runtime, in its order: of means of four numbers, one in four is a
half, and the last digit of the sum decides. (A GPU whose divisions are wrong in that digit may
round such a mean the other way.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.network.integer_kernels import averages
from tvm_stretch.network.integers import Integer, rounding_of
from tvm_stretch.targets.kernels.blocks import convolution
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import kernel_call

from .integer_blocks import by_channel

_EXACT = 2**24
"""All whole numbers up to this one are exact in float32."""


def float_convolution(
    bb: relax.BlockBuilder,  # receives the kernels
    machine: VectorMachine,  # runs the kernels
    integer: Integer,  # the operator
    shape: ConvShape,  # of the convolution
    data: Expr,  # integers in blocked layout, or plain if ``data_block`` is 1
    constants: Sequence[np.ndarray],  # weights as OIHW, bias and, unless sums are requested, factor
    data_block: int,  # channels of a block of the data
) -> relax.Var | None:
    """A convolution, or dense layer as one of pixels; None if its sums are not exact in float32."""
    weight, *per_channel = constants
    zero, rounding = integer.zeros[0], integer.rounding
    starts = exact_parts(weight, zero, str(data.ty.dtype), data_block)
    if starts is None or (len(starts) > 1 and shape.groups > 1):
        return None

    def finished(*operands: te.Tensor) -> te.Tensor:
        sums, (bias, *factor) = operands[: len(starts)], operands[len(starts) :]

        def element(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            value = bias[0, b, 0, 0, lane]
            for part in sums:
                value = value + part[n, b, y, x, lane].astype("int32")
            if rounding is None:
                return value
            return rounding.of(value.astype("float32") * factor[0][0, b, 0, 0, lane])

        return te.compute(sums[0].shape, element, name="finished")

    sums = []
    for first, end in pairwise([*starts, int(data.ty.shape.values[1])]):
        floats = bb.emit(_as_float(bb, data, zero, (first, end)))
        taken = np.ascontiguousarray(weight[:, first * data_block : end * data_block])
        own = replace(shape, in_channels=taken.shape[1] * shape.groups, exact=True)
        weights = relax.const(taken.astype("float32"))
        sums.append(convolution(bb, machine, own, floats, weights, data_block))
    blocks = [by_channel(v, machine.lanes) for v in per_channel]
    what = (rounding, len(starts))
    return bb.emit(kernel_call(bb, "finished", what, finished, *sums, *blocks))


def float_average(
    bb: relax.BlockBuilder, machine: VectorMachine, integer: Integer, data: Expr, counts: Expr
) -> relax.Var:
    """Means of windows of integers in blocked layout; ``counts`` as in `integers._average`."""
    batch, blocks, height, width, lanes = (int(d) for d in data.ty.shape.values)
    channels = blocks * lanes
    shape = ConvShape(
        batch,
        channels,
        (height, width),
        channels,
        integer.kernel,
        integer.strides,
        integer.padding,
        integer.dilation,
        groups=channels,
    )
    of_data, of_result = integer.factors

    def finished(sums: te.Tensor, divided: te.Tensor) -> te.Tensor:
        return averages(sums, divided, of_result, rounding_of(integer))

    floats = bb.emit(_as_float(bb, data, integer.zeros[0], (0, blocks), of_data))
    ones = relax.const(np.ones((channels, 1, *integer.kernel), "float32"))
    sums = convolution(bb, machine, shape, floats, ones, lanes)
    what = (integer.rounding, integer.factors)
    return bb.emit(kernel_call(bb, "averaged", what, finished, sums, counts))


def exact_parts(weight: np.ndarray, zero: int, dtype: str, block: int) -> list[int] | None:
    """The first channel block of each part with exact sums; None if a single block is too large.

    Args:
        weight: OIHW; channels of all groups count together.
    """
    limits = np.iinfo(dtype)
    above, below = int(limits.max) - zero, zero - int(limits.min)
    wide = weight.astype("int64")
    more, less = (np.maximum(sign * wide, 0).sum((2, 3)) for sign in (1, -1))
    # bounds of partial sums in either direction, in any order; (2 * outputs, channels)
    reached = np.concatenate([more * above + less * below, more * below + less * above])
    padded = np.pad(reached, ((0, 0), (0, -reached.shape[1] % block)))
    each = padded.reshape(len(padded), -1, block).sum(2)
    starts, total = [0], np.zeros(len(each), "int64")
    for number, own in enumerate(each.T):
        if own.max() > _EXACT:
            return None
        total = total + own
        if total.max() > _EXACT:
            starts.append(number)
            total = own
    return starts


def _as_float(
    bb: relax.BlockBuilder,
    data: Expr,
    zero: int,
    blocks: tuple[int, int],
    scale: float | None = None,
) -> relax.Call:
    """Some blocks of the pixels without their zero point, times their scale if it is given."""
    first, end = blocks

    def as_float(x: te.Tensor) -> te.Tensor:
        offset = tirx.const(float(zero), "float32")

        def element(n: Expr, b: Expr, *i: Expr) -> Expr:
            value = x(n, b + first, *i).astype("float32") - offset
            return value if scale is None else value * tirx.const(scale, "float32")

        return te.compute((x.shape[0], end - first, *x.shape[2:]), element, name="as_float")

    return kernel_call(bb, "as_float", (zero, blocks, scale), as_float, data)
