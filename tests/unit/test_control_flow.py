"""If, Loop and Scan whose course data decide: right answers, and kernels that are skipped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import answers
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_stretch as ts
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.states import CONDITIONS, read_conditions
from tvm_stretch.passes import KeepConditions
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network

SHAPE = (1, 8, 6, 6)
RNG = np.random.default_rng(0)
WEIGHTS = {name: (RNG.standard_normal((8, 8, 3, 3)) / 9).astype("float32") for name in ("w0", "w1")}


def tensor(name: str, shape: tuple[int, ...] | None = SHAPE, kind: int = 1) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], *outputs: str
) -> onnx.ModelProto:
    constants = {**WEIGHTS, "zero": np.float32(0), "one": np.float32(1), "half": np.float32(0.5)}
    stored = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    results = [tensor(name, None) for name in outputs]
    graph = helper.make_graph(nodes, "graph", inputs, results, stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def branch(name: str, weight: str) -> onnx.GraphProto:
    nodes = [
        helper.make_node("Conv", ["x", weight], [f"{name}1"], f"{name}1", pads=[1] * 4),
        helper.make_node("Relu", [f"{name}1"], [f"{name}2"], f"{name}2"),
        helper.make_node("Conv", [f"{name}2", weight], [name], name, pads=[1] * 4),
    ]
    return helper.make_graph(nodes, name, [], [tensor(name)])


def chosen(condition: str) -> onnx.NodeProto:
    """One of two branches, each of which has two convolutions."""
    graphs = {"then_branch": branch("yes", "w0"), "else_branch": branch("no", "w1")}
    return helper.make_node("If", [condition], ["y"], "choice", **graphs)


def computed() -> onnx.ModelProto:
    """A branch that the sum of the input decides."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["c"], "c"),
        chosen("c"),
    ]
    return model_of(nodes, [tensor("x")], "y")


def halved(count: str = "") -> onnx.ModelProto:
    """``while sum(v) > 1: v = relu(v) / 2``, and all values of v, perhaps at most n times."""
    nodes = [
        helper.make_node("Relu", ["v"], ["r"], "r"),
        helper.make_node("Mul", ["r", "half"], ["v2"], "v2"),
        helper.make_node("ReduceSum", ["v2"], ["s"], "s", keepdims=0),
        helper.make_node("Greater", ["s", "one"], ["c2"], "c2"),
        helper.make_node("Identity", ["v2"], ["seen"], "seen"),
    ]
    given = [tensor("i", (), TensorProto.INT64), tensor("c", (), TensorProto.BOOL), tensor("v")]
    results = [tensor("c2", (), TensorProto.BOOL), tensor("v2"), tensor("seen")]
    body = helper.make_graph(nodes, "body", given, results)
    loop = helper.make_node("Loop", [count, "", "x"], ["y", "all"], "halving", body=body)
    more = [tensor(count, (), TensorProto.INT64)] if count else []
    return model_of([loop], [tensor("x"), *more], "y", "all")


def conditional(graph: Graph) -> dict[str, int]:
    return {node.name: node.when[1] for node in graph.nodes if node.when}


def ran_in(model: ts.Model, **inputs: np.ndarray) -> set[str]:
    """The kernels of a run."""
    for name, value in inputs.items():
        model.module["set_input"](name, tvm.runtime.tensor(value))
    spans = [span for spans in json.loads(model.module["trace"]())["regions"] for span in spans]
    return {model.graph.nodes[span["id"]].name for span in spans if span["kind"] == "kernel"}


def images(*means: float) -> list[np.ndarray]:
    return [(RNG.random(SHAPE) * mean / 0.5 / np.prod(SHAPE)).astype("float32") for mean in means]


def test_only_the_branch_that_is_taken_runs() -> None:
    source = computed()
    model = ts.compile(source, [TARGET], cpu_threads=1)
    assert set(conditional(model.graph).values()) == {0, 1}
    assert sum(wanted for wanted in conditional(model.graph).values()) == 2
    reference = ReferenceEvaluator(source)
    for image, name in zip(images(9, -9), ("yes", "no"), strict=True):
        (want,) = reference.run(None, {"x": image})
        np.testing.assert_allclose(model(image), want, rtol=1e-4, atol=1e-5)
        skipped = {node.name for node in model.graph.nodes} - ran_in(model, x=image)
        assert skipped and not any(name in kernel for kernel in skipped)


def test_a_condition_may_be_an_input_of_one_element() -> None:
    inputs = [tensor("x"), tensor("c", (1,), TensorProto.BOOL)]
    source = model_of([chosen("c")], inputs, "y")
    model = ts.compile(source, [TARGET], cpu_threads=1)
    (image,) = images(3)
    for flag in (True, False):
        flags = np.asarray([flag])
        (want,) = ReferenceEvaluator(source).run(None, {"x": image, "c": flags})
        np.testing.assert_allclose(model(image, flags), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", ["", "n"])
def test_a_loop_that_data_end(count: str) -> None:
    source = halved(count)
    model = ts.compile(source, [TARGET], cpu_threads=1)
    lengths = []
    for image in images(0.3, 3, 50):
        more = {"n": np.asarray(3)} if count else {}
        seen, value = [], image
        while not seen or (value.sum() > 1 and len(seen) < int(more.get("n", 99))):
            value = np.maximum(value, 0) * np.float32(0.5)
            seen.append(value)
        got = model(x=image, **more)
        np.testing.assert_allclose(got[0], value, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(got[1], np.stack(seen), rtol=1e-5, atol=1e-7)
        lengths.append((len(seen), len(ran_in(model, x=image, **more))))
    assert len({*lengths}) == 3 and lengths == sorted(lengths)
    with pytest.raises(ts.StretchError, match="iterations of Loop 'halving' after the first 32"):
        model(x=np.full(SHAPE, 1e20, "float32"), **({"n": np.asarray(99)} if count else {}))
    (image,) = images(3)
    assert model(x=image, **({"n": np.asarray(0)} if count else {}))[0].shape == SHAPE


def test_operators_of_a_condition_are_listed_and_nothing_else() -> None:
    mod = load_network(computed())
    known = read_conditions(mod["main"])
    by_wanted = {wanted: {n for n, c in known.items() if c.wanted == wanted} for wanted in (0, 1)}
    assert len(by_wanted[1]) == len(by_wanted[0]) == 3 and all(
        c.result == 1 for c in known.values()
    )
    again = KeepConditions()(mod)
    assert read_conditions(again["main"]) == known
    plain = load_network(model_of([helper.make_node("Relu", ["x"], ["y"])], [tensor("x")], "y"))
    assert CONDITIONS not in (plain["main"].attrs or {})
    (image,) = images(3)
    (want,) = ReferenceEvaluator(computed()).run(None, {"x": image})
    np.testing.assert_allclose(answers(mod, image)[0], want, rtol=1e-4, atol=1e-5)


def test_other_processors_compute_both_branches() -> None:
    """A plan may put one branch elsewhere: the CPU skips its own, and waits for the condition."""
    source, other = computed(), fake_processor("p1")
    mod = load_network(source)
    known = read_conditions(mod["main"])
    moved = {op.name for op in Operators(mod["main"]) if op.name in known and known[op.name].wanted}
    regions = []
    for name in (op.name for op in Operators(mod["main"])):
        where = "p1" if name in moved else "cpu"
        if regions and regions[-1].processor == where:
            regions[-1] = replace(regions[-1], operators=(*regions[-1].operators, name))
        else:
            regions.append(PlannedRegion(f"r{len(regions)}", where, (name,)))
    plan = Plan(("cpu", "p1"), tuple(regions))
    model = ts.compile(source, [TARGET, other], plan=plan, cpu_threads=1)
    assert set(conditional(model.graph).values()) == {0}
    for image in images(9, -9):
        (want,) = ReferenceEvaluator(source).run(None, {"x": image})
        np.testing.assert_allclose(model(image), want, rtol=1e-4, atol=1e-5)


def test_branches_of_two_shapes_are_refused() -> None:
    longer = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["no"], axis=1)], "no", [], [tensor("no", None)]
    )
    node = helper.make_node(
        "If", ["c"], ["y"], "choice", then_branch=branch("yes", "w0"), else_branch=longer
    )
    inputs = [tensor("x"), tensor("c", (), TensorProto.BOOL)]
    with pytest.raises(ts.UnsupportedError, match="tensors of one shape and type, whatever is"):
        load_network(model_of([node], inputs, "y"))


def test_a_graph_with_conditions_is_written_and_read() -> None:
    graph = ts.compile(computed(), [TARGET], cpu_threads=1).graph
    assert Graph.from_json(graph.to_json()) == graph
    plain = replace(graph, nodes=tuple(replace(node, when=()) for node in graph.nodes))
    assert '"when"' in graph.to_json() and '"when"' not in plain.to_json()
