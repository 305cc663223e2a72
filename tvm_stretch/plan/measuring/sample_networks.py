"""Samples as Relax: one network that runs many of them.

chain([Sample("conv", ..), Sample("max", ..)])    ->    x -> conv2d -> mean -> max_pool2d -> ..
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import network_of
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
    x = relax.Var("x", relax.TensorType((1, 1, 1, 1), samples[0].dtype))
    is_float = samples[0].dtype == "float32"

    def body(bb: relax.BlockBuilder) -> relax.Expr:
        if busy and is_float:
            return _Floats(bb).busy(x, samples, len(samples) if apart else _GROUP)
        chosen: _Floats | _Integers = _Floats(bb) if is_float else _Integers(bb)
        join = relax.op.add if is_float else relax.op.maximum
        inputs = [chosen.data(item, x) for item in samples] if apart else []
        value: relax.Expr = x
        for index, item in enumerate(samples):
            data = inputs[index] if apart else chosen.data(item, value)
            number = chosen.result(item, data, value)
            value = bb.emit(join(value, number)) if apart else number
        return value

    return network_of([x], body)


class _Emitter(ABC):
    """Emits samples, with random weights."""

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self.bb, self.emit, self.dice = bb, bb.emit, np.random.default_rng(0)

    def data(self, sample: Sample, number: relax.Expr) -> relax.Expr:
        """The input of a sample's anchor, broadcast from one number."""
        if sample.kind == "dense":
            data = self.emit(relax.op.reshape(number, (1, 1)))
            return self.emit(relax.op.broadcast_to(data, (sample.in_size[0], sample.in_channels)))
        data = self.emit(relax.op.broadcast_to(number, (1, sample.in_channels, *sample.in_size)))
        # poolings keep their input's layout, so an operator before them must write blocks
        return data if sample.kind in ("conv", "depthwise", "pair") else self.image(sample, data)

    @abstractmethod
    def image(self, sample: Sample, data: relax.Expr) -> relax.Expr:
        """An image in blocked layout."""


class _Floats(_Emitter):
    def busy(self, value: relax.Expr, samples: Sequence[Sample], size: int) -> relax.Expr:
        """Groups of samples: inputs of all, then all samples, then a number of each."""
        for start in range(0, len(samples), size):
            group = samples[start : start + size]
            inputs = [(self.data(s, value), self.added(s, value)) for s in group]
            pairs = zip(group, inputs, strict=True)
            outs = [self.layers(s, data, other) for s, (data, other) in pairs]
            for sample, out in zip(group, outs, strict=True):
                value = self.emit(relax.op.add(value, self.number(sample, out)))
        return value

    def image(self, sample: Sample, data: relax.Expr) -> relax.Expr:
        is_wide = sample.in_channels > 8
        few = self.emit(relax.op.strided_slice(data, [1], [0], [8])) if is_wide else data
        weight = self.constant((sample.in_channels, min(8, sample.in_channels), 1, 1))
        return self.emit(relax.op.nn.conv2d(few, weight))

    def result(self, sample: Sample, data: relax.Expr, number: relax.Expr) -> relax.Expr:
        """Emit the sample, and return one number of its result; epilogues may add ``number``."""
        return self.number(sample, self.layers(sample, data, self.added(sample, number)))

    def layers(self, sample: Sample, data: relax.Expr, other: relax.Expr | None) -> relax.Expr:
        """Emit the sample, whose epilogue adds ``other`` if there is one."""
        if sample.kind == "pair":
            first, sample = sample.of_pair
            data = self.activation(first, self.biased(first, self.anchor(first, data)), None)
        out = self.anchor(sample, data)
        if sample.epilogue != "none":
            out = self.activation(sample, self.biased(sample, out), other)
        return self.emit(out)

    def added(self, sample: Sample, number: relax.Expr) -> relax.Expr | None:
        """What the epilogue adds; a 1x1 pooling keeps its broadcast out of the kernel."""
        if not sample.epilogue.startswith("add") or sample.kind == "dense":
            return None
        other = relax.op.broadcast_to(number, (1, sample.out_channels, *sample.out_size))
        return self.emit(relax.op.nn.max_pool2d(self.emit(other), (1, 1)))

    def number(self, sample: Sample, out: relax.Expr) -> relax.Expr:
        """One number of a result, so that the sample is no dead code."""
        if sample.kind == "dense":
            return self.emit(relax.op.reshape(self.emit(relax.op.mean(out)), (1, 1, 1, 1)))
        mean = self.emit(relax.op.mean(out, [2, 3], keepdims=True))
        return self.emit(relax.op.mean(mean, [1], keepdims=True))

    def anchor(self, sample: Sample, data: relax.Expr) -> relax.Expr:
        """The operator before the epilogue; of elementwise samples, one that ends a kernel."""
        window = {key: getattr(sample, key) for key in ("padding", "dilation")}
        strides, kind = sample.stride, sample.kind
        if kind == "dense":
            weight = self.constant((sample.in_channels, sample.out_channels))
            return self.emit(relax.op.matmul(data, weight))
        if kind in ("conv", "depthwise"):
            groups = sample.groups
            weight = self.constant(
                (sample.out_channels, sample.in_channels // groups, *sample.kernel)
            )
            conv = relax.op.nn.conv2d(data, weight, strides=strides, groups=groups, **window)
            return self.emit(conv)
        if kind in ("max", "avg"):
            pool = getattr(relax.op.nn, f"{kind}_pool2d")
            return self.emit(pool(data, sample.kernel, strides=strides, **window))
        return self.emit(relax.op.nn.max_pool2d(data, (1, 1)))

    def biased(self, sample: Sample, out: relax.Expr) -> relax.Expr:
        """The sum with a number for each channel."""
        shape = (sample.out_channels,) if sample.kind == "dense" else (1, sample.out_channels, 1, 1)
        return self.emit(relax.op.add(out, self.constant(shape)))

    def activation(self, sample: Sample, out: relax.Expr, other: relax.Expr | None) -> relax.Expr:
        """The function of the epilogue."""
        emit, kind = self.emit, sample.epilogue
        if other is not None:
            out = emit(relax.op.add(out, other))
        if kind.endswith("relu"):
            return emit(relax.op.nn.relu(out))
        if kind == "relu6":
            return emit(relax.op.clip(out, 0.0, 6.0))
        if kind == "leaky":
            return emit(relax.op.nn.leakyrelu(out, 0.1))
        if kind == "sigmoid":
            return emit(relax.op.sigmoid(out))
        return emit(relax.op.multiply(out, emit(relax.op.sigmoid(out)))) if kind == "swish" else out

    def constant(self, shape: Sequence[int]) -> relax.Expr:
        """Random numbers."""
        return relax.const(0.05 * self.dice.standard_normal(shape, dtype=np.float32))


_ZERO = 0  # as after a ReLU
_LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_STEPS = 40.0
"""The usual distance of a result from the zero point."""


class _Integers(_Emitter):
    def image(self, sample: Sample, data: relax.Expr) -> relax.Expr:
        """The result of a 1x1 depthwise convolution."""
        outs = sample.in_channels
        return self.emit(self.convolution(sample, data, (outs, 1, 1, 1), groups=outs))

    def result(self, sample: Sample, data: relax.Expr, _: relax.Expr) -> relax.Expr:
        """Emit the sample, and return one number of its result."""
        bb, emit, rounding = self.bb, self.emit, _rounding(sample)
        window: dict[str, Any] = {key: getattr(sample, key) for key in ("padding", "dilation")}
        if sample.kind == "dense":
            shape = (sample.in_channels, sample.out_channels)
            matmul = Integer("matmul", rounding, (_ZERO,))
            constants = self.constants(shape, sample.in_channels)
            out = emit(integer_call(bb, matmul, data, *constants))
            return emit(relax.op.reshape(self.first(out), (1, 1, 1, 1)))
        if sample.kind in ("conv", "depthwise"):
            wide = sample.out_channels, sample.in_channels // sample.groups, *sample.kernel
            window |= {"groups": sample.groups, "strides": sample.stride}
            out = emit(self.convolution(sample, data, wide, **window))
        elif sample.kind in ("max", "avg"):  # averages have no integer kernel here
            pool = relax.op.nn.max_pool2d
            out = emit(pool(data, sample.kernel, strides=sample.stride, **window))
        else:
            add = Integer("add", rounding, (_ZERO,) * 2, (0.43, 0.61, 0.04 * _ZERO))
            out = emit(integer_call(bb, add, data, data))
        height, width = (int(d) for d in out.ty.shape.values[2:])
        mean = Integer("mean", rounding, (_ZERO,), (1.1 / (height * width),))
        return self.first(emit(integer_call(bb, mean, out)))

    def convolution(
        self, sample: Sample, data: relax.Expr, shape: tuple[int, ...], **window: Any
    ) -> relax.Call:
        """A convolution with weights of a shape."""
        integer = Integer("conv2d", _rounding(sample), (_ZERO,), **window)
        constants = self.constants(shape, int(np.prod(shape[1:])))
        return integer_call(self.bb, integer, data, *constants)

    def constants(self, shape: tuple[int, ...], taps: int) -> list[relax.Expr]:
        """Weights, bias and factors, such that results use all 8 bits."""
        outs = shape[-1] if len(shape) == 2 else shape[0]
        weight = self.dice.integers(-127, 128, shape).astype("int8")
        bias = self.dice.integers(-999, 999, outs).astype("int32")
        factor = self.dice.uniform(0.5, 1.5, outs) * _STEPS / (74 * 74 * np.sqrt(taps))
        return [*map(relax.const, (weight, bias, factor.astype("float32")))]

    def first(self, value: relax.Expr) -> relax.Expr:
        """The first element of a tensor."""
        rank = len(value.ty.shape.values)
        return self.emit(relax.op.strided_slice(value, [*range(rank)], [0] * rank, [1] * rank))


def _rounding(sample: Sample) -> Rounding:
    return Rounding(sample.dtype, _ZERO, *_LIMITS[sample.dtype])
