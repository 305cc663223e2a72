"""Networks written as ONNX files, with processors and meeting points as metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.quantised_networks import residual
from helpers.relax_helpers import module, random_const
from tvm import relax
from tvm.relax import op

import tvm_stretch as ts
from tvm_stretch.base.errors import PlanError, UnsupportedError

SHAPE = (1, 8, 12, 12)
X = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")


def blocks(x: relax.Expr) -> relax.Expr:
    """Two residual blocks and a classifier."""
    for seed in range(2):
        y = op.nn.relu(op.nn.conv2d(x, random_const(16, 8, 3, 3, seed=seed), padding=1))
        y = op.nn.conv2d(y, random_const(8, 16, 3, 3, seed=9 + seed), padding=1)
        x = op.nn.relu(op.add(x, y))
    pooled = op.reshape(op.mean(x, [2, 3]), (1, 8))
    return op.nn.softmax(op.matmul(pooled, random_const(8, 5)))


def run(path: Path, **inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    return session.run(None, inputs)


def metadata(owner: onnx.NodeProto | onnx.ModelProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in owner.metadata_props}


def values_of(model: onnx.ModelProto) -> set[str]:
    return {name for node in model.graph.node for name in node.output} | {
        value.name for value in model.graph.input
    }


def test_a_network_without_processors(tmp_path: Path) -> None:
    mod = module(blocks, SHAPE)
    path = tmp_path / "net.onnx"
    assert ts.to_onnx(mod, path) is None
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert not any("processor" in key for node in model.graph.node for key in metadata(node))
    (name,) = (value.name for value in model.graph.input)
    (answer,) = run(path, **{name: X})
    np.testing.assert_allclose(answer, ts.compile(mod)(X), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ts.compile(path)(X), answer, rtol=1e-4, atol=1e-6)


def test_branches_and_processors_of_a_plan(tmp_path: Path) -> None:
    mod = module(blocks, SHAPE)
    where = ["llvm", "opencl"]
    path = tmp_path / "net.onnx"
    shared = ts.Plan(("cpu", "opencl"), (), shares={"conv2d": (8, 8)})
    plan = ts.to_onnx(mod, path, where, device="snapdragon-855", plan=shared)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert metadata(model)["tvm_stretch.processors"] == '["cpu", "opencl"]'
    assert plan is not None
    placed = {op: region.processor for region in plan.regions for op in region.operators}
    for node in model.graph.node:
        said = metadata(node)
        assert said["tvm_stretch.processor"] == placed[said["tvm_stretch.operator"]]
    assert {placed["conv2d.p0"], placed["conv2d.p1"]} == {"cpu", "opencl"}
    points = json.loads(metadata(model)["tvm_stretch.meeting_points"])
    assert len(points) > 2 and set(points) <= values_of(model)
    (name,) = (value.name for value in model.graph.input)
    (answer,) = run(path, **{name: X})
    np.testing.assert_allclose(answer, ts.compile(mod)(X), rtol=1e-4, atol=1e-6)


def input_of(path: Path) -> str:
    (value,) = onnx.load(path).graph.input
    return value.name


def test_names_that_values_inside_would_have(tmp_path: Path) -> None:
    """Inputs and outputs keep the names of the source."""
    path, copy = tmp_path / "net.onnx", tmp_path / "copy.onnx"
    nodes = [
        onnx.helper.make_node("Add", ["t0", "c0"], ["relu"]),
        onnx.helper.make_node("Relu", ["relu"], ["t1"]),
        onnx.helper.make_node("Mul", ["t1", "c0"], ["c1"]),
    ]
    inputs = [onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in ("t0", "c0")]
    outputs = [onnx.helper.make_tensor_value_info(n, 1, [2, 3]) for n in ("t1", "c1")]
    graph = onnx.helper.make_graph(nodes, "net", inputs, outputs)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    ts.to_onnx(path, copy)
    given = {name: np.full((2, 3), value, "float32") for name, value in (("t0", 1), ("c0", -3))}
    for answer, expected in zip(run(copy, **given), run(path, **given), strict=True):
        np.testing.assert_array_equal(answer, expected)
    assert [value.name for value in onnx.load(copy).graph.output] == ["t1", "c1"]


def test_a_quantised_network(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    source = residual()
    ts.to_onnx(source, path)
    (info,) = ts.compile(source).inputs
    x = np.random.default_rng(1).standard_normal(info.shape).astype(info.dtype)
    (answer,) = run(path, **{info.name: x})
    expected = np.asarray(ts.compile(source)(x))
    assert np.abs(answer - expected).max() <= np.abs(expected).max() / 60  # some steps of 8 bits


def test_a_smaller_network_returns_the_same(tmp_path: Path) -> None:
    mod = module(blocks, SHAPE)
    small, path = ts.compress(mod, low_rank=0.8), tmp_path / "small.onnx"
    ts.to_onnx(small, path)
    np.testing.assert_allclose(ts.compile(path)(X), ts.compile(small)(X), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    with pytest.raises(UnsupportedError, match="can be written as ONNX, got sin: sin"):
        ts.to_onnx(module(op.sin, (2, 3)), path)
    with pytest.raises(PlanError):
        unknown = ts.Plan(("cpu",), (), shares={"no": (1,)})
        ts.to_onnx(module(blocks, SHAPE), path, "llvm", plan=unknown)
    assert not path.exists()
