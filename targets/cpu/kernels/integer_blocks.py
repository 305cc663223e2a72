"""Relax calls of integer operators' templates, on feature maps in blocked layout.

Processors without byte products compute them in float32:

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import FIXED
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.integer_kernels import Rounder, averages, in_float32
from tvm_stretch.network.integers import Integer, Rounding, rounding_of
from tvm_stretch.targets.cpu.kernels.conv import gathers_pixels
from tvm_stretch.targets.cpu.kernels.integer_sums import in_integers
from tvm_stretch.targets.kernels.blocks import block_array, convolution, subsample
from tvm_stretch.targets.kernels.dots import DOTS
from tvm_stretch.targets.kernels.fixed_point import FixedPoint, mantissas, rounded
from tvm_stretch.targets.kernels.layers import ConvShape, IntegerConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose, kernel_call

LEAST_WIDE = 32
"""Fewest output channels of a group for which pixels are made int16 before."""

LARGEST_WINDOW = 128
"""Most taps of a depthwise kernel, because all of them are unrolled."""


def integer_convolution(
    bb: relax.BlockBuilder,  # receives the kernels
    machine: VectorMachine,  # runs the kernels
    integer: Integer,  # the operator
    shape: ConvShape,  # of the convolution
    # in blocked layout; blocks may be smaller than the machine's if there are few channels
    data: Expr,
    constants: Sequence[np.ndarray],  # weights as OIHW, bias and, unless sums are requested, factor
) -> relax.Var:
    """A convolution, or a dense layer as one of pixels."""
    weight, bias, *factor = constants
    if gathers_pixels(shape, machine):
        data = subsample(bb, shape.stride, data)
        shape = shape.gathered()
    if is_widened(shape, machine):
        data = bb.emit(relax.op.astype(data, "int16"))
    dtype, block = str(data.ty.dtype), int(data.ty.shape.values[-1])
    layer = taken(IntegerConvShape, shape, dtype=dtype)
    config = choose(layer, machine, block)
    has_zero = integer.zeros[0] + config.way.shift(dtype) != 0
    outside = any(shape.padding) and (has_zero or config.reads_padding)
    if outside and not config.pads:
        data = bb.emit(_padded(bb, data, shape.padding, integer.zeros[0]))
        config = choose(layer.padded(), machine, block)
    zero = integer.zeros[0] + config.way.shift(dtype)
    if outside and config.pads:
        config = replace(config, outside=zero)
    # the contribution of the zero point to every sum
    bias = bias - zero * weight.astype("int32").sum((1, 2, 3), dtype="int32")
    scale = _Scale.choose(machine, integer.rounding, factor)
    per_channel = [by_channel(v, machine.lanes) for v in (bias, *scale.factors)]
    packing = "pack_integer_window" if shape.is_depthwise else "pack_integer_weight"
    packed = bb.emit(kernel_call(bb, packing, config, config.pack, relax.const(weight)))

    def compute(x: te.Tensor, w: te.Tensor, *per_channel: te.Tensor) -> te.Tensor:
        return scale.rounded(config.meaning(x, w), *per_channel)

    what = (config, scale.rounding, scale.bits)
    return bb.emit(kernel_call(bb, config.kernel_name, what, compute, data, packed, *per_channel))


def is_widened(shape: ConvShape, machine: VectorMachine) -> bool:
    """Whether pixels are made int16 once, because each of many output channels would do it."""
    return bool(DOTS[machine.dot].wide) and shape.out_channels // shape.groups >= LEAST_WIDE


def conv_shape(integer: Integer, data: Sequence[int], weight: Sequence[int]) -> ConvShape:
    """The convolution of NCHW ``data`` with OIHW ``weight``."""
    batch, channels, height, width = (int(d) for d in data)
    return ConvShape(
        batch,
        channels,
        (height, width),
        int(weight[0]),
        (int(weight[2]), int(weight[3])),
        integer.strides,
        integer.padding,
        integer.dilation,
        integer.groups,
    )


def by_channel(values: np.ndarray, lanes: int) -> Expr:
    """One number per channel, in blocks of channels."""
    return relax.const(block_array(values.reshape(1, -1, 1, 1), lanes))


@dataclass(frozen=True, eq=False)
class _Scale:
    """The rounding of a layer's sums."""

    rounding: Rounding | None  # to 8-bit integers; None if sums are requested
    factors: Sequence[np.ndarray]  # of each channel: float32 or mantissas; empty for sums
    bits: int = 0  # of mantissas, see `fixed_point.py`; 0 for float32
    rounder: Rounder = in_float32  # of products with float32

    @staticmethod
    def choose(
        machine: VectorMachine, rounding: Rounding | None, factors: Sequence[np.ndarray]
    ) -> _Scale:
        """The scale in fixed point if the machine rounds in integers."""
        if machine.kind != "dsp" or not factors:
            return _Scale(rounding, factors)
        mantissa = mantissas(factors[0])
        if mantissa is None:
            return _Scale(rounding, factors, rounder=in_integers)
        return _Scale(rounding, [mantissa[0]], mantissa[1])

    def rounded(self, sums: te.Tensor, bias: te.Tensor, *factor: te.Tensor) -> te.Tensor:
        """Round sums, whose bias and factor are in blocks of channels too."""

        def element(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            value = sums[n, b, y, x, lane] + bias[0, b, 0, 0, lane]
            if self.rounding is None:
                return value
            scale = factor[0](0, b, 0, 0, lane)
            if self.bits:
                return rounded(value, scale, self.bits, self.rounding)
            return self.rounder(self.rounding, [(value, scale)], None)

        marks = {}
        if self.bits and self.rounding is not None:
            marks[FIXED] = to_text(FixedPoint(self.bits, self.rounding))
        return te.compute(sums.shape, element, name="rounded", attrs=marks)


def _padded(
    bb: relax.BlockBuilder, data: Expr, padding: tuple[int, int, int, int], zero: int
) -> relax.Call:
    """The image padded with the zero point."""
    top, left, bottom, right = padding

    def pad(x: te.Tensor) -> te.Tensor:
        n, b, h, w, c = (int(d) for d in x.shape)

        def element(i: Expr, k: Expr, y: Expr, z: Expr, lane: Expr) -> Expr:
            inside = tirx.all(y >= top, y < h + top, z >= left, z < w + left)
            return tirx.if_then_else(
                inside, x[i, k, y - top, z - left, lane], tirx.const(zero, x.dtype)
            )

        shape = (n, b, h + top + bottom, w + left + right, c)
        return te.compute(shape, element, name="pad_zero_point")

    compute: Callable[..., te.Tensor] = pad
    return kernel_call(bb, "pad_zero_point", (padding, zero), compute, data)


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
            return rounding.round(value.astype("float32") * factor[0][0, b, 0, 0, lane])

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
