"""Nodes of the graph are named after the user's operators."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import binding_names, module, random_const
from onnx import helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.attributes import KERNELS
from tvm_stretch.network.provenance import table_of
from tvm_stretch.passes.name_kernels import MarkOperators, NameKernels


def node_names(model: ts.Model) -> list[str]:
    return [node.name for node in model.graph.nodes]


def onnx_network(conv: str, relu: str) -> onnx.ModelProto:
    """Convolution with bias, and ReLU, with these names of nodes."""
    weight = np.random.default_rng(0).standard_normal((16, 8, 3, 3)).astype("float32")
    tensors = {"w": weight, "b": np.ones(16, "float32")}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name=conv, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["y"], name=relu),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 16, 6, 6])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("conv", "relu", "expected"),
    [
        ("/layer1/layer1.0/Conv", "act", "/layer1/layer1.0/Conv + /layer1/layer1.0/Conv.add + act"),
        ("same", "same", "same + same.add + same.relu"),
        ("", "", "conv2d + add + relu"),
        ("odd name: 1", "a::1", "odd name: 1 + odd name: 1.add + a::1"),
    ],
)
def test_operators_of_onnx_keep_their_names(conv: str, relu: str, expected: str) -> None:
    model = ts.compile(onnx_network(conv, relu), TARGET, cpu_threads=1)
    assert [n for n in node_names(model) if "channels" not in n] == [expected]
    assert model.plan.regions[0].operators == tuple(expected.split(" + "))
    owner = expected.split(" + ")[0]
    helpers = {node.name for node in model.graph.prepare}
    assert helpers and all(name.startswith(f"{owner}.") for name in helpers)


def test_names_reach_the_timeline_the_profile_and_the_trace() -> None:
    model = ts.compile(onnx_network("first", "second"), TARGET, cpu_threads=1)
    name = "first + first.add + second"
    assert name in node_names(model)
    assert name in [span.name for region in model.timeline().regions for span in region.spans]
    assert name in json.dumps(model.timeline().to_chrome())
    assert name in model.profile(1).table()


def test_parts_on_several_processors_have_the_names_of_the_plan() -> None:
    plan = {
        "format": "tvm_stretch.plan",
        "version": 1,
        "processors": ["cpu", "fake"],
        "regions": [
            {"name": "a", "processor": "cpu", "operators": ["conv.p0", "conv.add.p0", "act.p0"]},
            {"name": "b", "processor": "fake", "operators": ["conv.p1", "conv.add.p1", "act.p1"]},
            {"name": "c", "processor": "cpu", "operators": ["act"]},
        ],
        "shares": {"conv": [8, 8]},
        "refusals": [],
    }
    model = ts.compile(onnx_network("conv", "act"), [TARGET, fake_processor()], plan=plan)
    kernels = [
        name for name in node_names(model) if name.startswith("conv") and "channels" not in name
    ]
    assert kernels == [f"conv.p{k} + conv.add.p{k} + act.p{k}" for k in (0, 1)]


def test_what_has_no_name_helps_the_next_operator_or_the_last() -> None:
    """One kernel for each binding: nothing is fused here."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            first = bb.emit(relax.op.nn.softmax(x))
            named = bb.emit(relax.op.nn.softmax(first), name_hint="chosen")
            last = bb.emit_output(relax.op.nn.softmax(named))
        bb.emit_func_output(last)
    lowered = relax.transform.LegalizeOps()(bb.get())
    after = NameKernels()(relax.transform.FuseOps()(MarkOperators()(lowered)))
    assert binding_names(after) == ["chosen.softmax", "chosen", "chosen.softmax.2"]


def test_a_function_without_names_takes_those_of_its_kernels() -> None:
    mod = module(lambda x: relax.op.nn.softmax(relax.op.add(x, random_const(8))), (4, 8))
    lowered = relax.transform.AnnotateTIROpPattern()(relax.transform.LegalizeOps()(mod))
    after = NameKernels()(relax.transform.FuseOps()(MarkOperators()(lowered)))
    assert all(name.rstrip("0123456789") not in ("lv", "gv") for name in binding_names(after))


def test_a_part_of_a_split_is_copied_for_the_split() -> None:
    """Its own variable is called after the tuple, and is no operator of the plan."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            halves = bb.emit(relax.op.split(x, 2, axis=1), name_hint="halves")
            parts = [bb.emit(relax.TupleGetItem(halves, i), name_hint=f"part{i}") for i in (0, 1)]
            out = bb.emit_output(relax.op.add(*parts))
        bb.emit_func_output(out)
    after = NameKernels()(MarkOperators()(relax.transform.LegalizeOps()(bb.get())))
    table = table_of(after["main"], KERNELS)
    assert table["part0"] == table["part1"]
    assert {table[name].served for name in ("halves", "part0")} == {("halves",)}
