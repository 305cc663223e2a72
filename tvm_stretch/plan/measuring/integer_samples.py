"""Samples of 8-bit integers as Relax, which `sample_networks.chain` runs for quantised networks."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.measuring.samples import Sample

_ZERO = 0  # as after a ReLU
_LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_STEPS = 40.0
"""The usual distance of a result from the zero point."""


def integer_image(
    bb: relax.BlockBuilder, sample: Sample, data: relax.Expr, dice: np.random.Generator
) -> relax.Expr:
    """An image in blocked layout, the result of a 1x1 depthwise convolution."""
    return bb.emit(_convolution(bb, sample, data, dice, 1, groups=sample.in_channels))


def integer_result(
    bb: relax.BlockBuilder,
    sample: Sample,
    data: relax.Expr,
    number: relax.Expr,
    dice: np.random.Generator,
) -> relax.Expr:
    """Emit the sample, and return one number of its result."""
    if sample.kind == "dense":
        shape = (sample.in_channels, sample.out_channels)
        matmul = Integer("matmul", _rounding(sample), (_ZERO,))
        constants = _constants(sample, dice, shape, sample.in_channels)
        out = bb.emit(integer_call(bb, matmul, data, *constants))
        return bb.emit(relax.op.reshape(_first(bb, out), (1, 1, 1, 1)))
    if sample.kind in ("conv", "depthwise"):
        out = bb.emit(_convolution(bb, sample, data, dice, None, groups=sample.groups))
    elif sample.kind in ("max", "avg"):  # averages have no integer kernel here
        settings = {"strides": sample.stride, "dilation": sample.dilation}
        padding = sample.padding
        out = bb.emit(relax.op.nn.max_pool2d(data, sample.kernel, padding=padding, **settings))
    else:
        factors = (0.43, 0.61, 0.04 * _ZERO)
        out = bb.emit(
            integer_call(bb, Integer("add", _rounding(sample), (_ZERO,) * 2, factors), data, data)
        )
    height, width = (int(d) for d in out.ty.shape.values[2:])
    mean = Integer("mean", _rounding(sample), (_ZERO,), (1.1 / (height * width),))
    return _first(bb, bb.emit(integer_call(bb, mean, out)))


def _convolution(
    bb: relax.BlockBuilder,
    sample: Sample,
    data: relax.Expr,
    dice: np.random.Generator,
    side: int | None,
    groups: int,
) -> relax.Call:
    """The sample's convolution, or with ``side`` a depthwise one with windows of that side."""
    own = side is None
    outs = sample.out_channels if own else sample.in_channels
    kernel = sample.kernel if side is None else (side, side)
    shape = (outs, sample.in_channels // groups, *kernel)
    integer = Integer(
        "conv2d",
        _rounding(sample),
        (_ZERO,),
        strides=sample.stride if own else (1, 1),
        padding=sample.padding if own else (0, 0, 0, 0),
        dilation=sample.dilation if own else (1, 1),
        groups=groups,
    )
    taps = int(np.prod(shape[1:]))
    return integer_call(bb, integer, data, *_constants(sample, dice, shape, taps))


def _constants(
    sample: Sample, dice: np.random.Generator, shape: tuple[int, ...], taps: int
) -> list[relax.Expr]:
    """Weights, bias and factors, such that results use all 8 bits."""
    outs = shape[-1] if len(shape) == 2 else shape[0]
    weight = dice.integers(-127, 128, shape).astype("int8")
    bias = dice.integers(-999, 999, outs).astype("int32")
    factor = dice.uniform(0.5, 1.5, outs) * _STEPS / (74 * 74 * np.sqrt(taps))
    return [*map(relax.const, (weight, bias, factor.astype("float32")))]


def _rounding(sample: Sample) -> Rounding:
    return Rounding(sample.dtype, _ZERO, *_LIMITS[sample.dtype])


def _first(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The first element of a tensor."""
    rank = len(value.ty.shape.values)
    return bb.emit(relax.op.strided_slice(value, [*range(rank)], [0] * rank, [1] * rank))
