"""The whole compiler with several processors: the same answer, wherever operators run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.random_networks import WITH_CONVOLUTIONS, networks, plans
from helpers.relax_helpers import answers, module, random_const, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import PlanError, TargetError, UnsupportedError
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network

Operators = list[str]


def compile_with(
    mod: tvm.IRModule, planned: object, *others: object, **options: object
) -> ts.Model:
    targets = [TARGET, *(others or [fake_processor()])]
    return ts.compile(mod, targets, plan=planned, cpu_threads=1, debug=True, **options)


def outputs(model: ts.Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    result = model(*inputs)
    return list(result) if isinstance(result, tuple) else [result]


def check(mod: tvm.IRModule, planned: Plan, *others: object) -> ts.Model:
    """Compile, run twice, compare with TVM's virtual machine; twice, because memory is reused."""
    model = compile_with(mod, planned, *others)
    for seed in (0, 1):
        inputs = random_inputs(mod, seed)
        for want, got in zip(answers(mod, *inputs), outputs(model, inputs), strict=True):
            scale = 1e-5 * max(1, np.abs(want).max(initial=0))
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=scale)
    return model


def operators(mod: tvm.IRModule) -> Operators:
    return list(Calls(mod["main"]).calls)


def plan(*regions: tuple[str, Operators]) -> Plan:
    """Regions (processor, operators), named by their place."""
    return Plan(
        ("cpu", "fake"),
        tuple(PlannedRegion(f"r{i}", p, tuple(names)) for i, (p, names) in enumerate(regions)),
    )


def alternating(mod: tvm.IRModule) -> Plan:
    """Every operator on the other processor than the one before."""
    return plan(*((("fake", "cpu")[i % 2], [name]) for i, name in enumerate(operators(mod))))


def conv(x: relax.Expr, channels: int, seed: int, kernel: int = 3) -> relax.Expr:
    weight = random_const(channels, int(x.ty.shape.values[1]), kernel, kernel, seed=seed)
    return relax.op.nn.conv2d(x, weight, padding=kernel // 2)


def residual(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    first = bb.emit(relax.op.nn.relu(bb.emit(conv(x, 16, 1))))
    second = bb.emit(conv(first, 16, 2))
    side = bb.emit(conv(x, 16, 3, kernel=1))
    return [bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(second, side))))]


def inception(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    branches = [bb.emit(conv(x, 16, 1, kernel=1)), bb.emit(conv(bb.emit(conv(x, 8, 2)), 32, 3))]
    pooled = bb.emit(relax.op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)))
    branches.append(bb.emit(conv(pooled, 5, 4, kernel=1)))
    return [bb.emit(conv(bb.emit(relax.op.concat(branches, axis=1)), 8, 5))]


def views(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    parts = bb.emit(relax.op.split(x, [3], axis=1))
    low, high = (bb.emit(relax.TupleGetItem(parts, i)) for i in range(2))
    whole = bb.emit(relax.op.concat([bb.emit(relax.op.nn.relu(high)), low, high], axis=1))
    return [bb.emit(relax.op.negative(bb.emit(relax.op.flatten(whole))))]


def several(bb: relax.BlockBuilder, x: relax.Var) -> list[relax.Expr]:
    relu = bb.emit(relax.op.nn.relu(x))
    twice = bb.emit(relax.op.add(relu, relu))
    return [relu, x, random_const(1, 5), twice, relu, x]


def network(emit: object) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 6, 9, 9), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            results = emit(bb, x)
            results = [
                bb.emit_output(r) if isinstance(r, relax.DataflowVar) else r for r in results
            ]
        bb.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return load_network(bb.get())


@pytest.mark.parametrize("emit", [residual, inception, views, several])
def test_every_operator_on_another_processor(emit: object) -> None:
    mod = network(emit)
    model = check(mod, alternating(mod))
    assert {region.processor for region in model.graph.regions} == {0, 1}


@pytest.mark.parametrize("emit", [residual, inception, views, several])
def test_everything_on_the_other_processor(emit: object) -> None:
    mod = network(emit)
    model = check(mod, plan(("fake", operators(mod))))
    copies = {region.name for region in model.graph.regions if region.processor == 0}
    assert copies <= {"outputs"}, "only what nobody computes is copied by the CPU"


@settings(max_examples=max(6, settings().max_examples // 4))
@given(st.data())
def test_random_networks_on_random_processors(data: st.DataObject) -> None:
    mod = load_network(data.draw(networks(WITH_CONVOLUTIONS)))
    names = ("cpu", "fake", "fake2")
    check(mod, data.draw(plans(mod, names)), fake_processor(), fake_processor("fake2"))


def test_feature_maps_stay_blocked_between_processors() -> None:
    mod = network(residual)
    model = check(mod, alternating(mod))
    graph = model.graph
    ends = {port.tensor for port in (*graph.inputs, *graph.outputs)}
    crossing = {tensor for region in graph.regions for tensor in region.receives} - ends
    ranks = {len(graph.tensors[tensor].shape) for tensor in crossing}
    assert ranks == {5}, "a feature map was converted to cross between processors"


def test_weights_are_prepared_once_by_the_cpu() -> None:
    def twice(x: relax.Expr) -> relax.Expr:
        weight = random_const(16, 16, 3, 3)
        left, right = (relax.op.nn.conv2d(y, weight, padding=1) for y in (x, relax.op.nn.relu(x)))
        return relax.op.subtract(left, right)

    mod = load_network(module(twice, (1, 16, 9, 9)))
    single = compile_with(mod, plan(("cpu", operators(mod))))
    split = check(mod, alternating(mod))
    assert len(single.graph.prepare) == len(split.graph.prepare) > 0


def test_plan_travels_with_the_artifact(tmp_path: Path) -> None:
    mod = network(residual)
    planned = alternating(mod)
    model = compile_with(mod, planned)
    assert model.plan.regions == planned.regions
    planned.write(tmp_path / "plan.json")
    again = compile_with(mod, tmp_path / "plan.json")
    assert again.plan == compile_with(mod, json.loads(planned.to_json())).plan
    model.export(tmp_path / "model.so")
    loaded = ts.load(tmp_path / "model.so")
    assert loaded.plan == model.plan
    inputs = random_inputs(mod)
    np.testing.assert_array_equal(outputs(loaded, inputs)[0], outputs(model, inputs)[0])


def no_relu(call: relax.Call) -> str | None:
    return "no relu here" if call.op.name == "relax.nn.relu" else None


def test_without_a_plan_a_processor_that_can_runs_everything() -> None:
    mod = network(residual)
    choosy = ts.compile(mod, [fake_processor(refuse=no_relu), TARGET])
    assert {region.processor for region in choosy.plan.regions} == {"cpu"}
    assert "fake  2 operators (relu, relu1)  no relu here" in choosy.plan.explain()
    alone = ts.compile(mod, fake_processor())
    assert {region.processor for region in alone.plan.regions} == {"fake"}
    assert [spec.kind for spec in alone.graph.processors] == ["cpu", "fake"]


def test_a_network_without_parallelism_stays_on_one_processor() -> None:
    """One small chain: no branches, nothing worth a meeting."""

    def chain(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(relax.op.matmul(x, random_const(8, 8)))

    model = ts.compile(module(chain, (1, 8)), [TARGET, fake_processor()], cpu_threads=1)
    assert len({region.processor for region in model.plan.regions}) == 1
    text = model.plan.explain()
    assert "no way to use several processors is predicted to be faster" in text
    assert re.search(r"^(cpu|fake) alone .* chosen$", text, re.MULTILINE)


def test_refused_operators_are_named() -> None:
    mod = network(residual)
    with pytest.raises(UnsupportedError, match=r"\(relu, relu1\) on fake: no relu here"):
        ts.compile(mod, fake_processor(refuse=no_relu))
    with pytest.raises(UnsupportedError, match=r"\(relu, relu1\) on fake: .*; place them"):
        compile_with(mod, plan(("fake", operators(mod))), fake_processor(refuse=no_relu))


def test_plans_for_other_processors_are_refused() -> None:
    mod = network(residual)
    with pytest.raises(PlanError, match=r"\['cpu'\] for region 'r0' of the plan, got 'fake'"):
        ts.compile(mod, [TARGET], plan=alternating(mod))
    with pytest.raises(PlanError, match=r"\['fake'\] for region 'r1' of the plan, got 'cpu'"):
        ts.compile(mod, [fake_processor()], plan=alternating(mod))


@pytest.mark.parametrize("targets", [[], ["llvm", "llvm"], ["nonsense"], ["cuda"]])
def test_bad_targets_are_refused(targets: list[str]) -> None:
    with pytest.raises(TargetError, match=r"^expected .*, got .*; "):
        ts.compile(network(several), targets)


def test_dump_shows_every_phase(tmp_path: Path) -> None:
    mod = network(residual)
    compile_with(mod, alternating(mod), dump_dir=tmp_path)
    names = [path.name.split("-", 1)[1] for path in sorted(tmp_path.iterdir())]
    assert names[:5] == [
        "canonical.py",
        "TagOperators.py",
        "PartitionRegions.py",
        "AverageBySums.py",
        "BlockChannels.py",
    ]
    assert "cpu-FuseOps.py" in names and "fake-FuseOps.py" in names
    assert names[-2:] == ["merged.py", "scheduled.py"]


def test_options_are_the_arguments_as_one_value() -> None:
    """Arguments that are given, too, go first."""
    arguments = inspect.signature(ts.compile).parameters
    for field in dataclasses.fields(ts.Options):
        argument = arguments[field.name]
        assert (field.default, field.type) == (argument.default, argument.annotation)
    mod, options = network(residual), ts.Options(cpu_threads=1, effort="low")
    one = ts.compile(mod, TARGET, options=options)
    other = ts.compile(mod, TARGET, cpu_threads=1, effort="low")
    assert [node.kernel for node in one.graph.nodes] == [node.kernel for node in other.graph.nodes]
    with pytest.raises(ts.InputError, match=r"^expected 'full' or 'low' for effort"):
        ts.compile(mod, options=options, effort="none")
    with pytest.raises(ts.InputError, match=r"^expected ts.Options for options, got 3"):
        ts.compile(mod, options=3)  # type: ignore[arg-type]
