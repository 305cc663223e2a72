"""Quantised networks of torch: as PT2E's converter writes them, against torch's own arithmetic.

The graphs are written here, with the operators that its converter inserts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from helpers.relax_helpers import run

import tvm_stretch as ts
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.integer_summary import describe_integers
from tvm_stretch.read import load_network

F = torch.nn.functional
Q = torch.ops.quantized_decomposed
Tensor = torch.Tensor


def quantised(x: Tensor, scale: float, zero: int = 0, low: int = -128, high: int = 127) -> Tensor:
    """``x`` through 8 bits: int8 if they may be negative."""
    kind = torch.int8 if low < 0 else torch.uint8
    numbers = Q.quantize_per_tensor(x, scale, zero, low, high, kind)
    return Q.dequantize_per_tensor(numbers, scale, zero, low, high, kind)


class Weight(torch.nn.Module):
    """Weights as int8, one scale for each output channel."""

    def __init__(self, *shape: int, axis: int = 0, seed: int = 0) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)
        self.axis = axis
        self.register_buffer("data", torch.randint(-127, 128, shape, generator=dice).to(torch.int8))
        self.register_buffer("scales", torch.rand(shape[axis], generator=dice) / 100 + 0.001)
        self.register_buffer("zeros", torch.zeros(shape[axis], dtype=torch.int64))
        self.register_buffer("bias", torch.randn(shape[axis], generator=dice))

    def forward(self) -> Tensor:
        """As floats."""
        arguments = (self.scales, self.zeros, self.axis, -127, 127, torch.int8)
        return Q.dequantize_per_channel(self.data, *arguments)


class Net(torch.nn.Module):
    """``function(x, *weights)``, between quantised tensors."""

    def __init__(self, function: Callable[..., Tensor], *weights: Weight) -> None:
        super().__init__()
        self.function = function
        self.weights = torch.nn.ModuleList(weights)

    def forward(self, x: Tensor) -> Tensor:
        """The result, dequantised."""
        return quantised(self.function(quantised(x, 0.02, 3), *self.weights), 0.05, -10)


def conv(**options: Any) -> Callable[[Tensor, Weight], Tensor]:
    return lambda x, w: F.relu(F.conv2d(x, w(), w.bias, padding=1, **options))


LAYERS: dict[str, tuple[Net, str]] = {
    "convolution": (Net(conv(stride=2), Weight(8, 6, 3, 3)), "integer.conv2d"),
    "depthwise": (Net(conv(groups=6), Weight(6, 1, 3, 3)), "integer.conv2d"),
    "transposed": (
        Net(lambda x, w: F.conv_transpose2d(x, w(), w.bias, stride=2), Weight(6, 4, 2, 2, axis=1)),
        "integer.conv2d",
    ),
    "dense": (
        Net(lambda x, w: F.linear(torch.flatten(x, 1), w(), w.bias), Weight(5, 384)),
        "integer.matmul",
    ),
    "past": (
        Net(lambda x, w: F.relu(F.conv2d(x, w(), w.bias, padding=1) + x), Weight(6, 6, 3, 3)),
        "integer.round",
    ),
    "add": (Net(lambda x: x + quantised(F.relu(x), 0.01)), "integer.add"),
    "multiply": (
        Net(lambda x: x * quantised(torch.sigmoid(x), 1 / 256, -128)[:, :1]),
        "integer.multiply",
    ),
    "product": (Net(lambda x: x * quantised(torch.sigmoid(x), 1 / 256, -128)), "integer.table"),
    "mean": (Net(lambda x: F.adaptive_avg_pool2d(x, 1)), "integer.mean"),
    "maximum": (Net(lambda x: F.max_pool2d(x, 3, 2, 1)), "nn.max_pool2d"),
    "concat": (Net(lambda x: torch.cat([x, F.hardtanh(x, 0.0, 6.0)], 1)), "concat"),
    "swish": (Net(F.hardswish), "integer.table"),
    "softmax": (Net(lambda x: quantised(F.softmax(x, -1), 1 / 256, -128)), "integer.softmax"),
    "fewer numbers": (Net(lambda x: quantised(F.relu(x), 0.02, 0, 0, 127)), "integer.table"),
}


def image(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SLOW = {"transposed", "past", "add", "multiply", "dense"}  # others of their kinds stay


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in LAYERS]
)
def test_layers_are_integers_and_equal_torch(name: str) -> None:
    net, kind = LAYERS[name]
    x = image(2, 6, 8, 8)
    mod = load_network(torch.export.export(net.eval(), (x,)))
    assert "in float" not in describe_integers(mod["main"])
    assert kind in [operator.kind for operator in Operators(mod["main"])]
    want = net(x).numpy()
    off = np.abs(run(mod, x.numpy())[0] - want) / 0.05
    # what lies in the middle between two integers differs by the last digit of a float
    assert off.max() < 1.01 and np.mean(off > 0.01) < 0.01


def test_sums_are_rounded_in_their_kernel() -> None:
    net, x = LAYERS["past"][0].eval(), image(2, 6, 8, 8)
    mod = load_network(torch.export.export(net, (x,)))
    model = ts.compile(mod, cpu_threads=1)
    assert any(node.kernel.startswith("fused_integer_conv2d") for node in model.graph.nodes)
    np.testing.assert_array_equal(np.asarray(model(x.numpy())), run(mod, x.numpy())[0])


class Block(torch.nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int, seed: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = Weight(outputs, inputs, 3, 3, seed=seed)
        self.second = Weight(outputs, outputs, 3, 3, seed=seed + 1)
        self.past = Weight(outputs, inputs, 1, 1, seed=seed + 2)

    def forward(self, x: Tensor) -> Tensor:
        """As ResNet has it."""
        first, second, past = self.first, self.second, self.past
        y = quantised(F.relu(F.conv2d(x, first(), first.bias, self.stride, 1)), 0.02, -128)
        y = quantised(F.conv2d(y, second(), second.bias, padding=1), 0.06)
        x = quantised(F.conv2d(x, past(), past.bias, self.stride), 0.02)
        return quantised(F.relu(y + x), 0.05, -128)


class ResNet(torch.nn.Module):
    """A small one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Weight(16, 3, 7, 7, seed=50)
        self.blocks = torch.nn.Sequential(Block(16, 16, 1, 10), Block(16, 32, 2, 20))
        self.dense = Weight(10, 32, seed=60)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = quantised(x, 0.02, 3)
        x = quantised(F.relu(F.conv2d(x, self.stem(), self.stem.bias, 2, 3)), 0.03, -128)
        x = self.blocks(F.max_pool2d(x, 3, 2, 1))
        x = quantised(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1), 0.05, -128)
        return quantised(F.linear(x, self.dense(), self.dense.bias), 0.2)


@pytest.mark.full
def test_network_equals_torch(tmp_path: Path) -> None:
    net, x = ResNet().eval(), image(1, 3, 32, 32)
    program, path = torch.export.export(net, (x,)), tmp_path / "resnet.pt2"
    torch.export.save(program, path)
    model = ts.compile(str(path), cpu_threads=1)
    assert "in float" not in model.plan.reason and "integer operators" in model.plan.reason
    got, want = np.asarray(model(x.numpy())), net(x).numpy()
    assert len(np.unique(want)) > 5
    assert got.argmax() == want.argmax()
    assert np.abs(got - want).max() <= 4.01 * 0.2


class Unfolded(torch.nn.Module):
    """Weights that are quantised while it runs, and a type conversion."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(image(8, 6, 3, 3))
        self.register_buffer("scale", torch.tensor([0.03]))
        self.register_buffer("zero", torch.tensor([0]))

    def forward(self, x: Tensor) -> Tensor:
        """A convolution."""
        arguments = (self.scale, self.zero, -127, 127, torch.int8)
        numbers = Q.quantize_per_tensor.tensor(self.weight, *arguments)
        weight = Q.dequantize_per_tensor.tensor(numbers, *arguments)
        x = quantised(Q.convert_element_type.no_fuse(x, torch.float32), 0.02)
        return quantised(F.conv2d(x, weight), 0.1)


def test_weights_that_were_not_folded() -> None:
    net, x = Unfolded().eval(), image(1, 6, 5, 5)
    mod = load_network(torch.export.export(net, (x,)))
    assert describe_integers(mod["main"]) == "1 integer operators"
    np.testing.assert_allclose(run(mod, x.numpy())[0], net(x).detach().numpy(), atol=0.101)


GROUPS = (
    torch.ones(2, 2),
    torch.zeros(2, 2, dtype=torch.int8),
    -128,
    127,
    torch.int8,
    4,
    torch.float32,
)
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "block-wise": (
        lambda x: Q.dequantize_per_channel_group(x.to(torch.int8), *GROUPS),
        r"8 bits .* for quantized_decomposed.dequantize_per_channel_group.*got block-wise",
    ),
    "dynamic": (
        lambda x: x * Q.choose_qparams(x, -128, 127, 1e-6, torch.int8)[0],
        r"choose_qparams.*scales that are computed while it runs",
    ),
    "computed scale": (
        lambda x: Q.dequantize_per_tensor.tensor(
            x.to(torch.int8), x.max(), torch.tensor(0), -128, 127, torch.int8
        ),
        r"a constant scale for .*dequantize_per_tensor.tensor",
    ),
    "float8": (
        lambda x: Q.dequantize_per_tensor(
            x.to(torch.float8_e4m3fn), 0.1, 0, -448, 448, torch.float8_e4m3fn
        ),
        r"one of int8.*quantized_decomposed.dequantize_per_tensor.*got float8_e4m3fn",
    ),
    "zero point": (lambda x: quantised(x, 0.1, 300), r"zero points of int8.*got 300"),
    "scale": (lambda x: quantised(x, float("inf")), r"scales above zero for quantized.*got inf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_schemes_are_refused(name: str) -> None:
    function, message = REFUSED[name]
    net = Plain(function)
    with pytest.raises(ts.StretchError, match=message):
        load_network(torch.export.export(net, (image(2, 8),)))


class Plain(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """The function's result."""
        return self.function(x)
