"""Layer-level ONNX builder: ``conv_bn`` in, separate ``Conv`` and ``BatchNormalization`` nodes out.

``b.conv_bn(x, 64, 3, act="relu")`` becomes, as in an exported training graph:

    Conv(x, conv_0.weight)                                    no bias
    BatchNormalization(…, gamma, beta, mean, var)             inference statistics
    Relu(…)

Weights are random, but a network with random weights and arbitrary BN statistics overflows or dies
within a few dozen layers. So every :class:`Tensor` carries the mean and variance its elements are
expected to have, each layer propagates them (activations by Gaussian quadrature), and a BN gets the
running variance that its input really has. Activations then stay of order 1 at any depth without
running the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.errors import InputError

OPSET = 17
IR_VERSION = 8
BN_EPSILON = 1e-5

Array = NDArray[Any]
Pair = int | tuple[int, int]
#: ``"same"``: TensorFlow's rule, possibly one more at the end; ``None``: ``kernel // 2`` each side.
Pad = int | tuple[int, int] | str | None


@dataclass(frozen=True)
class Tensor:
    """A value in the graph, with the mean and variance expected of its elements."""

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0
    var: float = 1.0

    @property
    def channels(self) -> int:
        """Size of axis 1."""
        return self.shape[1]

    @property
    def power(self) -> float:
        """Expected mean square."""
        return self.mean**2 + self.var


def _sigmoid(v: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-v))


def _hard_sigmoid(v: Array) -> Array:
    return np.clip(v / 6.0 + 0.5, 0.0, 1.0)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda v: np.maximum(v, 0.0),
    "relu6": lambda v: np.clip(v, 0.0, 6.0),
    "leaky": lambda v: np.where(v > 0.0, v, 0.1 * v),
    "sigmoid": _sigmoid,
    "hard_sigmoid": _hard_sigmoid,
    "swish": lambda v: v * _sigmoid(v),
    "hard_swish": lambda v: v * _hard_sigmoid(v),
    "tanh": np.tanh,
}
_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


class Builder:
    """Collects nodes and weights of one network; every method returns the tensor it produces."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._counts: dict[str, int] = {}
        self._inputs: list[onnx.ValueInfoProto] = []

    # -- graph ---------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int]) -> Tensor:
        """Declare a float32 graph input, expected to be standard normal."""
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
        self._inputs.append(info)
        return Tensor(name, tuple(shape))

    def finish(self, name: str, result: Tensor, output: str = "logits") -> onnx.ModelProto:
        """Make the model whose only output is ``result``, renamed to ``output``."""
        last = self._nodes[-1]
        if list(last.output) != [result.name]:
            raise InputError(
                f"expected the tensor of the last node for output, got {result.name}; "
                "return what was built last"
            )
        last.output[0] = output
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, list(result.shape))
        initializers = list(self._initializers.values())
        graph = helper.make_graph(self._nodes, name, self._inputs, [info], initializers)
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, ir_version=IR_VERSION, opset_imports=opsets, producer_name="tvm_stretch.zoo"
        )

    def fresh(self, stem: str) -> str:
        """Name a node: ``conv_0``, ``conv_1``, ..."""
        index = self._counts.get(stem, 0)
        self._counts[stem] = index + 1
        return f"{stem}_{index}"

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer once; the same name is the same constant."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(value, name)
        return name

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attrs: object) -> list[str]:
        """Append one node and return the names of its outputs."""
        name = self.fresh(op.lower())
        names = [f"{name}.out"] if outputs == 1 else [f"{name}.out{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=name, **attrs))
        return names

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int, gain: float = 2.0) -> Array:
        """Add a He-initialised weight and return its values."""
        value = self._rng.standard_normal(shape, dtype=np.float32)
        value *= np.float32(np.sqrt(gain / fan_in))
        self.constant(name, value)
        return value

    # -- convolution and dense -----------------------------------------------------------------

    def _spatial(
        self, x: Tensor, kernel: Pair, stride: Pair, pad: Pad, ceil: bool = False
    ) -> tuple[list[int], list[int]]:
        """Output height and width, and ONNX pads, of a sliding window."""
        sizes, begins, ends = [], [], []
        for axis, (k, s) in enumerate(zip(_pair(kernel), _pair(stride), strict=True)):
            extent = x.shape[2 + axis]
            if pad == "same":
                total = max((-(-extent // s) - 1) * s + k - extent, 0)
                begin, end = total // 2, total - total // 2
            elif pad is None:
                begin = end = k // 2
            else:
                begin = end = _pair(pad)[axis]  # type: ignore[arg-type]
            room = extent + begin + end - k
            size = (-(-room // s) if ceil else room // s) + 1
            if ceil and (size - 1) * s >= extent + begin:
                size -= 1
            if room < 0:
                raise InputError(
                    f"expected at least {k} rows and columns where {x.name} is reduced, got "
                    f"{extent}; give a larger size"
                )
            sizes.append(size)
            begins.append(begin)
            ends.append(end)
        return sizes, begins + ends

    def _conv(
        self, x: Tensor, filters: int, kernel: Pair, stride: Pair, pad: Pad, groups: int, bias: bool
    ) -> tuple[Tensor, Array]:
        """A convolution and the expected variance of each of its output channels."""
        kh, kw = _pair(kernel)
        name = self.fresh("layer")
        per_group = x.channels // groups
        shape = (filters, per_group, kh, kw)
        weight = self.weight(f"{name}.weight", shape, per_group * kh * kw)
        inputs = [x.name, f"{name}.weight"]
        if bias:
            inputs.append(self.constant(f"{name}.bias", self._small(filters)))
        sizes, pads = self._spatial(x, (kh, kw), stride, pad)
        out = self.node(
            "Conv", inputs, kernel_shape=[kh, kw], strides=_pair(stride), pads=pads, group=groups
        )[0]
        flat = weight.reshape(filters, -1)
        variances = np.einsum("oi,oi->o", flat, flat) * np.float32(x.power)
        shape_out = (x.shape[0], filters, *sizes)
        return Tensor(out, shape_out, 0.0, float(variances.mean())), variances

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
        """Convolution, with bias unless told otherwise, and activation."""
        out, _ = self._conv(x, filters, kernel, stride, pad, groups, bias)
        return self.act(out, act)

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
        """Bias-free convolution, batch normalisation to standard deviation ``scale``, activation."""
        out, variances = self._conv(x, filters, kernel, stride, pad, groups, bias=False)
        return self.act(self._bn(out, variances, scale), act)

    def _bn(self, x: Tensor, variances: Array, scale: float) -> Tensor:
        """Batch normalisation of ``x``, whose channels have these variances."""
        name = self.fresh("bn")
        channels = x.channels
        jitter = self._rng.uniform(0.8, 1.25, (2, channels)).astype(np.float32)
        values = {
            "gamma": np.float32(scale) * jitter[0],
            "beta": np.float32(scale) * self._small(channels),
            "mean": np.sqrt(variances) * self._small(channels),
            "var": variances * jitter[1],
        }
        inputs = [self.constant(f"{name}.{key}", value) for key, value in values.items()]
        out = self.node("BatchNormalization", [x.name, *inputs], epsilon=BN_EPSILON)[0]
        return Tensor(out, x.shape, 0.0, scale**2)

    def _small(self, count: int) -> Array:
        """Offsets of about a tenth: enough to make a forgotten bias visible."""
        return self._rng.standard_normal(count, dtype=np.float32) * np.float32(0.1)

    def dense(self, x: Tensor, units: int, act: str | None = None) -> Tensor:
        """``Gemm`` on ``[batch, features]``; the outputs have standard deviation about 1."""
        name = self.fresh("layer")
        features = x.shape[1]
        self.weight(f"{name}.weight", (units, features), features, gain=1.0 / x.power)
        bias = self.constant(f"{name}.bias", self._small(units))
        out = self.node("Gemm", [x.name, f"{name}.weight", bias], transB=1)[0]
        return self.act(Tensor(out, (x.shape[0], units)), act)

    # -- activations ---------------------------------------------------------------------------

    def act(self, x: Tensor, kind: str | None) -> Tensor:
        """Activation by name, in the nodes an exporter writes for it; ``None`` does nothing."""
        if kind is None:
            return x
        values = _ACTIVATIONS[kind](x.mean + np.sqrt(x.var) * _NODES)
        mean = float(_NODE_WEIGHTS @ values)
        var = float(_NODE_WEIGHTS @ (values - mean) ** 2)
        return Tensor(self._emit_act(x.name, kind), x.shape, mean, var)

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
        """Sum of two tensors of one shape, taken as independent."""
        out = self.node("Add", [x.name, y.name])[0]
        return self.act(Tensor(out, x.shape, x.mean + y.mean, x.var + y.var), act)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        """Product of two tensors, taken as independent; ``y`` may broadcast."""
        out = self.node("Mul", [x.name, y.name])[0]
        mean = x.mean * y.mean
        return Tensor(out, x.shape, mean, x.power * y.power - mean**2)

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenation of channels."""
        out = self.node("Concat", [part.name for part in parts], axis=1)[0]
        channels = np.array([part.channels for part in parts], float)
        share = channels / channels.sum()
        mean = float(share @ [part.mean for part in parts])
        power = float(share @ [part.power for part in parts])
        batch, _, *rest = parts[0].shape
        return Tensor(out, (batch, int(channels.sum()), *rest), mean, power - mean**2)

    def flatten(self, x: Tensor) -> Tensor:
        """``[batch, everything else]``."""
        out = self.node("Flatten", [x.name], axis=1)[0]
        return replace(x, name=out, shape=(x.shape[0], int(np.prod(x.shape[1:]))))

    # -- pooling -------------------------------------------------------------------------------

    def max_pool(
        self, x: Tensor, kernel: int, stride: int, *, pad: Pad = None, ceil: bool = False
    ) -> Tensor:
        """Maximum over windows."""
        sizes, pads = self._spatial(x, kernel, stride, pad, ceil)
        out = self.node(
            "MaxPool", [x.name], kernel_shape=_pair(kernel), strides=_pair(stride), pads=pads,
            ceil_mode=int(ceil),
        )[0]  # fmt: skip
        # Neighbours are correlated, so the maximum of k*k moves by about one deviation only.
        mean, var = x.mean + np.sqrt(x.var), 0.6 * x.var
        return Tensor(out, (*x.shape[:2], *sizes), float(mean), var)

    def avg_pool(self, x: Tensor, kernel: int, stride: int, *, pad: Pad = None) -> Tensor:
        """Average over windows; padding is not counted."""
        sizes, pads = self._spatial(x, kernel, stride, pad)
        out = self.node(
            "AveragePool", [x.name], kernel_shape=_pair(kernel), strides=_pair(stride), pads=pads,
            count_include_pad=0,
        )[0]  # fmt: skip
        # Differences between channels survive the average, differences between pixels do not.
        return Tensor(out, (*x.shape[:2], *sizes), x.mean, 0.5 * x.var)

    def global_pool(self, x: Tensor) -> Tensor:
        """Average over all pixels, as ``[batch, channels, 1, 1]``."""
        out = self.node("GlobalAveragePool", [x.name])[0]
        return Tensor(out, (*x.shape[:2], 1, 1), x.mean, 0.5 * x.var)

    # -- blocks that several families share ----------------------------------------------------

    def squeeze_excite(self, x: Tensor, squeezed: int, act: str, gate: str) -> Tensor:
        """Scale channels by a gate computed from their averages, through ``squeezed`` channels."""
        s = self.conv(self.global_pool(x), squeezed, act=act)
        return self.mul(x, self.conv(s, x.channels, act=gate))

    def classifier(self, x: Tensor, classes: int) -> Tensor:
        """Global average, flatten, dense."""
        return self.dense(self.flatten(self.global_pool(x)), classes)
