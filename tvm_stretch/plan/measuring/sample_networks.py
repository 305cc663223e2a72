"""Samples as Relax: one network that runs many of them.

chain([Sample("conv", ..), Sample("max", ..)])    ->    x -> conv2d -> mean -> max_pool2d -> ..
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.measuring.samples import Sample

_GROUP = 6
"""Samples that follow one another if their inputs are to be near."""


def chain(samples: Sequence[Sample], apart: bool = False, busy: bool = False) -> tvm.IRModule:
    """One network that runs all samples and reuses memory as real networks do.

    Args:
        samples: the samples, all of one type.
        apart: whether the inputs of all samples are written first, so that each sample finds its
            data as far away as later layers of a network do; else each sample reads data that was
            just written. Every sample's result becomes one number, so no sample is dead code.
        busy: whether samples follow one another, and no small kernel is between them. On an H100,
            a kernel takes 1.1 us longer after a kernel that is shorter than its launch.
    """
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 1, 1, 1), samples[0].dtype))
    dice = np.random.default_rng(0)
    is_float = samples[0].dtype == "float32"
    run = _result if is_float else integer_result
    join = relax.op.add if is_float else relax.op.maximum
    if busy and is_float:
        return _busy(bb, x, samples, len(samples) if apart else _GROUP, dice)
    with bb.function("main", [x]):
        with bb.dataflow():
            made = [_data(bb, item, x, dice) for item in samples] if apart else []
            value: relax.Expr = x
            for index, item in enumerate(samples):
                data = made[index] if apart else _data(bb, item, value, dice)
                number = run(bb, item, data, value, dice)
                value = bb.emit(join(value, number)) if apart else number
            result = bb.emit_output(value)
        bb.emit_func_output(result)
    return bb.get()


def _busy(
    bb: relax.BlockBuilder,
    x: relax.Var,
    samples: Sequence[Sample],
    size: int,
    dice: np.random.Generator,
) -> tvm.IRModule:
    """Groups of samples: inputs of all, then all samples, then a number of each."""
    with bb.function("main", [x]):
        with bb.dataflow():
            value: relax.Expr = x
            for start in range(0, len(samples), size):
                group = samples[start : start + size]
                made = [(_data(bb, s, value, dice), _added(bb, s, value)) for s in group]
                pairs = zip(group, made, strict=True)
                outs = [_layers(bb, s, data, other, dice) for s, (data, other) in pairs]
                for sample, out in zip(group, outs, strict=True):
                    value = bb.emit(relax.op.add(value, _number(bb, sample, out)))
            result = bb.emit_output(value)
        bb.emit_func_output(result)
    return bb.get()


def _data(
    bb: relax.BlockBuilder, sample: Sample, number: relax.Expr, dice: np.random.Generator
) -> relax.Expr:
    """The input of a sample's anchor, broadcast from one number."""
    if sample.kind == "dense":
        data = bb.emit(relax.op.reshape(number, (1, 1)))
        return bb.emit(relax.op.broadcast_to(data, (sample.in_size[0], sample.in_channels)))
    data = bb.emit(relax.op.broadcast_to(number, (1, sample.in_channels, *sample.in_size)))
    if sample.kind in ("conv", "depthwise", "pair"):
        return data
    # poolings keep their input's layout, so an operator before them must write blocks
    if sample.dtype != "float32":
        return integer_image(bb, sample, data, dice)
    few = bb.emit(relax.op.strided_slice(data, [1], [0], [8])) if sample.in_channels > 8 else data
    weight = _constant(dice, (sample.in_channels, min(8, sample.in_channels), 1, 1))
    return bb.emit(relax.op.nn.conv2d(few, weight))


def _result(
    bb: relax.BlockBuilder,
    sample: Sample,
    data: relax.Expr,
    number: relax.Expr,
    dice: np.random.Generator,
) -> relax.Expr:
    """Emit the sample, and return one number of its result; an epilogue may add ``number``."""
    return _number(bb, sample, _layers(bb, sample, data, _added(bb, sample, number), dice))


def _layers(
    bb: relax.BlockBuilder,
    sample: Sample,
    data: relax.Expr,
    other: relax.Expr | None,
    dice: np.random.Generator,
) -> relax.Expr:
    """Emit the sample, whose epilogue adds ``other`` if there is one."""
    if sample.kind == "pair":
        first, sample = sample.of_pair
        data = _activation(
            bb, first, _biased(bb, first, _anchor(bb, first, data, dice), dice), None
        )
    out = _anchor(bb, sample, data, dice)
    if sample.epilogue != "none":
        out = _activation(bb, sample, _biased(bb, sample, out, dice), other)
    return bb.emit(out)


def _added(bb: relax.BlockBuilder, sample: Sample, number: relax.Expr) -> relax.Expr | None:
    """What the epilogue adds; a 1x1 pooling keeps its broadcast out of the kernel."""
    if not sample.epilogue.startswith("add") or sample.kind == "dense":
        return None
    other = relax.op.broadcast_to(number, (1, sample.out_channels, *sample.out_size))
    return bb.emit(relax.op.nn.max_pool2d(bb.emit(other), (1, 1)))


def _number(bb: relax.BlockBuilder, sample: Sample, out: relax.Expr) -> relax.Expr:
    """One number of a result, so that the sample is no dead code."""
    if sample.kind == "dense":
        return bb.emit(relax.op.reshape(bb.emit(relax.op.mean(out)), (1, 1, 1, 1)))
    mean = bb.emit(relax.op.mean(out, [2, 3], keepdims=True))
    return bb.emit(relax.op.mean(mean, [1], keepdims=True))


def _anchor(
    bb: relax.BlockBuilder, sample: Sample, data: relax.Expr, dice: np.random.Generator
) -> relax.Expr:
    settings: dict[str, Any] = {
        "strides": sample.stride,
        "padding": sample.padding,
        "dilation": sample.dilation,
    }
    if sample.kind == "dense":
        weight = _constant(dice, (sample.in_channels, sample.out_channels))
        return bb.emit(relax.op.matmul(data, weight))
    if sample.kind in ("conv", "depthwise"):
        shape = (sample.out_channels, sample.in_channels // sample.groups, *sample.kernel)
        weight = _constant(dice, shape)
        return bb.emit(relax.op.nn.conv2d(data, weight, groups=sample.groups, **settings))
    if sample.kind == "max":
        return bb.emit(relax.op.nn.max_pool2d(data, sample.kernel, **settings))
    if sample.kind == "avg":
        return bb.emit(relax.op.nn.avg_pool2d(data, sample.kernel, **settings))
    return bb.emit(relax.op.nn.max_pool2d(data, (1, 1)))  # elementwise operators follow


def _biased(
    bb: relax.BlockBuilder, sample: Sample, out: relax.Expr, dice: np.random.Generator
) -> relax.Expr:
    shape = (sample.out_channels,) if sample.kind == "dense" else (1, sample.out_channels, 1, 1)
    return bb.emit(relax.op.add(out, _constant(dice, shape)))


def _activation(
    bb: relax.BlockBuilder, sample: Sample, out: relax.Expr, other: relax.Expr | None
) -> relax.Expr:
    kind = sample.epilogue
    if other is not None:
        out = bb.emit(relax.op.add(out, other))
    if kind.endswith("relu"):
        return bb.emit(relax.op.nn.relu(out))
    if kind == "relu6":
        return bb.emit(relax.op.clip(out, 0.0, 6.0))
    if kind == "leaky":
        return bb.emit(relax.op.nn.leakyrelu(out, 0.1))
    if kind == "sigmoid":
        return bb.emit(relax.op.sigmoid(out))
    if kind == "swish":
        return bb.emit(relax.op.multiply(out, bb.emit(relax.op.sigmoid(out))))
    return out


def _constant(dice: np.random.Generator, shape: Sequence[int]) -> relax.Expr:
    return relax.const(0.05 * dice.standard_normal(shape, dtype=np.float32))


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
