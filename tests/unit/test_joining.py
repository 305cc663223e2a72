"""Several networks as one: the same answers, guards of each, regions side by side."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.search_helpers import costs
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tutorials.zoo.builder import Builder
from tvm_stretch.network.states import read_guards
from tvm_stretch.plan.search import search
from tvm_stretch.read import load_network

SIZE = 28


def chain(seed: int, depth: int = 3) -> onnx.ModelProto:
    b = Builder(seed)
    x = b.input("x", (1, 16, SIZE, SIZE))
    for _ in range(depth):
        x = b.conv_bn(x, 16, 3, act="relu")
    return b.finish("chain", x)


def looked_up(rows: int) -> onnx.ModelProto:
    """Rows of a table, by indices that the network computes."""
    table = np.arange(3 * rows, dtype="float32").reshape(rows, 3)
    nodes = [
        helper.make_node("Add", ["i", "one"], ["j"], "j"),
        helper.make_node("Gather", ["table", "j"], ["y"], "look"),
    ]
    constants = {"table": table, "one": np.asarray([1], "int64")}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    return made


def test_answers_are_those_of_each_network() -> None:
    sources = {"one": chain(0), "other": chain(1, 2)}
    model = ts.compile(ts.join(sources), [TARGET], cpu_threads=1)
    assert [info.name for info in model.inputs] == ["one.x", "other.x"]
    rng = np.random.default_rng(0)
    images = {name: rng.random((1, 16, SIZE, SIZE), "float32") for name in sources}
    answers = model(**{f"{name}.x": image for name, image in images.items()})
    assert all(
        info.name.startswith(f"{n}.") for info, n in zip(model.outputs, sources, strict=True)
    )
    for answer, (name, source) in zip(answers, sources.items(), strict=True):
        alone = ts.compile(source, [TARGET], cpu_threads=1)(images[name])
        np.testing.assert_array_equal(answer, alone)


def test_regions_of_two_networks_run_side_by_side() -> None:
    """Neither network alone is worth a hand-over; both together keep two processors busy."""
    known = costs(1.0, 1.0, meeting=5_000)
    mod = load_network(ts.join({"one": chain(0), "other": chain(1)}))
    best = min(search(mod, known).rivals, key=lambda one: one.cost.ns)
    placed = best.plan.processor_of()
    of_network = {n: {p for op, p in placed.items() if op.startswith(n)} for n in ("one", "other")}
    assert of_network["one"] != of_network["other"]
    assert all(len(processors) == 1 for processors in of_network.values())
    alone = search(load_network(chain(0)), known)
    assert best.cost.ns < 0.75 * 2 * min(one.cost.ns for one in alone.singles)
    device = fake_processor("p1")
    model = ts.compile(mod, [TARGET, device], plan=best.plan, cpu_threads=1)
    image = np.random.default_rng(0).random((1, 16, SIZE, SIZE), "float32")
    for answer, seed in zip(model(image, image), (0, 1), strict=True):
        alone = ts.compile(chain(seed), [TARGET], cpu_threads=1)(image)
        np.testing.assert_allclose(answer, alone, rtol=1e-4, atol=1e-5)


def test_values_are_checked_for_each_network() -> None:
    mod = ts.join({"few": looked_up(4), "many": looked_up(9), "plain": looked_up(5)})
    count, guards = read_guards(mod["main"])
    assert count == 3 and len(guards) == 3
    model = ts.compile(mod, [TARGET], cpu_threads=1)
    low, high = np.asarray([0, 1]), np.asarray([0, 6])
    few, many, _ = model(low, high, low)
    np.testing.assert_array_equal(few[1], [6, 7, 8])
    np.testing.assert_array_equal(many[1], [21, 22, 23])
    with pytest.raises(ts.StretchError, match="of few"):
        model(high, high, low)


def test_what_cannot_be_joined() -> None:
    for wrong in ({}, {"one": chain(0)}, [chain(0), chain(1)], {"": chain(0), "b": chain(1)}):
        with pytest.raises(ts.InputError, match="at least two networks by name for networks"):
            ts.join(wrong)
