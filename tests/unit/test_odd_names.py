"""Names of operators may hold anything: what they mean is data beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.search_helpers import costs
from onnx import helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.make.branching import branch
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.network.operators import Calls
from tvm_stretch.network.provenance import Provenance
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.splits import ChannelSplit, RowSplit
from tvm_stretch.read import load_network

PLAIN = ("first", "act", "second", "last")
ODD = [
    ("a + b", "c", "a + b + c", "d"),
    ("conv", "conv.p0", "conv.p1", "conv.p1.r0"),
    ("x.r0", "x", "x.r0.c1", "x.out"),
    ("/a/b.1/Conv", "/a.b/Relu", "a/b", "/"),
    ("with space", 'with "quotes"', "it's", "back\\slash"),
    ("層", "é + ü", "a\N{ONE DOT LEADER}p1", "\N{GREEK SMALL LETTER ALPHA}"),
    ("lv", "lv3", "gv", "gv1"),
    ("a::1", "a::", "::", "a"),
    ("output0", "output0.copy", "main", "region_r0"),
    ("a", "a.add", "a.relu", "a.add.2"),
    ("<b>", "&amp;", "</script>", "{x}"),
    (" + ", ".", ".p1", "+"),
]
X = np.random.default_rng(1).standard_normal((1, 16, 12, 10)).astype("float32")


def network(names: tuple[str, ...]) -> onnx.ModelProto:
    """Convolution, ReLU, convolution, ReLU with these names of nodes."""
    conv, act, other, last = names
    random = np.random.default_rng(0)
    weights = [random.standard_normal((16, 16, 3, 3)).astype("float32") / 12 for _ in range(2)]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w0"], ["c"], name=conv, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], name=act),
            helper.make_node("Conv", ["r", "w1"], ["o"], name=other, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["o"], ["y"], name=last),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, X.shape)],
        [numpy_helper.from_array(value, f"w{i}") for i, value in enumerate(weights)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def operators(names: tuple[str, ...]) -> list[str]:
    """What the operators are called, in their order."""
    return list(Calls(load_network(network(names))["main"]).calls)


def plan_of(names: tuple[str, ...], way: str) -> ts.Plan:
    """Half of the network for each of two processors."""
    conv, _, other, last = operators(names)
    if way == "shares":
        return ts.Plan(("cpu", "fake"), (), shares={conv: (8, 8), other: (8, 8)})
    if way == "rows":
        return ts.Plan(("cpu", "fake"), (), splits=(RowSplit("x", last, (1, 1)),))
    return ts.Plan(("cpu", "fake"), (), splits=(ChannelSplit("x", last, (1, 1)),))


def compiled(names: tuple[str, ...], way: str) -> ts.Model:
    targets = [TARGET, fake_processor()]
    return ts.compile(network(names), targets, plan=plan_of(names, way), cpu_threads=1)


@pytest.mark.parametrize(
    "names", [*ODD[:4], *(pytest.param(names, marks=pytest.mark.full) for names in ODD[4:])]
)
def test_the_search_sees_every_operator(names: tuple[str, ...]) -> None:
    """The same kernels, at the same price, as with plain names."""
    found = []
    for chosen in (PLAIN, names):
        mod, known = load_network(network(chosen)), costs(1.0, 1.0, meeting=100)
        graph = Network(mod, known.kernels).graph
        whole = [known.whole(group, 0) for group in graph.groups]
        result = search(mod, known)
        plans = [(c.cost.ns, c.busy, c.what) for c in (*result.singles, *result.rivals)]
        found.append((len(graph.groups), whole, plans))
    assert found[0] == found[1]
    assert found[0][0] == 2 and all(found[0][1])


@pytest.mark.variants(4)
@pytest.mark.parametrize("way", ["shares", "rows", "channels"])
@pytest.mark.parametrize("names", ODD, ids=range(len(ODD)))
def test_parts_know_their_operator_and_owner(names: tuple[str, ...], way: str) -> None:
    plan = plan_of(names, way)
    mod = load_network(network(names))
    branched = branch(mod, plan.shares, plan.splits)
    for of in operators(names)[: 3 if way == "channels" else 4]:  # sums are rectified once
        own = [part for part in branched.parts.values() if part.operators == (of,)]
        assert {part.owner for part in own} >= {0, 1} and {part.part for part in own} >= {0, 1}


@pytest.mark.parametrize(
    "names", [*ODD[:2], *(pytest.param(names, marks=pytest.mark.full) for names in ODD[2:])]
)
@pytest.mark.parametrize("way", ["shares", "rows", "channels"])
def test_models_of_odd_names(names: tuple[str, ...], way: str, tmp_path: Path) -> None:
    model, plain = compiled(names, way), compiled(PLAIN, way)
    np.testing.assert_array_equal(model(X), plain(X))
    assert shapes(model.graph) == shapes(plain.graph)
    execution = model.plan.execution
    assert execution is not None and execution.strays == ()
    assert execution.without_kernel == tuple(
        dict(zip(plain.plan.processor_of(), model.plan.processor_of(), strict=True))[name]
        for name in plain.plan.execution.without_kernel
    )
    assert model.timeline(repeat=1).execution == execution
    assert f"0 of {execution.operators} operators fell back" in model.plan.explain()
    model.export(tmp_path / "net.so")
    loaded = ts.load(tmp_path / "net.so")
    assert loaded.graph == model.graph
    np.testing.assert_array_equal(loaded(X), plain(X))
    loaded.report(tmp_path / "net.html")
    assert "</script><" not in (tmp_path / "net.html").read_text().replace("</script>\n", "")


def shapes(graph: Graph) -> list[tuple[object, ...]]:
    """What each node computes and helps, in numbers."""
    return [
        (len(p.operators), len(p.helpers), p.part, p.owner)
        for p in (node.provenance for node in (*graph.prepare, *graph.nodes))
    ]


def test_provenance_stands_in_the_graphs_json() -> None:
    model = compiled(("a + b", ".p1", "c", "d"), "shares")
    data = json.loads(model.graph.to_json())
    found = [node["provenance"] for node in data["nodes"]]
    assert {"operators": ["a + b.p1", ".p1.p1"], "part": 1, "owner": 1} in found
    assert Graph.from_json(model.graph.to_json()) == model.graph


@pytest.mark.parametrize("damage", [{"operators": 3}, {"helpers": [3]}, {"part": "1"}, {"x": 1}, 3])
def test_damaged_provenance_is_refused(damage: object) -> None:
    model = ts.compile(network(PLAIN), TARGET, cpu_threads=1)
    data = json.loads(model.graph.to_json())
    data["nodes"][0]["provenance"] = damage
    with pytest.raises(ts.ArtifactError, match=r"provenance of nodes\[0\]"):
        Graph.from_json(json.dumps(data))


def test_a_kernel_of_parts_is_one() -> None:
    parts = {"a.p1": Provenance(("a",), part=1, owner=2)}
    assert Provenance(("a.p1",)).in_part(parts) == Provenance(("a.p1",), part=1, owner=2)
    assert Provenance(helpers=("a",)).in_part(parts) == Provenance(helpers=("a",))
