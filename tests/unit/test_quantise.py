"""ts.quantize: the integer network of ONNX Runtime's quantiser, and bad input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from helpers.cpu_targets import HERE, host_of
from helpers.onnx_models import Net
from helpers.quantised_models import optimised
from helpers.quantised_networks import IMAGES, grouped, residual

import tvm_stretch as ts
from tvm_stretch.network.operators import kind_of
from tvm_stretch.read import load_network


@pytest.mark.variants(2)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("lanes", sorted({8, HERE}))  # AVX2, too, where this machine has more
@pytest.mark.parametrize("network", [residual, grouped])
def test_whole_network_equals_onnx_runtime(
    network: Callable[[], onnx.ModelProto], lanes: int, activations: str
) -> None:
    model = ts.quantize(network(), IMAGES, activations=activations)
    compiled = ts.compile(model, [host_of(lanes)], cpu_threads=1)
    layers = {residual: 7, grouped: 10}[network]
    assert f"{layers} integer operators" in compiled.plan.reason
    assert "in float" not in compiled.plan.reason
    result, wanted = np.asarray(compiled(IMAGES[:1])), optimised(model, IMAGES[:1])
    steps = np.diff(np.unique(wanted)).min()
    # with int8 ONNX Runtime leaves layers in float, whose rounding may differ
    assert np.abs(result - wanted).max() <= (0.0 if activations == "uint8" else 1.01 * steps)


def kinds_of(model: onnx.ModelProto) -> list[str]:
    """The operators of a network when it is read."""
    blocks = load_network(model)["main"].body.blocks
    return [kind_of(b.value) for block in blocks for b in block.bindings]


def test_which_operators_are_formed() -> None:
    kinds = kinds_of(ts.quantize(residual(), IMAGES))
    assert kinds.count("integer.conv2d") == 4
    assert {"integer.add", "nn.max_pool2d", "integer.mean", "integer.matmul"} <= set(kinds)


def test_channels_of_hardly_any_weights() -> None:
    """Trained networks have them: their bias must leave room for sums, or the layer is in float."""
    net, dice = Net(), np.random.default_rng(0)
    weight = dice.standard_normal((8, 3, 9, 9)).astype("float32")
    weight[2:4] *= 5e-7
    x, bias = net.input("x", (1, 3, 12, 12)), dice.standard_normal(8).astype("float32")
    layer = net.op("Conv", x, net.constant(weight), net.constant(bias))
    row = net.op("Flatten", net.op("GlobalAveragePool", net.op("Relu", layer)))
    given = net.model(net.op("Gemm", row, net.constant(weight[:, :, 0, 0].T), transB=1))
    model = ts.quantize(given, IMAGES)
    kinds = kinds_of(model)
    assert kinds.count("divide") == 1, "only the input is quantised from floats"
    wanted, result = (optimised(m, IMAGES[:1]) for m in (given, model))
    assert np.abs(result - wanted).max() < 0.02 * np.ptp(wanted)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [((1, 10), {}), ((1, 1), {}), ((), {}), ((10,), {"beta": 0.25}), ((1, 10), {"beta": 3.0})],
)
def test_biases_as_exporters_write_them(
    shape: tuple[int, ...], attributes: dict[str, float]
) -> None:
    """ONNX Runtime's quantiser fails on all but one number a channel, and forgets ``beta``."""
    net = Net(seed=1)
    row, bias = net.op("Flatten", net.input("x", (1, 3, 12, 12))), net.weight(shape)
    weights = [net.weight((10, 432)) for _ in range(2)]
    dense = [net.op("Gemm", row, w, bias, transB=1, **attributes) for w in weights]
    given = net.model(net.op("Relu", net.op("Add", *dense)))
    model = ts.quantize(given, IMAGES)
    result = np.asarray(ts.compile(model, cpu_threads=1)(IMAGES[:1]))
    wanted = optimised(model, IMAGES[:1])
    assert np.abs(result - wanted).max() <= 2.01 * np.diff(np.unique(wanted)).min()
    exact = optimised(given, IMAGES[:1])
    assert np.abs(result - exact).max() <= 0.05 * np.ptp(exact)


@pytest.mark.parametrize("shape", [(3, 10), (3, 1)])
def test_biases_of_each_image(shape: tuple[int, ...]) -> None:
    """They are added behind the layer."""
    net = Net(seed=1)
    row, bias = net.op("Flatten", net.input("x", (3, 3, 12, 12))), net.weight(shape)
    dense = net.op("Gemm", row, net.weight((10, 432)), bias, transB=1, beta=3.0)
    given = net.model(net.op("Relu", dense))
    result = np.asarray(ts.compile(ts.quantize(given, IMAGES), cpu_threads=1)(IMAGES))
    exact = optimised(given, IMAGES)
    assert np.abs(result - exact).max() <= 0.05 * np.ptp(exact)


def test_padding_with_a_number_equals_onnx_runtime() -> None:
    net = Net(seed=1)
    pads = net.constant(np.array([0, 1, 0, 0, 0, 0, 0, 0]))
    x = net.op(
        "Pad", net.op("Relu", net.input("x", (1, 3, 12, 12))), pads, net.constant(np.float32(0))
    )
    model = ts.quantize(net.model(net.op("Relu", net.conv(x, 4, (3, 3)))), IMAGES)
    result = np.asarray(ts.compile(model, cpu_threads=1)(IMAGES[:1]))
    np.testing.assert_array_equal(result, optimised(model, IMAGES[:1]))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (IMAGES[:, :, :6], ["another shape", "(1, 3, 6, 12)", "(1, 3, 12, 12)"]),
        (IMAGES[0], ["4 dimensions", "(3, 12, 12)"]),
        (IMAGES.astype("float64"), ["float32", "float64"]),
        (np.where(IMAGES > 2, np.nan, IMAGES), ["finite", "image"]),
        (IMAGES[:0], ["(0, 3, 12, 12)"]),
        ([], ["at least one image"]),
        ("images.npy", ["arrays for images", "str"]),
        ([{"y": IMAGES[:1]}], ["expected x", "got y"]),
        ([[[1.0], [1.0, 2.0]]], ["an array for input 'x' of image 0", "got list"]),
        ([torch.ones(1, 3, 12, 12, requires_grad=True)], ["an array", "got Tensor"]),
    ],
)
def test_images_that_do_not_fit(images: Any, words: list[str]) -> None:
    with pytest.raises(ts.InputError) as error:
        ts.quantize(residual(), images)
    assert all(word in str(error.value) for word in words)


def test_fewer_images_than_the_network_takes_at_once() -> None:
    net = Net(seed=1)
    model = net.model(net.op("Relu", net.input("x", (4, 3, 12, 12))))
    with pytest.raises(ts.InputError, match=r"at least 4 images, .* got 3"):
        ts.quantize(model, IMAGES)


def test_network_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(onnx, "save", full)
    with pytest.raises(ts.ModelError, match=r"No space left .* room for temporary files"):
        ts.quantize(residual(), IMAGES)


def test_other_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ts.InputError, match="'uint8' or 'int8' for activations, got 'int4'"):
        ts.quantize(residual(), IMAGES, activations="int4")
    with pytest.raises(ts.ModelError, match=r"QuantizeLinear .* quantised already"):
        ts.quantize(ts.quantize(residual(), IMAGES), IMAGES)
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    with pytest.raises(ts.InstallError, match=r"pip install tvm-stretch\[quantize\]"):
        ts.quantize(residual(), IMAGES)
