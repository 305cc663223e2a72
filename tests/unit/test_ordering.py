"""TopK, ArgMax and maxima: their order, NaN, and integers whose sums are larger than they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from helpers.gpu_checks import NEEDS_DEVICE, described_gpu, needs_cpu_device
from helpers.onnx_models import run_onnxruntime
from helpers.relax_helpers import module, run
from onnx import helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network

NAN, INF = np.nan, np.inf
NUMBERS = np.float32(
    [
        [NAN, NAN, NAN, NAN],
        [1, NAN, 3, 3],
        [NAN, 2, 1, 2],
        [3, 2, 2, NAN],
        [-INF, NAN, INF, NAN],
        [INF, 1, 2, -INF],
        [-INF, -INF, -INF, -INF],
        [0, 0, 0, 0],
    ]
)
LONG = np.random.default_rng(0).standard_normal((3, 70)).astype("float32")
LONG[[0, 1, 2], [33, 0, 69]] = NAN


def one(op: str, x: np.ndarray, *constants: np.ndarray, outputs: int = 1, **attributes: object):
    """A model of one node."""
    weights = [numpy_helper.from_array(c, f"c{i}") for i, c in enumerate(constants)]
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x", *(w.name for w in weights)], names, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_empty_tensor_value_info(name) for name in names],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def answers(model: onnx.ModelProto, x: np.ndarray, target: object = TARGET) -> list[np.ndarray]:
    result = ts.compile(model, [target], cpu_threads=1)(x)
    return list(result) if isinstance(result, tuple) else [result]


def check_top_k(x: np.ndarray, largest: int, target: object) -> None:
    values, places = answers(one("TopK", x, np.array([3]), outputs=2, largest=largest), x, target)
    nan, sign = np.isnan(x), -1 if largest else 1
    order = np.lexsort((sign * np.where(nan, 0, x), sign * nan.astype(int)), axis=-1)
    np.testing.assert_array_equal(places, order[:, :3])
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("x", [NUMBERS, LONG], ids=["short", "long"])
def test_top_k_orders_nan_as_the_largest(x: np.ndarray, largest: int) -> None:
    """As ONNX Runtime 1.32 does, NumPy and PyTorch; not every version of ONNX Runtime."""
    check_top_k(x, largest, TARGET)


@needs_cpu_device
def test_top_k_of_a_device_that_is_a_cpu() -> None:
    check_top_k(NUMBERS, 1, "opencl")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_top_k_along_an_axis(axis: int) -> None:
    x = np.random.default_rng(1).integers(0, 5, (4, 6, 5)).astype("int32")  # with many equals
    model = one("TopK", x, np.array([4]), outputs=2, axis=axis)
    for want, got in zip(run_onnxruntime(model, {"x": x}), answers(model, x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_top_k_of_many(order: str) -> None:
    """As RT-DETR asks for it."""
    x = np.random.default_rng(0).standard_normal((1, 8_400)).astype("float32")
    x = {"random": x, "ascending": np.sort(x), "descending": np.sort(x)[:, ::-1].copy()}[order]
    model = one("TopK", x, np.array([300]), outputs=2)
    values, indices = answers(model, x)
    places = np.argsort(-x, kind="stable")[:, :300]
    np.testing.assert_array_equal(indices, places)
    np.testing.assert_array_equal(values, np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("k", [1, 3, 20])
def test_top_k_of_long_rows_with_equals_and_nan(k: int, largest: int) -> None:
    x = np.random.default_rng(k).integers(0, 50, (3, 700)).astype("float32")
    x[1, [5, 300, 690]] = NAN
    x[2, :650] = NAN
    model = one("TopK", x, np.array([k]), outputs=2, largest=largest)
    _, places = answers(model, x)
    order = np.where(np.isnan(x), INF, x) * (-1 if largest else 1)
    np.testing.assert_array_equal(places, np.argsort(order, kind="stable")[:, :k])


@pytest.mark.parametrize("exponent", [2, 3])
def test_powers_of_integers_are_exact(exponent: int) -> None:
    x = np.array([[-3, 7, 2**31 + 1, 2_000_003]])
    (got,) = answers(one("Pow", x, np.array([exponent])), x)
    np.testing.assert_array_equal(got, x**exponent)


def test_all_of_a_row_are_sorted_and_none_too() -> None:
    mod = module(lambda x: relax.op.argsort(x, 1), (2, 50))
    x = np.random.default_rng(0).standard_normal((2, 50)).astype("float32")
    np.testing.assert_array_equal(run(load_network(mod), x)[0], np.argsort(x))
    values, indices = answers(one("TopK", x, np.array([0]), outputs=2), x)
    assert values.shape == indices.shape == (2, 0)


def test_what_top_k_refuses() -> None:
    x = np.zeros((1, 40_000), "float32")
    with pytest.raises(UnsupportedError, match="at most 1073741824 for K times elements"):
        load_network(one("TopK", x, np.array([40_000]), outputs=2))


PLACES = {
    ("ArgMax", 0): lambda x, axis: np.argmax(x, axis),
    ("ArgMin", 0): lambda x, axis: np.argmin(x, axis),
    ("ArgMax", 1): lambda x, axis: x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis),
    ("ArgMin", 1): lambda x, axis: x.shape[axis] - 1 - np.argmin(np.flip(x, axis), axis),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("op", "last"), PLACES)
@pytest.mark.parametrize("x", [NUMBERS, LONG], ids=["short", "long"])
def test_places_of_extremes_are_numpys(x: np.ndarray, op: str, last: int, axis: int) -> None:
    model = one(op, x, axis=axis, keepdims=0, select_last_index=last)
    np.testing.assert_array_equal(answers(model, x)[0], PLACES[op, last](x, axis))
    without = np.nan_to_num(x, nan=0.5)
    want = run_onnxruntime(model, {"x": without})[0]
    np.testing.assert_array_equal(answers(model, without)[0], want)


def test_places_of_relax_networks() -> None:
    mod = module(lambda x: relax.op.argmax(x, 1, keepdims=True), NUMBERS.shape)
    compiled = ts.compile(mod, [TARGET])
    np.testing.assert_array_equal(compiled(NUMBERS), NUMBERS.argmax(1)[:, None])
    mod = module(lambda x: relax.op.argmin(x), NUMBERS.shape)
    assert ts.compile(mod, [TARGET])(NUMBERS) == NUMBERS.argmin()


DEVICES = [
    TARGET,
    pytest.param("opencl", marks=NEEDS_DEVICE),
    pytest.param(described_gpu(), marks=NEEDS_DEVICE),
]
"""A CPU, the OpenCL device here with its own kernels, and the same device with those of a GPU."""

on_devices = pytest.mark.parametrize("target", DEVICES, ids=["llvm", "opencl", "gpu"])


@pytest.mark.variants(2)
@on_devices
@pytest.mark.parametrize("axes", [[0], [1], [0, 1]])
@pytest.mark.parametrize("x", [NUMBERS, LONG, LONG.repeat(9, 0)], ids=["short", "long", "wide"])
def test_nan_passes_through_extremes(x: np.ndarray, axes: list[int], target: object) -> None:
    for op, function in (("ReduceMax", np.max), ("ReduceMin", np.min)):
        model = one(op, x, np.array(axes), keepdims=0)
        np.testing.assert_array_equal(answers(model, x, target)[0], function(x, tuple(axes)))


@on_devices
def test_nan_passes_through_pools(target: object) -> None:
    x = np.random.default_rng(0).standard_normal((1, 20, 6, 6)).astype("float32")
    x[0, 3, 2, 2], x[0, 5], x[0, 6] = NAN, NAN, -INF
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    model = one("MaxPool", x, kernel_shape=[2, 2])
    np.testing.assert_array_equal(answers(model, x, target)[0], windows.max((-1, -2)))
    model = one("GlobalMaxPool", x)
    np.testing.assert_array_equal(answers(model, x, target)[0], x.max((2, 3), keepdims=True))


ELEMENTWISE = {
    "relu": ("Relu", ()),
    "clip": ("Clip", (np.float32(0), np.float32(6))),
    "softmax": ("Softmax", ()),
    "log of softmax": ("LogSoftmax", ()),
    "maximum": ("Max", (np.float32(0),)),
}


@pytest.mark.variants(2)
@on_devices
@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("x", [NUMBERS, LONG], ids=["short", "long"])
def test_nan_elsewhere_is_onnx_runtimes(x: np.ndarray, name: str, target: object) -> None:
    op, constants = ELEMENTWISE[name]
    model = one(op, x, *constants)
    want = run_onnxruntime(model, {"x": x})[0]
    # sums of 70 powers, quotients and logarithms of them: 70 roundings, of numbers below 8
    bound = 2 * 80 * 2.0**-24 * 8
    np.testing.assert_allclose(answers(model, x, target)[0], want, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_integers_whose_sum_is_too_large(dtype: str) -> None:
    most = np.iinfo(dtype).max
    rows = [[most, 1, 5], [-most - 1, -1, -7], [most // 2] * 3, [-7, -8, -2], [7, 8, 2]]
    x = np.array(rows, dtype)
    model = one("ReduceMean", x, np.array([1]))
    np.testing.assert_array_equal(answers(model, x)[0], run_onnxruntime(model, {"x": x})[0])


def test_sums_of_integers_wrap_around() -> None:
    """As ONNX's reference and NumPy do: docs/differences.md lists it."""
    x = np.int32([[2**31 - 1, 1, 5], [-(2**31), -1, -7]])
    (got,) = answers(one("ReduceSum", x, np.array([1]), keepdims=0), x)
    np.testing.assert_array_equal(got, x.sum(1, dtype="int32"))
