"""Layer-level ONNX builder: ``conv_bn`` in, separate ``Conv`` and ``BatchNormalization`` nodes out.

``b.conv_bn(x, 64, 3, act="relu")`` becomes, as in an exported training graph:

    Conv(x, layer_0.weight)                                   no bias
    BatchNormalization(..., gamma, beta, mean, var)           inference statistics
    Relu(...)

Weights are random. With arbitrary BN statistics, activations would overflow or vanish within a few
dozen layers, so every :class:`Tensor` carries its value for a small random input, and each BN gets
the scale measured there. Activations then stay of order 1 at any depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tvm_stretch.base.errors import InputError

from . import probe
from .probe import Array

OPSET = 17
IR_VERSION = 8
BN_EPSILON = 1e-5

Pair = int | tuple[int, int]
#: ``"same"``: TensorFlow's rule, possibly one more at the end; ``None``: ``kernel // 2`` per side.
Pad = int | tuple[int, int] | str | None

# Chosen so that with seed 0 the top-1 class of every network leads clearly.
_STREAM = 2
# Pixels along each side of the sample that tensors carry.
_PROBE_SIZE = 96
# The share of a filter's mean weight that is subtracted. Activations are mostly positive, so
# without it all inputs would give nearly the same logits; with the whole mean subtracted, a
# constant error in a whole tensor would go unseen.
_CENTRED = 0.75
# He's 2 for a ReLU, raised by the power that centring removes.
_GAIN = 2.85


@dataclass(frozen=True)
class Tensor:
    """A value in the graph, and its value for the sample."""

    name: str
    shape: tuple[int, ...]
    probe: Array

    @property
    def channels(self) -> int:
        """Size of axis 1."""
        return self.shape[1]


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _slide(
    extents: Sequence[int], kernel: Pair, stride: Pair, pad: Pad, ceil: bool = False
) -> tuple[list[int], list[int]]:
    """Output sizes and ONNX pads of a window that slides over these extents."""
    sizes, begins, ends = [], [], []
    for axis, (k, s) in enumerate(zip(_pair(kernel), _pair(stride), strict=True)):
        extent = extents[axis]
        if pad == "same":
            total = max((-(-extent // s) - 1) * s + k - extent, 0)
            begin, end = total // 2, total - total // 2
        elif pad is None:
            begin = end = k // 2
        else:
            begin = end = _pair(pad)[axis]  # type: ignore[arg-type]
        room = extent + begin + end - k
        if room < 0:
            raise InputError(
                f"expected at least {k} rows and columns at every {k}x{k} window for size, got "
                f"{extent}; give a larger size"
            )
        size = (-(-room // s) if ceil else room // s) + 1
        if ceil and (size - 1) * s >= extent + begin:
            size -= 1
        sizes.append(size)
        begins.append(begin)
        ends.append(end)
    return sizes, begins + ends


class Builder:
    """Collects nodes and weights of one network; every method returns the tensor it produces."""

    def __init__(self, seed: int) -> None:
        """Start an empty graph whose weights come from this seed."""
        self._rng = np.random.default_rng((_STREAM, seed))
        self._model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="tvm_stretch.zoo")
        self._model.opset_import.add(domain="", version=OPSET)
        self._graph = self._model.graph
        self._constants: set[str] = set()
        self._counts: dict[str, int] = {}

    # -- graph ---------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        """Declare a float32 graph input, expected to be standard normal."""
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
        self._graph.input.append(info)
        extents = shape[2:]
        if len(extents) == 2:  # an image; a sequence is small enough as it is
            extents = [min(extent, _PROBE_SIZE) for extent in extents]
        sample = self._rng.standard_normal((1, shape[1], *extents), dtype=np.float32)
        return Tensor(name, tuple(shape), sample)

    def finish(self, name: str, result: Tensor, output: str = "logits") -> onnx.ModelProto:
        """Make the model whose output is ``result``, which must be the last tensor made."""
        last = self._graph.node[-1]
        assert list(last.output) == [result.name], "a network returns the last tensor it makes"
        last.output[0] = output
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, list(result.shape))
        self._graph.output.append(info)
        self._graph.name = name
        return self._model

    def _fresh(self, stem: str) -> str:
        """Next name of a kind: ``conv_0``, ``conv_1``, ..."""
        index = self._counts.get(stem, 0)
        self._counts[stem] = index + 1
        return f"{stem}_{index}"

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer once; the same name is the same constant."""
        if name not in self._constants:
            self._constants.add(name)
            # Filled in place: weights of hundreds of megabytes are not copied about.
            tensor = self._graph.initializer.add(name=name, dims=value.shape)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
            tensor.raw_data = value.tobytes()
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: Any) -> list[str]:
        """Append one node and return the names of its outputs."""
        name = self._fresh(op.lower())
        names = [f"{name}.out"] if outputs == 1 else [f"{name}.out{i}" for i in range(outputs)]
        self._graph.node.append(helper.make_node(op, list(inputs), names, name=name, **attrs))
        return names

    def weight(self, name: str, shape: tuple[int, ...], variance: float) -> Array:
        """Add a normally distributed weight and return its values."""
        value: Array = self._rng.standard_normal(shape, dtype=np.float32)
        value *= np.float32(np.sqrt(variance))
        self.constant(name, value)
        return value

    def _filters(self, name: str, shape: tuple[int, ...]) -> Array:
        """Add He-initialised convolution filters, nearly of zero sum, and return their values."""
        value: Array = self._rng.standard_normal(shape, dtype=np.float32)
        if shape[1] > 1:
            mean: Array = value.mean(axis=(1, 2, 3), keepdims=True)
            value -= np.float32(_CENTRED) * mean
        value *= np.float32(np.sqrt(_GAIN / np.prod(shape[1:])))
        self.constant(name, value)
        return value

    def offsets(self, count: int) -> Array:
        """Offsets of about a tenth: enough to make a forgotten bias visible."""
        return self._rng.standard_normal(count, dtype=np.float32) * np.float32(0.1)

    # -- convolution and dense -----------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair = 1,
        stride: Pair = 1,
        *,
        pad: Pad = None,
        groups: int = 1,
        bias: bool = True,
        act: str | None = None,
    ) -> Tensor:
        """Convolution with He-initialised weights, and activation."""
        kernel, stride = _pair(kernel), _pair(stride)
        name = self._fresh("layer")
        shape = (filters, x.channels // groups, *kernel)
        weight = self._filters(f"{name}.weight", shape)
        sizes, pads = _slide(x.shape[2:], kernel, stride, pad)
        _, sample_pads = _slide(x.probe.shape[2:], kernel, stride, pad)
        sample = probe.conv(x.probe, weight, stride, sample_pads)
        inputs = [x.name, f"{name}.weight"]
        if bias:
            offsets = self.offsets(filters)
            inputs.append(self.constant(f"{name}.bias", offsets))
            sample += offsets[:, None, None]
        out = self.node(
            "Conv", inputs, kernel_shape=kernel, strides=stride, pads=pads, group=groups
        )[0]
        return self.act(Tensor(out, (x.shape[0], filters, *sizes), sample), act)

    def conv_bn(
        self,
        x: Tensor,
        filters: int,
        kernel: Pair = 1,
        stride: Pair = 1,
        *,
        pad: Pad = None,
        groups: int = 1,
        act: str | None = None,
        scale: float = 1.0,
    ) -> Tensor:
        """Bias-free convolution, batch normalisation to deviation ``scale``, activation."""
        x = self.conv(x, filters, kernel, stride, pad=pad, groups=groups, bias=False)
        return self.act(self.batch_norm(x, scale), act)

    def batch_norm(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Batch normalisation with the scale measured on the sample."""
        # One variance for the layer, because few pixels per channel would make each one too small.
        # It is taken around zero: around each channel's mean, small differences would grow by a
        # fifth in every layer, until float rounding decides the logits of a deep network.
        spread = np.float32(probe.power(x.probe))
        jitter = self._rng.uniform(0.8, 1.25, (2, x.channels)).astype(np.float32)
        gamma, beta = np.float32(scale) * jitter[0], np.float32(scale) * self.offsets(x.channels)
        mean, var = np.sqrt(spread) * self.offsets(x.channels), spread * jitter[1]
        name = self._fresh("bn")
        statistics = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
        inputs = [self.constant(f"{name}.{key}", v) for key, v in statistics.items()]
        out = self.node("BatchNormalization", [x.name, *inputs], epsilon=BN_EPSILON)[0]
        slope = gamma / np.sqrt(var + np.float32(BN_EPSILON))
        sample = x.probe * slope[:, None, None] + (beta - mean * slope)[:, None, None]
        return Tensor(out, x.shape, sample)

    def dense(self, x: Tensor, units: int, act: str | None = None) -> Tensor:
        """``Gemm`` on ``[batch, features]``; its outputs have deviation about 1."""
        name = self._fresh("layer")
        features = x.shape[1]
        variance = 1.0 / (features * probe.power(x.probe))
        weight = self.weight(f"{name}.weight", (units, features), variance)
        offsets = self.offsets(units)
        bias = self.constant(f"{name}.bias", offsets)
        out = self.node("Gemm", [x.name, f"{name}.weight", bias], transB=1)[0]
        # A flattened feature map is smaller in the sample, so its values are repeated.
        sample = np.resize(x.probe, (1, features)) @ weight.T + offsets
        return self.act(Tensor(out, (x.shape[0], units), sample), act)

    # -- activations ---------------------------------------------------------------------------

    def act(self, x: Tensor, kind: str | None) -> Tensor:
        """Activation by name, in the nodes an exporter writes for it; ``None`` does nothing."""
        if kind is None:
            return x
        return Tensor(self._emit_act(x.name, kind), x.shape, probe.ACTIVATIONS[kind](x.probe))

    def _emit_act(self, x: str, kind: str) -> str:
        if kind == "relu6":
            low = self.constant("relu6.low", np.array(0.0, np.float32))
            high = self.constant("relu6.high", np.array(6.0, np.float32))
            return self.node("Clip", [x, low, high])[0]
        if kind == "swish":
            return self.node("Mul", [x, self.node("Sigmoid", [x])[0]])[0]
        if kind == "leaky":
            return self.node("LeakyRelu", [x], alpha=0.1)[0]
        if kind == "hard_sigmoid":
            return self.node("HardSigmoid", [x], alpha=1.0 / 6.0, beta=0.5)[0]
        op = {"relu": "Relu", "sigmoid": "Sigmoid", "hard_swish": "HardSwish", "tanh": "Tanh"}[kind]
        return self.node(op, [x])[0]

    # -- elementwise and shape -----------------------------------------------------------------

    def add(self, x: Tensor, y: Tensor, act: str | None = None) -> Tensor:
        """Sum of two tensors of one shape, and activation."""
        out = self.node("Add", [x.name, y.name])[0]
        return self.act(Tensor(out, x.shape, x.probe + y.probe), act)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Product; ``y`` may broadcast."""
        return Tensor(self.node("Mul", [x.name, y.name])[0], x.shape, x.probe * y.probe)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenation of channels."""
        out = self.node("Concat", [part.name for part in parts], axis=1)[0]
        batch, _, *rest = parts[0].shape
        shape = (batch, sum(part.channels for part in parts), *rest)
        return Tensor(out, shape, np.concatenate([part.probe for part in parts], axis=1))

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split the channels into their first and their last half."""
        half = x.channels // 2
        sizes = self.constant(f"halves.{half}", np.array([half, half], np.int64))
        names = self.node("Split", [x.name, sizes], outputs=2, axis=1)
        shape = (x.shape[0], half, *x.shape[2:])
        first, last = np.split(x.probe, 2, axis=1)
        return Tensor(names[0], shape, first), Tensor(names[1], shape, last)

    def shuffle(self, x: Tensor, groups: int) -> Tensor:
        """Shuffle channels: transpose the group and the position within it."""
        batch, channels, *size = x.shape
        apart = np.array([batch, groups, channels // groups, *size], np.int64)
        shapes = [
            self.constant("x".join(map(str, shape)), np.array(shape, np.int64))
            for shape in (apart, x.shape)
        ]
        grouped = self.node("Reshape", [x.name, shapes[0]])[0]
        moved = self.node("Transpose", [grouped], perm=[0, 2, 1, 3, 4])[0]
        out = self.node("Reshape", [moved, shapes[1]])[0]
        sample = x.probe.reshape(1, groups, -1, *x.probe.shape[2:]).swapaxes(1, 2)
        return Tensor(out, x.shape, sample.reshape(x.probe.shape))

    def flatten(self, x: Tensor) -> Tensor:
        """``[batch, everything else]``."""
        out = self.node("Flatten", [x.name], axis=1)[0]
        return Tensor(out, (x.shape[0], int(np.prod(x.shape[1:]))), x.probe.reshape(1, -1))

    def shift(self, x: Tensor) -> Tensor:
        """Drop the first row and column and append zeros: the size stays."""
        # The zeros come first: ONNX Runtime folds a Pad into a following pool, and then refuses
        # padding as large as the window.
        pads = self.constant("shift.pads", np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64))
        padded = self.node("Pad", [x.name, pads])[0]
        one = self.constant("shift.begin", np.array([1, 1], np.int64))
        end = self.constant("shift.end", np.array([2**31 - 1] * 2, np.int64))
        axes = self.constant("shift.axes", np.array([2, 3], np.int64))
        sample = np.pad(x.probe[:, :, 1:, 1:], ((0, 0), (0, 0), (0, 1), (0, 1)))
        return Tensor(self.node("Slice", [padded, one, end, axes])[0], x.shape, sample)

    def space_to_depth(self, x: Tensor, block: int) -> Tensor:
        """Move ``block`` x ``block`` pixels into channels."""
        batch, channels, height, width = x.shape
        if height % block or width % block:
            raise InputError(
                f"expected a multiple of {block} pixels where {x.name} is rearranged for size, got "
                f"{height}x{width}; give a size that all strides divide"
            )
        out = self.node("SpaceToDepth", [x.name], blocksize=block)[0]
        rows, columns = x.probe.shape[2] // block, x.probe.shape[3] // block
        sample = x.probe.reshape(1, channels, rows, block, columns, block)
        sample = sample.transpose(0, 3, 5, 1, 2, 4).reshape(1, -1, rows, columns)
        shape = (batch, channels * block**2, height // block, width // block)
        return Tensor(out, shape, sample)

    # -- pooling -------------------------------------------------------------------------------

    def max_pool(
        self, x: Tensor, kernel: int, stride: int, *, pad: Pad = None, ceil: bool = False
    ) -> Tensor:
        """Maximum over windows."""
        return self._pool("MaxPool", x, kernel, stride, pad, ceil, ceil_mode=int(ceil))

    def avg_pool(self, x: Tensor, kernel: int, stride: int, *, pad: Pad = None) -> Tensor:
        """Average over windows; padding is not counted."""
        return self._pool("AveragePool", x, kernel, stride, pad, False, count_include_pad=0)

    def _pool(
        self, op: str, x: Tensor, kernel: int, stride: int, pad: Pad, ceil: bool, **attrs: int
    ) -> Tensor:
        k, s = _pair(kernel), _pair(stride)
        sizes, pads = _slide(x.shape[2:], kernel, stride, pad, ceil)
        out = self.node(op, [x.name], kernel_shape=k, strides=s, pads=pads, **attrs)[0]
        _, sample_pads = _slide(x.probe.shape[2:], kernel, stride, pad)
        view = probe.windows(x.probe, k, s, sample_pads)
        sample = view.max(axis=(4, 5)) if op == "MaxPool" else view.mean(axis=(4, 5))
        return Tensor(out, (*x.shape[:2], *sizes), sample)

    def global_pool(self, x: Tensor) -> Tensor:
        """Average over all pixels, as ``[batch, channels, 1, 1]``."""
        out = self.node("GlobalAveragePool", [x.name])[0]
        return Tensor(out, (*x.shape[:2], 1, 1), x.probe.mean(axis=(2, 3), keepdims=True))

    # -- blocks that several families share ----------------------------------------------------

    def squeeze_excite(self, x: Tensor, squeezed: int, act: str, gate: str) -> Tensor:
        """Scale channels by a gate computed from their averages, through ``squeezed`` channels."""
        s = self.conv(self.global_pool(x), squeezed, act=act)
        return self.mul(x, self.conv(s, x.channels, act=gate))

    def classifier(self, x: Tensor, classes: int) -> Tensor:
        """Global average, flatten, dense."""
        return self.dense(self.flatten(self.global_pool(x)), classes)
