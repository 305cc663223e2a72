"""A cap on a processor's share, and how finely work is shared: kept in every plan, or refused."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_targets import fake_processor
from helpers.search_helpers import costs, emit
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_stretch as ts
from tvm_stretch.make.branching import branch
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.cost.profile import Power
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.limits import Limits, read_limits
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.splits import RowSplit

LAYERS = st.lists(
    st.sampled_from(["conv", "depthwise", "residual", "fork"]), min_size=1, max_size=4
)


def share_of(candidate: Candidate, place: int, layers: list[str]) -> float:
    """A processor's part of all multiply-adds, counted in the network that the plan makes."""
    plan = candidate.plan
    branched = branch(emit(layers), plan.shares, plan.splits)
    owner = plan.processor_of()
    work = dict.fromkeys(plan.processors, 0)
    for operator in Operators(branched.mod["main"]):
        if found := operator.multiply_adds:
            work[owner[operator.name]] += found
    return work[plan.processors[place]] / sum(work.values())


@settings(max_examples=8)
@given(LAYERS, st.sampled_from([2.0, 8.0]), st.sampled_from([0.25, 0.5, 0.7]), st.integers(2, 3))
@pytest.mark.full
def test_no_plan_exceeds_a_cap(layers: list[str], speed: float, cap: float, count: int) -> None:
    mod = emit(layers)
    speeds = (1.0, speed, 1.0)[:count]
    found = search(mod, costs(*speeds, meeting=0), most=2, limits=Limits({1: cap}))
    assert "p1 alone" not in [single.what for single in found.singles]
    for candidate in (*found.singles, *found.rivals):
        assert share_of(candidate, 1, layers) <= cap + 1e-9


def test_a_cap_costs_no_more_than_it_must() -> None:
    """Of a device that is three times as fast 75 % are right; half of it is all it gets."""
    layers = ["conv"] * 3
    mod, known = emit(layers, size=56, channels=64), costs(1.0, 3.0)
    free, capped = (
        search(mod, known, limits=limits).rivals[0] for limits in (Limits({}), Limits({1: 0.5}))
    )
    assert all(widths == (16, 48) for widths in free.plan.shares.values())
    assert all(widths == (32, 32) for widths in capped.plan.shares.values())
    assert free.cost.ns < capped.cost.ns


def test_shares_are_whole_parts() -> None:
    mod = emit(["conv", "residual"], size=48, channels=96)
    known = costs(1.0, 2.2, meeting=0)
    for parts in (3, 4):
        found = search(mod, known, most=2, limits=Limits({}, parts))
        assert found.rivals
        for plan in (rival.plan for rival in found.rivals):
            for widths in plan.shares.values():
                assert all(width % (96 // parts) == 0 for width in widths)
            for split in plan.splits:
                total = 48 if isinstance(split, RowSplit) else sum(split.ratios)
                assert all(ratio * parts % total == 0 for ratio in split.ratios)


@pytest.mark.parametrize(
    ("speeds", "caps", "expected"),
    [
        ({0: 1, 1: 3}, {1: 0.5}, {0: 8, 1: 8}),
        ({0: 1, 1: 3}, {1: 0.9}, {0: 4, 1: 12}),
        ({0: 1, 1: 3, 2: 4}, {1: 0.25, 2: 0.25}, {0: 8, 1: 4, 2: 4}),
        ({0: 1, 1: 3}, {0: 0.5, 1: 0.4}, None),
        ({0: 1, 1: 3}, {1: 0.01}, None),
    ],
)
def test_apportioning_below_caps(
    speeds: dict[int, float], caps: dict[int, float], expected: dict[int, int] | None
) -> None:
    assert Limits(caps).apportion(16, speeds) == expected


@pytest.mark.parametrize(
    ("max_share", "parts", "said"),
    [
        ({"fake": 1.5}, None, "above 0 and up to 1, for max_share"),
        ({"fake": True}, None, "above 0 and up to 1, for max_share"),
        ({}, None, "for max_share, got {}"),
        (
            {"fak": 0.5},
            None,
            "names of processors for max_share, got 'fak'; choose from cpu, fake",
        ),
        ({"fake": 0.5, "cpu": 0.9}, None, "a processor that may compute all for max_share"),
        (None, 1, "from 2 to 1024 for share_parts, got 1"),
        (None, 0.5, "from 2 to 1024 for share_parts, got 0.5"),
    ],
)
def test_nonsense_is_refused(max_share: object, parts: object, said: str) -> None:
    processors = [costs(1.0).processors[0], fake_processor("fake")]
    with pytest.raises(ts.InputError, match=said):
        read_limits(max_share, parts, processors, processors)


def test_names_of_absent_devices_and_of_kinds_are_known() -> None:
    processors = [costs(1.0).processors[0], fake_processor("fake")]
    found = read_limits({"llvm": 0.5, "opencl": 0.5}, None, processors, processors)
    assert found.caps == {0: 0.5} and found.text == "at most 0.5 of the work on cpu"


def test_compile_keeps_to_it_and_says_so() -> None:
    """A device without a cap would compute all: it is fifty times as fast."""
    mod = emit(["conv", "conv"], size=14)
    host = costs(1.0).processors[0]
    device = fake_processor("npu", target=host.target, device="elsewhere")
    model = ts.compile(mod, [host, device], max_share={"npu": 0.5}, share_parts=4)
    assert model.plan.reason.endswith("at most 0.5 of the work on npu; shares in parts of 1/4")
    with pytest.raises(ts.InputError, match="no share_parts where plans are given, got 4"):
        ts.compile(mod, [host, device], plan=model.plan, share_parts=4)
    with pytest.raises(ts.InputError, match="names of processors for max_share, got 'fast'"):
        ts.compile(mod, [host, device], plan=model.plan, max_share={"fast": 0.5})


def test_a_processor_with_pauses_gets_less_work() -> None:
    """A device as fast as the CPU gets half; if it may work half of the time, it gets a third.

    Its work is predicted with the pauses, and needs the energy without them.
    """
    mod, known = emit(["conv"] * 3, size=56, channels=96), costs(1.0, 1.0, meeting=0)
    known.power = Power((1.0, 2.0))
    paused = known.with_pauses((1.0, 0.5))
    free, capped = (search(mod, own).rivals[0] for own in (known, paused))
    assert all(widths == (48, 48) for widths in free.plan.shares.values())
    assert all(widths == (64, 32) for widths in capped.plan.shares.values())
    assert known.millijoules(1, 1000) == paused.millijoules(1, 2000)
    assert known.with_pauses((1.0, 1.0)) is known


def test_runs_of_a_given_plan_leave_a_processor_idle_for_the_rest_of_the_time(
    tmp_path: Path,
) -> None:
    """A region takes 5 ms and its processor may be busy for a quarter of the time: 20 ms a run."""
    mod = emit(["conv", "conv"], size=14)
    host = costs(1.0).processors[0]
    device = fake_processor("npu", target=host.target, regions={"all": {"latency_us": 5000}})
    names = [operator.name for operator in Operators(mod["main"])]
    regions = (PlannedRegion("all", "npu", tuple(names)),)
    plan = Plan(processors=("cpu", "npu"), regions=regions)
    model = ts.compile(mod, [host, device], plan=plan, max_share={"npu": 0.25})
    assert model.plan.reason.endswith("at most 0.25 of the time on npu")
    assert [processor.max_share for processor in model.graph.processors] == [1.0, 0.25]
    model.export(tmp_path / "model.so")
    x = np.zeros(model.inputs[0].shape, "float32")
    for own in (model, ts.load(tmp_path / "model.so")):
        own(x)
        begin = time.perf_counter()
        for _ in range(4):  # the first begins at once if this thread slept meanwhile
            own(x)
        assert time.perf_counter() - begin > 0.055


def test_beside_a_plan_all_processors_may_be_limited_but_not_a_cpu_alone() -> None:
    mod = emit(["conv", "conv"], size=14)
    host = costs(1.0).processors[0]
    device = fake_processor("npu", target=host.target)
    names = tuple(operator.name for operator in Operators(mod["main"]))
    both = PlannedRegion("a", "cpu", names[:2]), PlannedRegion("b", "npu", names[2:])
    alone = (PlannedRegion("all", "cpu", names),)
    shares = {"cpu": 0.75, "npu": 0.5}

    def compiled(regions: tuple[PlannedRegion, ...]) -> ts.Model:
        plan = Plan(processors=("cpu", "npu"), regions=regions)
        return ts.compile(mod, [host, device], plan=plan, max_share=shares)

    assert [processor.max_share for processor in compiled(both).graph.processors] == [0.75, 0.5]
    with pytest.raises(ts.InputError, match="another processor beside a CPU that max_share limits"):
        compiled(alone)


def test_plans_to_change_to_keep_to_it() -> None:
    mod = emit(["conv", "conv"], size=14)
    host = costs(1.0).processors[0]
    device = fake_processor("npu", target=host.target, device="elsewhere")
    model = ts.compile(mod, [host, device], max_share={"npu": 0.5}, plans=True)
    assert "without cpu" not in model.plans
    assert "no plan without cpu" in model.plan.explain()
