"""Where operators really run: told from the graph that is executed, not by the plan."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_targets import TARGET, fake_processor
from helpers.onnx_models import every_template

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.make.branching import branch
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.network.operators import Calls
from tvm_stretch.network.provenance import Provenance
from tvm_stretch.plan.plan import Execution, Plan, Stray
from tvm_stretch.plan.splits import ChannelSplit, RowSplit
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.run.plans_of_model import NOWHERE, find_execution
from tvm_stretch.run.timeline import read_timeline

NAMES = ("cpu", "fake")
IMAGE = np.ones((1, 3, 19, 19), "float32")
SHARES_ROWS_CHANNELS = {
    "squeezenet1_1": Plan(
        NAMES,
        (),
        shares={f"conv_{i}": (32, 32) for i in (2, 3, 5, 6)},
        splits=(RowSplit("concat_3", "concat_5", (2, 1)),),
    ),
    "resnet18": Plan(
        NAMES,
        (),
        shares={"conv_5": (48, 80), "conv_6": (64, 64), "conv_16": (256, 256)},
        splits=(RowSplit("maxpool_0", "relu_2", (1, 1)), ChannelSplit("relu_2", "relu_4", (1, 1))),
    ),
    "mobilenet_v2": Plan(
        NAMES, (), splits=(ChannelSplit("batchnormalization_5", "add_0", (1, 1)),)
    ),
}
NEEDS_NO_KERNEL = {"relax.concat", "relax.reshape", "relax.strided_slice", "relax.split"}


def doctored(model: ts.Model, **fields: object) -> ts.Model:
    """The model with another graph: what a compiler that breaks its promise would make."""
    parts = model.parts
    assert parts is not None
    graph = dataclasses.replace(parts.graph, **fields)
    return Model(model.module, parts=dataclasses.replace(parts, graph=graph))


def moved(graph: Graph, region: str, processor: int) -> tuple:
    return tuple(
        dataclasses.replace(r, processor=processor) if r.name == region else r
        for r in graph.regions
    )


@pytest.fixture(scope="module")
def model() -> ts.Model:
    """A network whose first region is the CPU's, the second the other processor's."""
    network = every_template()
    names = list(Calls(load_network(network)["main"]).calls)
    regions = [("first", "cpu", names[:5]), ("second", "fake", names[5:])]
    data = {"format": "tvm_stretch.plan", "version": 1, "processors": NAMES}
    data["regions"] = [{"name": n, "processor": p, "operators": o} for n, p, o in regions]
    model = ts.compile(network, [TARGET, fake_processor()], plan=data, cpu_threads=1, debug=True)
    model(IMAGE)  # a trace runs on the inputs that were last set
    return model


def test_a_plan_that_is_carried_out(model: ts.Model) -> None:
    execution = model.plan.execution
    assert execution is not None and execution.operators == len(model.plan.processor_of())
    assert execution.strays == ()
    assert f"0 of {execution.operators} operators fell back" in model.plan.explain()
    assert f"0 of {execution.operators} operators fell back" in repr(model.timeline(repeat=1))


def test_a_region_on_another_processor_is_found(model: ts.Model) -> None:
    broken = doctored(model, regions=moved(model.graph, "first", 1))
    execution = broken.plan.execution
    assert execution is not None
    assert {s.operator for s in execution.strays} == set(model.plan.regions[0].operators)
    assert {(s.planned, s.found) for s in execution.strays} == {("cpu", "fake")}
    text = f"5 of {execution.operators} operators fell back: conv2d from cpu to fake, "
    assert text in broken.plan.explain()


def test_a_kernel_in_another_region_is_found(model: ts.Model) -> None:
    """The last kernel of the first region runs in the second one."""
    first, second, *others = model.graph.regions
    stray = first.nodes[-1]
    regions = (
        dataclasses.replace(first, nodes=first.nodes[:-1]),
        dataclasses.replace(second, nodes=(stray, *second.nodes)),
        *others,
    )
    execution = doctored(model, regions=regions).plan.execution
    assert execution is not None
    named = model.graph.nodes[stray].provenance.operators
    assert execution.strays == tuple(Stray(name, "cpu", "fake") for name in named)


def test_a_kernel_that_a_run_leaves_out_is_found(model: ts.Model) -> None:
    model(IMAGE)
    trace = json.loads(model.module["trace"]())
    assert read_timeline(model.graph, trace, model.plan).execution == model.plan.execution
    del trace["regions"][0][0]
    execution = read_timeline(model.graph, trace, model.plan).execution
    assert execution is not None
    names = model.graph.nodes[model.graph.regions[0].nodes[0]].provenance.served
    assert execution.strays == tuple(Stray(name, "cpu", NOWHERE) for name in names)


def test_an_artifact_that_does_not_run_as_planned_is_refused(
    model: ts.Model, tmp_path: Path
) -> None:
    model.export(tmp_path / "right.so")
    loaded = ts.load(tmp_path / "right.so")
    assert loaded.plan.execution == model.plan.execution
    plan = json.loads(model.plan.to_json().replace('"fake"', '"?"').replace('"cpu"', '"fake"'))
    plan = json.loads(json.dumps(plan).replace('"?"', '"cpu"'))
    doctored(model, plan=plan).export(tmp_path / "wrong.so")
    with pytest.raises(ts.ArtifactError, match=r"^expected regions as the plan .*, got others: "):
        ts.load(tmp_path / "wrong.so")
    doctored(model, plan={**plan, "regions": 3}).export(tmp_path / "damaged.so")
    with pytest.raises(ts.PlanError, match="a list for regions"):
        ts.load(tmp_path / "damaged.so")


def test_helpers_belong_to_their_operator_and_names_mean_nothing() -> None:
    planned = {"a.b": "cpu", "a.b.add": "fake", "c": "fake", "view": "cpu"}
    first = [Provenance(helpers=("a.b",)), Provenance(("a.b",))]
    second = [Provenance(("a.b.add", "c")), Provenance(helpers=("c",)), Provenance()]
    graph = graph_of({0: first, 1: second})
    assert find_execution(planned, graph) == Execution(4, (), ("view",))
    assert str(find_execution(planned, graph)) == "0 of 4 operators fell back"
    assert find_execution(planned, graph, ran=[0, 1, 3, 4]).strays == (
        Stray("a.b.add", "fake", NOWHERE),
        Stray("c", "fake", NOWHERE),
    )


def graph_of(kernels: dict[int, list[Provenance]]) -> Graph:
    """Regions of both processors with such kernels, all called after another operator."""
    from tvm_stretch.make.lowering.executor_graph import CPU, Node, ProcessorSpec, Region

    nodes = [Node("k", "view", (), (), one) for listed in kernels.values() for one in listed]
    ids = iter(range(len(nodes)))
    regions = [
        Region(f"r{p}", p, tuple(next(ids) for _ in listed), (), (), ())
        for p, listed in kernels.items()
    ]
    processors = (CPU, ProcessorSpec("fake", "fake"))
    return Graph((), (), (), (), tuple(nodes), processors, tuple(regions), 0, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        "squeezenet1_1",
        pytest.param("mobilenet_v2", marks=pytest.mark.full),
        pytest.param("resnet18", marks=pytest.mark.full),
    ],
)
def test_nothing_falls_back_in_branched_networks(name: str) -> None:
    """Shares, rows and channels: every kernel runs where its operator was planned."""
    network, plan = zoo.build(name, size=64), SHARES_ROWS_CHANNELS[name]
    targets = [TARGET, fake_processor()]
    model = ts.compile(network, targets, plan=plan, cpu_threads=1)
    alone = ts.compile(network, TARGET, cpu_threads=1)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), dtype="float32")
    want, got = alone(x), model(x)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    execution = model.plan.execution
    assert execution is not None and execution.strays == ()
    assert model.timeline(repeat=1).execution == execution
    assert set(model.plan.processor_of().values()) == set(NAMES)
    canonical = load_network(network)
    parts = branch(canonical, plan.shares, plan.splits)
    calls = Calls(parts.mod["main"]).calls
    assert {calls[operator].op.name for operator in execution.without_kernel} <= NEEDS_NO_KERNEL
