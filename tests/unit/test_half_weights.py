"""Weights that float16 or bfloat16 holds exactly are stored with two bytes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers.cpu_targets import QUICK_LANES, host_of
from helpers.relax_helpers import run
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.ir import GenericConst

import tvm_stretch as ts
from tvm_stretch.network.emitting.weights import store_halves
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.read import load_network

DEPTH, OUTPUTS = 72, 150
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def network(rows: int | str, digits: str = "float16", dtype: str = "float32") -> onnx.ModelProto:
    """Two dense layers; weights have the digits of ``digits``, tensors are ``dtype``."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (DEPTH, OUTPUTS), "w1": (OUTPUTS, OUTPUTS)}
    weights = {
        name: rng.standard_normal(shape).astype(TYPES[digits]).astype(dtype)
        for name, shape in shapes.items()
    }
    if digits == "bfloat16":
        for weight in weights.values():
            weight[0, 0] = 2.0**-30  # too small for float16
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["y"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", kind, [rows, DEPTH])],
        [helper.make_tensor_value_info("y", kind, [rows, OUTPUTS])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The answer in float64."""
    first, second = (numpy_helper.to_array(w).astype("float64") for w in model.graph.initializer)
    return np.maximum(x.astype("float64") @ first, 0) @ second


def given(rows: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, DEPTH)).astype("float32")


NUMBERS = DEPTH * OUTPUTS + OUTPUTS * OUTPUTS


@pytest.mark.parametrize("digits", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("lanes", QUICK_LANES)
def test_two_bytes_are_stored(rows: int, lanes: int, digits: str) -> None:
    """Also where LLVM has no instruction that widens them: TVM brings a function."""
    host = host_of(lanes)
    host = dataclasses.replace(host, machine=dataclasses.replace(host.machine, widens_half=True))
    source, x = network(rows, digits), given(rows)
    model = ts.compile(source, [host])
    assert model.graph.weights_bytes < 2 * NUMBERS + 1024
    np.testing.assert_allclose(model(x), expected(source, x), rtol=0, atol=2e-3)


@pytest.mark.parametrize("digits", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 40])
def test_the_meaning_is_the_same(rows: int, digits: str) -> None:
    """TVM's virtual machine computes the plain sums of the packed weights."""
    source, x = network(rows, digits), given(rows)
    mod = BlockChannels({"cpu": host_of(8).machine})(load_network(source))
    types = {str(arg.ty.dtype) for arg in _constants(mod["main"])}
    assert types == {digits}
    np.testing.assert_allclose(run(mod, x)[0], expected(source, x), rtol=0, atol=2e-3)


def _constants(function: relax.Function) -> list[GenericConst]:
    found: list[GenericConst] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst):
            found.append(expr)

    relax.analysis.post_order_visit(function.body, visit)
    return found


def test_a_network_of_float16_is_half_as_large(tmp_path: Path) -> None:
    sizes = []
    for digits in ("float16", "bfloat16", "float32"):
        source = network(3, digits, "float16" if digits == "float16" else "float32")
        model = ts.compile(source, [host_of(8)])
        model.export(tmp_path / f"{digits}.so")
        again = ts.load(tmp_path / f"{digits}.so")
        x = given(3).astype(model.inputs[0].dtype)
        np.testing.assert_array_equal(again(x), model(x))
        sizes.append((tmp_path / f"{digits}.so").stat().st_size)
    assert all(1.8 * NUMBERS < sizes[2] - size < 2.2 * NUMBERS for size in sizes[:2])


@pytest.mark.parametrize("targets", [["llvm"], ["opencl"]])
def test_other_weights_and_processors_keep_float32(targets: list[str]) -> None:
    """A number with more digits, or a processor that would have to widen by itself."""
    source, x = network(2, "float32" if targets == ["llvm"] else "float16"), given(2)
    model = ts.compile(source, targets)
    assert model.graph.weights_bytes >= 4 * NUMBERS
    np.testing.assert_allclose(model(x), expected(source, x), rtol=0, atol=2e-3)


def test_all_processors_of_a_model_read_the_same_bytes() -> None:
    able = dataclasses.replace(host_of(8).machine, widens_half=True)
    other = dataclasses.replace(able, widens_half=False)
    assert store_halves([able, able])
    assert not store_halves([able, other])


def test_lengths_share_the_weights() -> None:
    source = network("n")
    model = ts.compile(source, [host_of(8)], lengths={"n": [1, 30]})
    assert model.graph.weights_bytes < 2 * NUMBERS + 1024
    for rows in (1, 30):
        x = given(rows)
        np.testing.assert_allclose(model(x), expected(source, x), rtol=0, atol=2e-3)


@pytest.mark.parametrize("lanes", QUICK_LANES)
@pytest.mark.parametrize("digits", ["float16", "bfloat16"])
def test_tables_and_windows_of_one_pixel(digits: str, lanes: int) -> None:
    """An embedding, and convolutions of which the third has larger windows and stays float32."""
    rng = np.random.default_rng(0)
    shapes = {
        "table": (200, 12),
        "one": (24, 12, 1, 1),
        "strided": (20, 24, 1, 1),
        "wide": (8, 20, 3, 3),
    }
    weights = {
        name: rng.standard_normal(shape).astype(TYPES[digits]).astype("float32")
        for name, shape in shapes.items()
    }
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["image"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["image", "one"], ["a"]),
        helper.make_node("Conv", ["a", "strided"], ["b"], strides=[2, 2]),
        helper.make_node("Conv", ["b", "wide"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tables",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 3, 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    host = host_of(lanes)
    host = dataclasses.replace(host, machine=dataclasses.replace(host.machine, widens_half=True))
    model = ts.compile(source, [host])
    short = sum(weights[name].size for name in ("table", "one", "strided"))
    assert 0 <= model.graph.weights_bytes - (2 * short + 4 * weights["wide"].size) < 1024
    tokens = rng.integers(0, 200, (1, 9, 9))
    session = pytest.importorskip("onnxruntime").InferenceSession(source.SerializeToString())
    (wanted,) = session.run(None, {"tokens": tokens})
    np.testing.assert_allclose(model(tokens), wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
