"""Networks of many equal layers: the search sees three, and the plan is repeated for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import answers, random_const, random_inputs
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.make.branching import branch
from tvm_stretch.make.placement import choose_plan
from tvm_stretch.network.operators import Calls
from tvm_stretch.network.properties.equal_layers import (
    find_equal_layers,
    with_fewer_layers,
)
from tvm_stretch.network.states import STATES, Kept, read_states, write_states
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search import fewer_layers
from tvm_stretch.plan.search.fewer_layers import FewerLayers
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor

NAMES = ("cpu", "fake")
TARGETS = [TARGET, fake_processor("fake")]
SHAPE = (1, 8, 6, 6)


def layered(count: int = 8, *, plain: bool = False, all_seen: bool = False) -> tvm.IRModule:
    """Each layer adds a cache to a convolution, and returns the cache's next value.

    Plain layers have no caches, and read pixels one by one, so that bands need no halo.
    """
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    caches = [relax.Var(f"past{i}", relax.TensorType(SHAPE, "float32")) for i in range(count)]
    with builder.function("main", [x, *caches]):
        with builder.dataflow():
            y = first = builder.emit(relax.op.nn.conv2d(x, random_const(8, 8, 1, 1, seed=99)))
            y = builder.emit(relax.op.nn.relu(y))
            hidden, kept = [], []
            for layer, cache in enumerate(caches):
                side = 1 if plain else 3
                weight = random_const(8, 8, side, side, seed=layer)
                z = builder.emit(relax.op.nn.conv2d(y, weight, padding=side // 2))
                z = z if plain else builder.emit(relax.op.add(z, cache))
                kept.append((builder.emit if plain else builder.emit_output)(relax.op.nn.relu(z)))
                y = builder.emit(relax.op.add(kept[-1], y))
                y = y if plain else builder.emit(relax.op.add(y, first))
                hidden.append(y)
            y = builder.emit(relax.op.concat(hidden, 1)) if all_seen else y
            out = builder.emit_output(relax.op.nn.softmax(y, axis=1))
        builder.emit_func_output(out if plain else relax.Tuple([out, *kept]))
    return load_network(builder.get())


@pytest.fixture(autouse=True)
def small_networks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewer_layers, "_WORTH", 1)


def few_of(mod: tvm.IRModule) -> FewerLayers:
    few = FewerLayers.find(mod)
    assert few is not None
    return few


def test_layers_are_found_wherever_they_begin() -> None:
    mod = layered()
    run = find_equal_layers(mod["main"])
    assert run is not None
    assert (run.period, run.count) == (5, 8)
    names = [*Calls(mod["main"]).calls]
    assert len(names[: run.start]) == 2, "the stem"
    assert find_equal_layers(layered(5)["main"]) is None, "too few to be worth it"


def test_three_layers_are_the_first_one_between_and_the_last() -> None:
    """A network of three layers computes with the constants of the first three."""
    whole, three = layered(8), layered(3)
    run = find_equal_layers(whole["main"])
    assert run is not None
    fewer = with_fewer_layers(whole, run)
    assert fewer is not None
    inputs = random_inputs(three)
    got, want = answers(fewer, *inputs), answers(three, *inputs)
    assert len(got) == len(want) == 4
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


def test_layers_that_the_end_reads_are_not_left_out() -> None:
    mod = layered(all_seen=True)
    run = find_equal_layers(mod["main"])
    assert run is not None
    assert with_fewer_layers(mod, run) is None
    assert FewerLayers.find(mod) is None


def test_states_of_left_out_layers_go() -> None:
    whole = layered(8).clone()
    kept = [Kept(result) for result in range(1, 9)]
    whole["main"] = whole["main"].with_attr(STATES, write_states(1, kept))
    fewer = few_of(whole).mod["main"]
    shown, states = read_states(fewer)
    assert shown == 1
    assert [state.result for state in states] == [1, 2, 3]
    assert [param.name for param in fewer.params] == ["x", "past0", "past1", "past2"]


def check(model: ts.Model, mod: tvm.IRModule) -> None:
    """The model computes what the network does."""
    inputs = random_inputs(mod)
    got = model(*inputs)
    for one, want in zip(
        got if isinstance(got, tuple | list) else [got], answers(mod, *inputs), strict=True
    ):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def regions_of(few: FewerLayers, given: Plan) -> Plan:
    """The plan with regions, for the network with fewer layers."""
    branched = branch(few.mod, given.shares, given.splits)
    placeable = [cpu_processor(TARGET, 1), fake_processor("fake")]
    return choose_plan(branched.mod["main"], NAMES, placeable, given, branched.owners)


@pytest.mark.parametrize("how", ["shares", "rows of each layer", "rows of all", "a layer apart"])
def test_plans_are_repeated(how: str) -> None:
    """The whole network by the repeated plan computes what the CPU alone does."""
    mod = layered(plain=how == "rows of all")
    few = few_of(mod)
    names = [*Calls(few.mod["main"]).calls]
    convs = [name for name in names[1:] if name.startswith("conv2d")]
    ends = [names[names.index(conv) - 1] for conv in convs]  # of the layers before
    given = Plan(NAMES, ())
    if how == "shares":
        given = replace(given, shares=dict.fromkeys(convs, (5, 3)))
    if how == "rows of each layer":
        splits = [RowSplit(a, b, (2, 1)) for a, b in zip(ends, convs, strict=True)]
        given = replace(given, splits=tuple(splits))
    if how == "rows of all":
        given = replace(given, splits=(RowSplit(ends[0], names[-2], (2, 1)),))
    plan = regions_of(few, given)
    if how == "a layer apart":
        regions = plan.regions[0].operators
        cut = regions.index(convs[1])
        one, other = (replace(plan.regions[0], name=n) for n in ("r0", "r1"))
        plan = replace(
            plan,
            regions=(
                replace(one, operators=regions[:cut]),
                replace(other, processor="fake", operators=regions[cut:]),
            ),
        )
    repeated = few._repeated(plan)
    placed = repeated.processor_of()
    if how == "shares":
        assert len(repeated.shares) == 8
    if how == "rows of each layer":
        assert len(repeated.splits) == 8
    if how == "a layer apart":
        assert [*placed.values()].count("cpu") == 2 + 5
    model = ts.compile(mod, TARGETS, plan=repeated)
    assert model.plan.processor_of() == placed
    check(model, mod)


def test_plans_that_do_not_repeat_are_refused() -> None:
    few = few_of(layered())
    convs = [name for name in Calls(few.mod["main"]).calls if name.startswith("conv2d")]
    # the halo of eight layers is higher than the image: other operators than for three
    split = RowSplit(convs[0], [*Calls(few.mod["main"]).calls][-2], (2, 1))
    given = Plan(NAMES, (), splits=(split,))
    with pytest.raises((PlanError, UnsupportedError)):
        few._repeated(given)
    assert not few.repeats(given)


def test_a_search_builds_no_plan_that_does_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single processor is then the best there is."""
    monkeypatch.setattr(FewerLayers, "repeats", lambda *_: False)
    model = ts.compile(layered(), TARGETS)
    assert len({region.processor for region in model.plan.regions}) == 1
    assert "searched with 3 of 8 equal layers" in model.plan.reason


def test_the_search_sees_three_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`compile` names it, and the model is that of the whole network."""
    mod = layered()
    seen = []
    real = fewer_layers.with_fewer_layers
    monkeypatch.setattr(
        fewer_layers, "with_fewer_layers", lambda *given: seen.append(given) or real(*given)
    )
    model = ts.compile(mod, TARGETS)
    assert len(seen) == 1
    assert "searched with 3 of 8 equal layers" in model.plan.reason
    assert len(model.plan.processor_of()) >= len(Calls(mod["main"]).calls)
    check(model, mod)
