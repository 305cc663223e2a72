"""Relax calls of integer operators' templates, on feature maps in blocked layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import FIXED
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.integer_kernels import Rounder, in_float32
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.targets.kernels.blocks import block_array, subsample
from tvm_stretch.targets.kernels.dots import DOTS
from tvm_stretch.targets.kernels.fixed_point import FixedPoint, mantissas, rounded
from tvm_stretch.targets.kernels.layers import ConvShape, IntegerConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose, kernel_call

from .conv import gathers_pixels
from .integer_sums import in_integers

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
    scale = _Scale.of(machine, integer.rounding, factor)
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
    def of(
        machine: VectorMachine, rounding: Rounding | None, factors: Sequence[np.ndarray]
    ) -> _Scale:
        """The scale in fixed point if the machine rounds in integers."""
        if machine.kind != "dsp" or not factors:
            return _Scale(rounding, factors)
        found = mantissas(factors[0])
        if found is None:
            return _Scale(rounding, factors, rounder=in_integers)
        return _Scale(rounding, [found[0]], found[1])

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
