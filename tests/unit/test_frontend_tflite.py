"""TensorFlow Lite files: answers beside LiteRT's own, names, integers, bad input."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from helpers.tflite_models import Builder

import tvm_stretch as ts
from tvm_stretch.network.properties.integer_summary import describe_integers
from tvm_stretch.read import load_network

MAP = (1, 8, 9, 3)


def litert(content: bytes, x: np.ndarray) -> np.ndarray:
    """The answer of LiteRT's reference kernels."""
    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    answer: np.ndarray = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return answer.copy()


def mobile(net: Builder) -> None:
    """What networks of phones consist of."""
    net.conv(16, 3, stride=2, activation="RELU6")
    net.depthwise(3, activation="RELU6")
    shortcut = net.conv(16, 1)
    net.depthwise(3)
    branch = net.conv(16, 1)
    net.operator("ADD", [shortcut, branch], net.shape, "AddOptions", FusedActivationFunction=0)
    net.pool("AVERAGE_POOL_2D", 3, 2)
    pool = net.last
    wide = net.conv(8, 1, activation="RELU")
    shape = (*net.shape[:3], 24)
    net.operator("CONCATENATION", [pool, wide], shape, "ConcatenationOptions", Axis=3)
    net.pool("MAX_POOL_2D", 2, 1)
    axes = net.constant(np.array([1, 2], "int32"))
    net.operator("MEAN", [net.last, axes], (1, 24), "ReducerOptions", KeepDims=False)
    net.dense(10)


def prelu(net: Builder) -> None:
    net.conv(8, 3)
    slopes = net.constant(np.linspace(-0.5, 1.5, 8, dtype="float32").reshape(1, 1, 8))
    net.operator("PRELU", [net.last, slopes], net.shape)


def multiplied_depth(net: Builder) -> None:
    net.depthwise(3, multiplier=4)


def one_channel(net: Builder) -> None:
    net.conv(1, 1)
    net.depthwise(3, multiplier=5)


def padded(net: Builder) -> None:
    widths = net.constant(np.array([[0, 0], [1, 0], [0, 2], [0, 0]], "int32"))
    net.operator("PAD", [net.last, widths], (1, 9, 11, 3))
    net.conv(5, 3, same=False)


def resized(net: Builder) -> None:
    net.conv(4, 3)
    size = net.constant(np.array([16, 18], "int32"))
    options = {"AlignCorners": False, "HalfPixelCenters": True}
    shape = (1, 16, 18, 4)
    net.operator("RESIZE_BILINEAR", [net.last, size], shape, "ResizeBilinearOptions", **options)


def activations(net: Builder) -> None:
    net.conv(6, 3)
    for code in ("HARD_SWISH", "LOGISTIC", "TANH"):
        net.operator(code, [net.last], net.shape)
    net.operator("SOFTMAX", [net.last], net.shape, "SoftmaxOptions", Beta=1.0)


FORMS: dict[str, Callable[[Builder], None]] = {
    form.__name__: form
    for form in (mobile, prelu, multiplied_depth, one_channel, padded, resized, activations)
}


@pytest.mark.parametrize("form", FORMS)
def test_answers_in_float(form: str) -> None:
    net = Builder(MAP)
    FORMS[form](net)
    content = net.finish()
    x = np.random.default_rng(1).standard_normal(MAP, dtype=np.float32)
    mod = load_network(content)
    assert "NHWC" not in mod.script()
    expected = litert(content, x)
    answer = np.asarray(ts.compile(content, ["llvm"])(x))
    # sums of at most 147 products of numbers below 10, in another order
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=147 * 10 * 2.0**-24)


INTEGERS: dict[str, Callable[[Builder], object]] = {
    "conv": lambda net: net.conv(16, 3, activation="RELU"),
    "conv_relu6": lambda net: net.conv(7, 1, stride=2, activation="RELU6"),
    "depthwise": lambda net: net.depthwise(3, stride=2),
    "depthwise_multiplied": lambda net: net.depthwise(3, multiplier=2),
    "max_pool": lambda net: net.pool("MAX_POOL_2D", 3, 2),
}


@pytest.mark.parametrize("form", INTEGERS)
def test_integers_of_one_layer(form: str) -> None:
    """Both round the same real number once, to the nearest: ties may go the other way."""
    net = Builder((1, 8, 9, 16), quantised=True)
    INTEGERS[form](net)
    content = net.finish()
    x = np.random.default_rng(2).integers(-128, 128, (1, 8, 9, 16), dtype="int8")
    answer = np.asarray(ts.compile(content, ["llvm"])(x))
    assert answer.dtype == "int8"
    steps = np.abs(answer.astype("int32") - litert(content, x).astype("int32"))
    assert steps.max() <= 1
    assert (steps == 0).mean() > 0.98


def test_quantised_networks_compute_in_integers() -> None:
    net = Builder((1, 8, 9, 16), quantised=True)
    mobile(net)
    content = net.finish()
    mod = load_network(content)
    described = describe_integers(mod["main"])
    assert "integer operators" in described
    assert "in float" not in described
    x = np.random.default_rng(2).integers(-128, 128, (1, 8, 9, 16), dtype="int8")
    answer = np.asarray(ts.compile(content, ["llvm"])(x))
    steps = np.abs(answer.astype("int32") - litert(content, x).astype("int32"))
    assert steps.max() <= 3  # the roundings of nine layers


def test_movements_of_integers_stay_in_integers() -> None:
    net = Builder((1, 4, 8, 9), quantised=True)
    order = net.constant(np.array([0, 2, 3, 1], "int32"))
    net.operator("TRANSPOSE", [net.last, order], (1, 8, 9, 4))
    widths = net.constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], "int32"))
    net.operator("PAD", [net.last, widths], (1, 10, 11, 4))
    net.conv(16, 3, same=False)
    content = net.finish()
    mod = load_network(content)
    assert "float" not in describe_integers(mod["main"])
    x = np.random.default_rng(2).integers(-128, 128, (1, 4, 8, 9), dtype="int8")
    answer = np.asarray(ts.compile(content, ["llvm"])(x))
    steps = np.abs(answer.astype("int32") - litert(content, x).astype("int32"))
    assert steps.max() <= 1


def test_weights_in_integers_of_layers_in_float() -> None:
    contents = []
    for weights in ("integers", "dequantised"):
        net = Builder((1, 8, 9, 6), weights=weights)
        net.conv(8, 3)
        net.depthwise(3)
        axes = net.constant(np.array([1, 2], "int32"))
        net.operator("MEAN", [net.last, axes], (1, 8), "ReducerOptions", KeepDims=False)
        net.dense(5)
        contents.append(net.finish())
    x = np.random.default_rng(2).standard_normal((1, 8, 9, 6), dtype=np.float32)
    integers, floats = (np.asarray(ts.compile(content, ["llvm"])(x)) for content in contents)
    np.testing.assert_array_equal(integers, floats)
    np.testing.assert_allclose(floats, litert(contents[1], x), rtol=1e-5, atol=1e-5)


def test_operators_that_are_not_supported() -> None:
    net = Builder((1, 8, 9, 6), quantised=True)
    net.operator("L2_NORMALIZATION", [net.last], net.shape, "L2NormOptions")
    with pytest.raises(ts.UnsupportedError, match="got L2_NORMALIZATION of integers"):
        load_network(net.finish())


def test_names_of_the_file() -> None:
    net = Builder(MAP)
    mobile(net)
    mod = load_network(net.finish())
    assert [param.name for param in mod["main"].params] == ["input"]
    names = [binding.var.name for block in mod["main"].body.blocks for binding in block.bindings]
    assert "conv_2d0" in names
    assert list(mod["main"].attrs["output_names"]) == ["fully_connected11"]


@pytest.mark.full
def test_two_processors(tmp_path: Path) -> None:
    net = Builder((1, 32, 32, 3))
    mobile(net)
    path = tmp_path / "net.tflite"
    path.write_bytes(net.finish())
    x = np.random.default_rng(1).standard_normal((1, 32, 32, 3), dtype=np.float32)
    model = ts.compile(path, ["llvm", "opencl"])
    np.testing.assert_allclose(model(x), litert(path.read_bytes(), x), rtol=1e-5, atol=1e-4)


@functools.cache
def whole() -> bytes:
    net = Builder(MAP)
    mobile(net)
    return net.finish()


@pytest.mark.parametrize("length", [0, 7, 8, 40, 400, 1500])
def test_truncated_files(tmp_path: Path, length: int) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(whole()[:length])
    with pytest.raises((ts.ModelError, ts.UnsupportedError), match="TensorFlow Lite"):
        load_network(path)


def test_damaged_bytes(capfd: pytest.CaptureFixture[str]) -> None:
    """Each reads as a network or raises an error of ours, and TVM prints nothing beside it."""
    rng = np.random.default_rng(0)
    refused = 0
    gc.collect()  # what other tests left may print something
    capfd.readouterr()
    for _ in range(60):
        content = bytearray(whole())
        for place in rng.integers(8, len(content), 4):
            content[place] = int(rng.integers(256))
        try:
            load_network(bytes(content))
        except ts.StretchError:
            refused += 1
    assert refused
    gc.collect()
    assert capfd.readouterr().err == ""


def test_missing_files_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ts.ModelError, match="check the path"):
        load_network(tmp_path / "none.tflite")
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(ts.InstallError, match=r"tvm-stretch\[tflite\]"):
        load_network(whole())


def test_another_shape_is_refused() -> None:
    with pytest.raises(ts.InputError, match="expected 8"):
        load_network(whole(), {"input": (1, 16, 9, 3)})
