"""Whatever a network looks like, the search knows where each tensor is, and its plans are right."""

from __future__ import annotations

import dataclasses

import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import answers, random_inputs
from helpers.rounding import assert_rounded
from helpers.search_helpers import costs
from helpers.search_networks import LAYERS, searched_networks
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.make.branching import branch
from tvm_stretch.network.expressions import PIECES
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.tag import check_plan
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.targets.cpu.cpu import cpu_processor

THEMES = {
    "dense": ["stem", "dense", "affine", "pool", "convolution"],
    "joins": ["convolution", "fork", "halves", "join", "residual"],
    "channels": ["convolution", "gate", "grouped", "residual", "shuffle"],
    "any": sorted(LAYERS),
}
FULL = settings().max_examples >= 100
SPEED = st.sampled_from([0.5, 1.0, 1.0, 3.0])
MEETING = st.sampled_from([0, 10, 300, 20_000])
LIMITS = st.sampled_from([NO_LIMITS, NO_LIMITS, Limits({1: 0.4}), Limits({}, 8)])


def refuses(call: relax.Call) -> str | None:
    return "no such thing here" if "pool" in call.op.name or "concat" in call.op.name else None


@st.composite
def given_costs(draw: st.DrawFn) -> Costs:
    speeds = draw(st.lists(SPEED, min_size=2, max_size=3))
    refuse = {1: refuses} if draw(st.integers(0, 4)) == 0 else {}
    found = costs(*speeds, meeting=draw(MEETING), refuse=refuse)
    return dataclasses.replace(found, trusted=draw(st.booleans()))


def check_search(mod: tvm.IRModule, known: Costs, limits: Limits) -> None:
    """Every plan is of operators that are there, and each part is where it belongs."""
    found = search(mod, known, most=2, limits=limits)
    assert found.singles or found.rivals
    for candidate in (*found.singles, *found.rivals):
        plan = candidate.plan
        branched = branch(mod, plan.shares, plan.splits)
        check_plan(plan, branched.mod["main"])
        # an empty plan, of a network that returns its input, predicts nothing
        assert (plan.predicted_ns is None) == (not plan.regions)
        assert (plan.predicted_ns or 0) <= candidate.cost.ns
        places, operators = plan.processor_of(), Operators(branched.mod["main"])
        moved = {n for n, p in branched.owners.items() if places[n] != plan.processors[p]}
        assert all(operators[name].kind in PIECES for name in moved), moved


def check_answers(mod: tvm.IRModule, known: Costs) -> None:
    """What the search would build is built, and computes what the network says."""
    inputs = random_inputs(mod)
    known = on_this_machine(known)
    for rival in search(mod, known).rivals:
        got = ts.compile(mod, known.processors, plan=rival.plan)(*inputs)
        want = answers(mod, *inputs)
        assert_rounded(mod, inputs, list(got) if isinstance(got, tuple) else got, want)


def on_this_machine(known: Costs) -> Costs:
    """The same costs of processors whose kernels run here."""
    fakes = [
        dataclasses.replace(fake_processor(p.name), operators=p.operators)
        for p in known.processors[1:]
    ]
    return dataclasses.replace(known, processors=(cpu_processor(TARGET, 1), *fakes))


@pytest.mark.parametrize("theme", THEMES)
@settings(max_examples=1_000 if FULL else 6)
@given(data=st.data())
def test_every_network_is_searched(theme: str, data: st.DataObject) -> None:
    mod = data.draw(searched_networks(THEMES[theme], 8 if FULL else 4))
    check_search(mod, data.draw(given_costs()), data.draw(LIMITS))


@pytest.mark.parametrize("theme", THEMES)
@settings(max_examples=100 if FULL else 2)
@given(data=st.data())
def test_every_plan_computes_its_network(theme: str, data: st.DataObject) -> None:
    check_answers(
        data.draw(searched_networks(THEMES[theme], 6 if FULL else 4)), data.draw(given_costs())
    )
