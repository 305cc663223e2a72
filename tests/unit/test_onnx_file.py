"""Networks written as ONNX files, with processors and meeting points as metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from helpers.quantised_networks import residual
from helpers.relax_helpers import module, random_const
from helpers.search_helpers import costs
from helpers.stretch_networks import SIZE, basic, network
from tvm import relax
from tvm.relax import op

import tvm_stretch as ts
from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.passes.duplicate_and_scale import branch_operators, duplicate_and_scale
from tvm_stretch.plan.design import Design
from tvm_stretch.plan.search.candidates import as_designed
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.read import load_network

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
    listed = json.loads(metadata(model)["tvm_stretch.processors"])
    assert {who: len(names) for who, names in listed.items()} == {"cpu": 15, "opencl": 2}
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


def stretched() -> tvm.IRModule:
    """A network with a branch on each processor."""
    mod = network(basic)
    stage = detect_stages(mod)[-1]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output)]
    return duplicate_and_scale(mod, Design.of_lists(ends, ["cpu", "opencl"], [[2, 2]], [[32, 32]]))


def designed(source: object) -> dict[str, str]:
    """The processor of each operator in the plan with the branches as designed."""
    known = costs(1.0, 1.0, meeting=100)
    names = [replace(p, name=n) for p, n in zip(known.processors, ("cpu", "opencl"), strict=True)]
    models = {"cpu": known.models["cpu"], "opencl": known.models["p1"]}
    own = replace(known, processors=tuple(names), models=models)
    found = as_designed(Network(load_network(source), own.kernels), own)
    assert isinstance(found, Candidate)
    return found.plan.processor_of()


def without_notes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The file as tools leave it that know nothing of the metadata of nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        del node.metadata_props[:]
    return copy


def test_branches_of_a_stretched_network_are_read_back(tmp_path: Path) -> None:
    mod, path = stretched(), tmp_path / "net.onnx"
    ts.to_onnx(mod, path)
    wanted, got = designed(mod), designed(path)
    owner = {n: who for who, names in branch_operators(mod).items() for n in names}
    placed = {name for name in owner if name in wanted}
    assert len(placed) > 6 and {wanted[name] for name in placed} == {"cpu", "opencl"}
    assert {name: got[name] for name in placed} == {name: wanted[name] for name in placed}
    assert designed(without_notes(onnx.load(path))) == got
    again = tmp_path / "again.onnx"
    ts.to_onnx(path, again)
    both = [metadata(onnx.load(one)) for one in (path, again)]
    assert both[0] == both[1], "the same processors and meeting points"


def test_branches_of_a_stretched_network_stay_in_8_bits() -> None:
    mod = stretched()
    images = np.random.default_rng(0).standard_normal((2, 3, SIZE, SIZE)).astype("float32")
    small = ts.quantize(mod, images)
    wanted = designed(mod)
    layers = {n: who for n, who in wanted.items() if ".b" in n and n.startswith("conv")}
    assert set(layers.values()) == {"cpu", "opencl"}
    for one in (small, without_notes(small)):
        got = designed(one)
        assert {name: got[name] for name in layers} == layers


@pytest.mark.parametrize("text", ['["cpu", "opencl"]', '{"cpu": [1]}', "{", '{"cpu": "conv"}'])
def test_metadata_that_are_no_lists_of_nodes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net.onnx"
    ts.to_onnx(module(blocks, SHAPE), path)
    model = onnx.load(path)
    model.metadata_props.add(key="tvm_stretch.processors", value=text)
    with pytest.raises(ts.ModelError, match="expected lists of nodes by processor"):
        load_network(model)


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
