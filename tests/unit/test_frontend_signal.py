"""DFT and STFT of ONNX, beside NumPy's Fourier transforms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.relax_helpers import answers
from onnx import helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.read import load_network

RANDOM = np.random.default_rng(0)


def complex_of(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + 1j * (x[..., 1] if x.shape[-1] > 1 else 0)


def numbers_of(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], axis=-1)


def signal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype("float32")


def model(
    op: str, x: np.ndarray, *constants: np.ndarray | int | None, opset: int, **attributes: int
) -> onnx.ModelProto:
    """A network of one node whose other inputs are constants."""
    names = ["x", *("" if value is None else f"c{i}" for i, value in enumerate(constants))]
    node = helper.make_node(op, names, ["y"], name="transform", **attributes)
    weights = [
        numpy_helper.from_array(np.asarray(value), f"c{i}")
        for i, value in enumerate(constants)
        if value is not None
    ]
    floats = onnx.TensorProto.FLOAT
    ports = [
        [helper.make_tensor_value_info(name, floats, shape)]
        for name, shape in (("x", x.shape), ("y", None))
    ]
    graph = helper.make_graph([node], "net", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(network: onnx.ModelProto, x: np.ndarray, expected: np.ndarray) -> None:
    (got,) = answers(load_network(network), x)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("opset", "axis", "parts", "inverse", "length"),
    [
        (17, 1, 1, 0, None),
        (17, -2, 2, 0, 5),
        (17, 2, 2, 1, 12),
        (20, 1, 2, 1, 5),
        (20, -2, 1, 1, None),
        (20, 2, 1, 0, 12),
    ],
)
def test_transforms(opset: int, axis: int, parts: int, inverse: int, length: int | None) -> None:
    x = signal(2, 9, 7, parts)
    given = {"axis": axis} if opset == 17 else {}
    inputs = [length] if opset == 17 else [length, axis]
    network = model("DFT", x, *inputs, opset=opset, inverse=inverse, **given)
    transform = np.fft.ifft if inverse else np.fft.fft
    at = axis % x.ndim
    check(network, x, numbers_of(transform(complex_of(x), length, axis=at)))


@pytest.mark.parametrize("size", [8, 9])
def test_real_signals_and_back(size: int) -> None:
    x = signal(3, size, 1)
    expected = np.fft.rfft(x[..., 0])
    check(model("DFT", x, opset=20, onesided=1), x, numbers_of(expected))
    back = model("DFT", numbers_of(expected), size, opset=20, onesided=1, inverse=1)
    check(back, numbers_of(expected).astype("float32"), x)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("windowed", [False, True])
def test_short_transforms(parts: int, windowed: bool) -> None:
    x, window = signal(2, 50, parts), np.hanning(16).astype("float32") if windowed else None
    length = None if windowed else 16
    network = model("STFT", x, 6, window, length, opset=17, onesided=2 - parts)
    frames = np.stack([complex_of(x)[:, start : start + 16] for start in range(0, 35, 6)], axis=1)
    expected = np.fft.fft(frames * (1 if window is None else window))
    check(network, x, numbers_of(expected[..., :9] if parts == 1 else expected))


def test_one_frame_of_the_whole_signal() -> None:
    x = signal(1, 10, 1)
    expected = numbers_of(np.fft.rfft(x[..., 0]))[:, None]
    check(model("STFT", x, 1, opset=17), x, expected)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (
            model("DFT", signal(1, 8, 3), opset=17),
            r"a last dimension of 1 .* got shape \[1, 8, 3\]",
        ),
        (model("DFT", signal(1, 8, 1), opset=17, axis=2), "DFT .*axis"),
        (model("DFT", signal(1, 8, 2), opset=17, onesided=1), "DFT .*(complex|real)"),
        (model("DFT", signal(1, 8, 1), opset=20, onesided=1, inverse=1), "DFT .*(complex|real)"),
        (model("DFT", signal(1, 8, 1), 0, opset=17), "one number or more"),
        (model("DFT", signal(1, 8, 1), 1 << 20, opset=17), "expected at most 16777216 elements"),
        (model("STFT", signal(1, 8, 1), 0, None, 4, opset=17), "a step, and a frame within"),
        (model("STFT", signal(1, 8, 1), 2, None, 9, opset=17), "a step, and a frame within"),
        (model("STFT", signal(1, 8, 1), 2, np.ones(3, "float32"), 4, opset=17), "STFT .*window"),
        (model("STFT", signal(1, 8, 2), 2, None, 4, opset=17), "expected real numbers"),
        (model("STFT", signal(1, 2, 8, 1), 2, None, 4, opset=17), "STFT"),
    ],
)
def test_refused(network: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ts.StretchError, match=message):
        load_network(network)
