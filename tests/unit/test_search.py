"""The search: never worse than one processor, three kinds of processors, refusals, its own time."""

from __future__ import annotations

import cProfile
import dataclasses
import json
import pstats
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import ALL_LANES, QUICK_LANES, TARGET, host_of
from helpers.fake_targets import fake_processor
from helpers.random_networks import WITH_CONVOLUTIONS, networks
from helpers.relax_helpers import answers, module, random_const, random_inputs
from helpers.search_helpers import costs, emit
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.make.branching import branch
from tvm_stretch.network.operators import Calls, Operators
from tvm_stretch.passes.tag import check_plan
from tvm_stretch.plan.cost.prediction import AnalyticModel, Prediction
from tvm_stretch.plan.cost.profile import Power
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search import rank, search
from tvm_stretch.plan.search.chain import ChainSearch
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.objective import Objective
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import CORE
from tvm_stretch.targets.kernels.features import Features

LAYERS = st.lists(
    st.sampled_from(["conv", "depthwise", "residual", "fork"]), min_size=1, max_size=5
)
SPEED = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])


@settings(max_examples=max(6, settings().max_examples // 10))
@given(LAYERS, st.lists(SPEED, min_size=1, max_size=3), st.sampled_from([0, 2_000, 10**6]))
def test_never_predicted_worse_than_the_best_processor_alone(
    layers: list[str], speeds: list[float], meeting: int
) -> None:
    mod = emit(layers, size=14)
    given_costs = costs(*speeds, meeting=meeting)
    network = Network(mod, given_costs.kernels)
    alone = min(
        sum(given_costs.whole(group, place) for group in network.graph.groups)
        + (place > 0) * 2 * given_costs.hand_over(0, place, network.operators.bytes("x"))
        for place in range(len(speeds))
    )
    search_chain = ChainSearch(network, given_costs)
    everything, shares = search_chain.best(), search_chain.best(splits=False)
    assert everything.ns <= shares.ns <= alone


@settings(max_examples=15)
@given(LAYERS, st.lists(SPEED, min_size=2, max_size=3))
@pytest.mark.full
def test_every_plan_fits_its_network(layers: list[str], speeds: list[float]) -> None:
    mod = emit(layers)
    given_costs = costs(*speeds)
    for candidate in (*(found := search(mod, given_costs, most=2)).singles, *found.rivals):
        plan = candidate.plan
        assert Plan.read(json.loads(plan.to_json())).to_json() == plan.to_json()
        branched = branch(mod, plan.shares, plan.splits)
        check_plan(plan, branched.mod["main"])
        assert plan.predicted_ns is not None and 0 < plan.predicted_ns <= candidate.cost.ns
        for name, owner in branched.owners.items():
            assert plan.processor_of()[name] == plan.processors[owner]


class Surprised(AnalyticModel):
    """Measured few channels only."""

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        answers = super().predict_all(kernels)
        wide = [getattr(kernel, "out_channels", 0) > 32 for kernel in kernels]
        return [
            dataclasses.replace(answer, out_of_range=("out_channels",) if is_wide else ())
            for answer, is_wide in zip(answers, wide, strict=True)
        ]


def test_kernels_unlike_those_measured_are_said() -> None:
    typical = costs(1.0, 1.0)
    models = {processor.name: Surprised() for processor in typical.processors}
    measured = dataclasses.replace(typical, models=models)
    narrow = search(emit(["conv"] * 4, channels=32), measured)
    assert not any("unlike" in note for note in narrow.notes)
    wide = search(emit(["conv"] * 4, size=56, channels=64), measured)
    (note,) = (note for note in wide.notes if "unlike" in note)
    assert note.startswith("4 of ")
    assert "ts.tune.measure(..., networks={...})" in note


@pytest.mark.parametrize("lanes", QUICK_LANES)
def test_equal_processors_nearly_halve_a_chain(lanes: int) -> None:
    mod = emit(["conv"] * 4, size=56, channels=64)
    found = search(mod, costs(1.0, 1.0, lanes=lanes))
    rival = found.rivals[0]
    assert rival.cost.ns < 0.7 * found.singles[0].cost.ns
    assert max(rival.busy) < 1.25 * min(rival.busy)


@pytest.mark.full
def test_costs_are_compared_by_an_objective() -> None:
    mod, known = emit(["conv"] * 3, size=56, channels=64), costs(1.0, 2.0)
    quick = search(mod, known).singles
    frugal = dataclasses.replace(NO_LIMITS, objective=Objective("energy"))
    assert [one.what for one in quick] == ["p1 alone", "cpu alone"]
    hungry = dataclasses.replace(known, power=Power((1.0, 9.0)))
    thriftiest = search(mod, hungry, limits=frugal).singles
    assert [one.what for one in thriftiest] == ["cpu alone", "p1 alone"]
    (rival,) = search(mod, known).rivals
    assert rival.cost.bytes and rival.cost.millijoules is None


@pytest.mark.parametrize("lanes", QUICK_LANES)
def test_shares_follow_the_speeds(lanes: int) -> None:
    found = search(emit(["conv"] * 3, size=56, channels=64), costs(1.0, 3.0, lanes=lanes))
    for widths in found.rivals[0].plan.shares.values():
        assert widths[0] < widths[1] and sum(widths) == 64


@pytest.mark.parametrize("lanes", QUICK_LANES)
def test_three_processors_work(lanes: int) -> None:
    mod = emit(["conv"] * 4, size=56, channels=96)
    found = search(mod, costs(1.0, 1.0, 1.0, lanes=lanes))
    plan = found.rivals[0].plan
    assert {region.processor for region in plan.regions} == {"cpu", "p1", "p2"}
    assert found.rivals[0].cost.ns < 0.6 * found.singles[0].cost.ns


def test_nothing_to_win_is_said() -> None:
    found = search(emit(["conv"], size=8, channels=16), costs(1.0, 1.0, meeting=10**6))
    assert not found.rivals and found.singles[0].what == "cpu alone"
    assert "no way to use several processors is predicted to be faster" in found.notes


@pytest.mark.parametrize("lanes", QUICK_LANES)
def test_meetings_that_cost_much_make_fewer_of_them(lanes: int) -> None:
    mod = emit(["residual"] * 4, size=56, channels=64)
    cheap, dear = (
        search(mod, costs(1.0, 1.0, meeting=ns, lanes=lanes)).rivals[0] for ns in (1_000, 150_000)
    )
    assert dear.cost.ns > cheap.cost.ns
    assert len(dear.plan.regions) < len(cheap.plan.regions)


def only_convolutions(call: relax.Call) -> str | None:
    return None if call.op.name == "relax.nn.conv2d" else f"{call.op.name} is not for me"


def test_a_processor_gets_nothing_that_it_refuses() -> None:
    mod = emit(["conv", "residual", "fork"], size=56, channels=64)
    given_costs = costs(1.0, 4.0, refuse={1: only_convolutions})
    found = search(mod, given_costs)
    assert [single.what for single in found.singles] == ["cpu alone"]
    for rival in found.rivals:
        branched = branch(mod, rival.plan.shares, rival.plan.splits)
        calls = Calls(branched.mod["main"]).calls
        placed = rival.plan.processor_of()
        assert all(n == "cpu" or only_convolutions(calls[o]) is None for o, n in placed.items())


def test_a_processor_that_refuses_joins_gets_none_of_a_segment_in_rows() -> None:
    """The join of the rows has the name of the segment's last convolution, which it would take."""

    def body(x: relax.Expr) -> relax.Expr:
        op, weight = relax.op, random_const
        narrow = op.nn.conv2d(x, weight(8, 16, 1, 1))
        wide = op.nn.conv2d(op.nn.conv2d(x, weight(8, 16, 1, 1, seed=1)), weight(8, 8, 3, 3))
        padded = op.nn.relu(op.nn.pad(wide, (0, 0, 0, 0, 1, 1, 1, 1)))
        x = op.concat([op.concat([narrow, padded], axis=1), x], axis=1)
        for seed, (inner, outer) in enumerate([(32, 8), (8, 12), (12, 8), (8, 8)]):
            x = op.nn.conv2d(x, weight(outer, inner, 1, 1, seed=seed))
        return x

    def refuse(call: relax.Call) -> str | None:
        return "no joins here" if call.op.name == "relax.concat" else None

    mod = load_network(module(body, (1, 16, 16, 16)))
    known = dataclasses.replace(costs(0.5, 3, meeting=0, refuse={1: refuse}), trusted=False)
    for rival in search(mod, known).rivals:
        branched = branch(mod, rival.plan.shares, rival.plan.splits)
        joins = [op.name for op in Operators(branched.mod["main"]) if op.kind == "concat"]
        places = rival.plan.processor_of()
        assert rival.plan.splits and {places[name] for name in joins} == {"cpu"}


def test_processors_that_need_each_other() -> None:
    """Neither runs it all; together they do."""

    def no_convolutions(call: relax.Call) -> str | None:
        return "no" if call.op.name == "relax.nn.conv2d" else None

    refuse = {0: no_convolutions, 1: only_convolutions}
    found = search(emit(["conv", "conv"]), costs(1.0, 1.0, refuse=refuse))
    assert not found.singles
    assert {region.processor for region in found.rivals[0].plan.regions} == {"cpu", "p1"}
    with pytest.raises(UnsupportedError, match=r"conv2d on cpu: no; conv2d on p1: no"):
        search(emit(["conv"]), costs(1.0, 1.0, refuse=dict.fromkeys((0, 1), no_convolutions)))


def test_what_nobody_can_put_together_stays_whole() -> None:
    def neither(call: relax.Call) -> str | None:
        return "no" if call.op.name in ("relax.nn.conv2d", "relax.concat") else None

    refuse = {0: neither, 1: only_convolutions, 2: only_convolutions}
    mod = emit(["conv", "conv"], size=56, channels=64)
    found = search(mod, costs(1.0, 1.0, 1.0, refuse=refuse))
    assert not found.singles and not found.rivals[0].plan.shares
    assert any("a part is refused" in one.verdict for one in found.passed)


@settings(max_examples=max(5, settings().max_examples // 10))
@given(networks(WITH_CONVOLUTIONS))
def test_any_network_has_a_plan(mod: tvm.IRModule) -> None:
    found = search(load_network(mod), costs(1.0, 1.0, 2.0, meeting=0), most=2)
    assert found.singles


@pytest.mark.parametrize(
    ("lanes", "blocks"),
    [(8, ["residual", "fork"]), (16, ["depthwise"])]
    + [
        pytest.param(lanes, ["conv", "residual", "depthwise", "fork"], marks=pytest.mark.full)
        for lanes in ALL_LANES
    ],
)
def test_the_chosen_plan_computes_the_same(lanes: int, blocks: list[str]) -> None:
    mod = emit(blocks, size=20)
    host = host_of(lanes)
    processors = [host, *(fake_processor(name, target=host.target) for name in ("p1", "p2"))]
    rivals = search(mod, costs(1.0, 1.0, 2.0, meeting=0, lanes=lanes), most=1).rivals
    model = ts.compile(mod, processors, plan=rivals[0].plan, cpu_threads=1, debug=True)
    inputs = random_inputs(mod)
    (want,) = answers(mod, *inputs)
    got = model(*inputs)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_compile_decides_by_itself() -> None:
    mod = emit(["conv"], size=28)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    text = model.plan.explain()
    assert "chosen: " in text and "predicted" in text and "measured" in text
    assert "costs 1: typical of such processors, nothing was measured there" in text
    (want,) = answers(mod, *random_inputs(mod))
    got = model(*random_inputs(mod))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


class Counting(AnalyticModel):
    """How often it is asked."""

    calls = 0

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        self.calls += 1
        return super().predict_all(kernels)


def test_models_are_asked_in_batches() -> None:
    """An answer of trees costs a millisecond, for one kernel as for hundreds."""
    given_costs = costs(1.0, 1.0)
    models = {p.name: Counting(CORE) for p in given_costs.processors}
    given_costs = dataclasses.replace(given_costs, models=models)
    assert search(emit(["conv", "residual", "fork"] * 3), given_costs).rivals
    assert max(model.calls for model in models.values()) <= 3  # all kernels; parts; what is joined


def test_parts_are_put_together_where_that_is_supported() -> None:
    def no_views(call: relax.Call) -> str | None:
        return "no" if call.op.name in ("relax.concat", "relax.strided_slice") else None

    given_costs = costs(1.0, 1.0, refuse={0: no_views})
    rivals = search(emit(["conv"] * 3, size=56, channels=64), given_costs, most=2).rivals
    assert any(rival.plan.shares for rival in rivals)
    for rival in rivals:
        placed = rival.plan.processor_of()
        calls = Calls(rival.branched.mod["main"]).calls
        assert {placed[name] for name, call in calls.items() if no_views(call)} == {"p1"}


@pytest.mark.full
def test_unsure_costs_get_both_the_promising_plan_and_shares_alone() -> None:
    given_costs = dataclasses.replace(costs(1.0, 1.0), trusted=False)
    mod = load_network(zoo.build(QUICK))
    chosen, shares = sorted(
        rank(Network(mod, given_costs.kernels), given_costs), key=lambda chain: chain.only_shares
    )
    assert not chosen.only_shares and shares.only_shares
    assert 0.8 * shares.ns < chosen.ns < 0.99 * shares.ns  # a little better: worth building
    found = search(mod, given_costs)
    assert [bool(rival.plan.splits) for rival in found.rivals] == [True, False]


QUICK = "squeezenet1_1"


@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(n, marks=pytest.mark.full) for n in zoo.names() if n != QUICK)]
)
def test_two_seconds_are_enough(name: str) -> None:
    """Two seconds of a core that makes 1.5 million calls in one: calls are alike everywhere."""
    given_costs = costs(1.0, 1.0)
    network = Network(load_network(zoo.build(name)), given_costs.kernels)
    profile = cProfile.Profile()
    chains = profile.runcall(rank, network, given_costs)
    assert pstats.Stats(profile).total_calls < 3_000_000
    alone = sum(given_costs.whole(group, 0) or 0 for group in network.graph.groups)
    assert chains[0].ns < alone or name == "lstm"
