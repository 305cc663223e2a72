"""Models that share processors: who runs where, who goes first, and what a failure touches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import DeviceError, InputError
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.run.group import Group
from tvm_stretch.run.group_plans import Member, Way
from tvm_stretch.targets.cpu.cpu import cpu_processor

NAMES = ("cpu", "left", "right")
X = np.ones((1, 4), "float32")


def model(scale: float, **regions: dict[str, Any]) -> ts.Model:
    """``scale * x``, with a plan on each fake; its regions are ``on_left`` and ``on_right``."""
    mod = module(lambda x: relax.op.multiply(x, relax.const(scale, "float32")), (1, 4))
    fakes = [fake_processor(name, mirrored=False, regions=regions) for name in NAMES[1:]]
    operators = tuple(Calls(load_network(mod)["main"]).calls)
    plans = {
        f"on {name}": Plan(NAMES, (PlannedRegion(f"on_{name}", name, operators),))
        for name in NAMES[1:]
    }
    return ts.compile(mod, [cpu_processor(TARGET, 1), *fakes], plans=plans)


def lasting(left: int, right: int) -> dict[str, dict[str, int]]:
    """Latencies in milliseconds."""
    return {"on_left": {"latency_us": 1000 * left}, "on_right": {"latency_us": 1000 * right}}


@pytest.fixture(scope="module")
def models() -> dict[str, ts.Model]:
    return {"twice": model(2.0, **lasting(20, 22)), "thrice": model(3.0, **lasting(20, 22))}


def test_members_run_at_the_same_time_on_processors_of_their_own(
    models: dict[str, ts.Model],
) -> None:
    """Both are faster on the left, but together they are faster if one is on the right."""
    group = Group(models)
    assert sorted(tuple(m.way.uses) for m in group.members.values()) == [("left",), ("right",)]
    answers = [group.submit(name, X) for _ in range(8) for name in models]
    for index, future in enumerate(answers):
        np.testing.assert_array_equal(future.result(), X * (2 + index % 2))
    assert "on right" in str(group)
    group.close()


def test_inputs_may_have_names(models: dict[str, ts.Model]) -> None:
    group = Group(models)
    np.testing.assert_array_equal(group(1, x0=X), 3 * X)
    group.close()


# --- decisions, without devices -------------------------------------------------------------------


class Scripted:
    """A model of one plan that waits until it is told to go on, and keeps a log."""

    def __init__(self, log: list[str], name: str, action: Callable[[], Any]) -> None:
        self.log, self.name, self.action = log, name, action

    def __call__(self, *_: object) -> Any:
        self.log.append(self.name)
        return self.action()


def group_of(monkeypatch: pytest.MonkeyPatch, ways: list[list[Way]], **options: Any) -> Group:
    """A group whose members have these plans."""
    given = iter(ways)
    monkeypatch.setattr("tvm_stretch.run.group._ways", lambda _model: iter(next(given)))
    monkeypatch.setattr("tvm_stretch.run.group.Model", object)
    return Group([object() for _ in ways], **options)  # type: ignore[misc]


def way(name: str, uses: str, ms: float, run: Any = None) -> Way:
    return Way(name, run, frozenset(uses.split()), ms / 1e3)


def chosen(group: Group) -> list[str]:
    return [member.way.name for member in group.members.values()]


def test_plans_follow_the_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that runs often gets the processor on which it is fast."""
    ways = [
        [way("cpu", "cpu", 8), way("gpu", "gpu", 5), way("both", "cpu gpu", 7)],
        [way("cpu", "cpu", 12), way("gpu", "gpu", 5), way("both", "cpu gpu", 7)],
    ]
    assert chosen(group_of(monkeypatch, ways, rates=[1, 1])) == ["cpu", "gpu"]
    assert chosen(group_of(monkeypatch, ways, rates=[10, 1])) == ["gpu", "gpu"]
    assert chosen(group_of(monkeypatch, ways, rates=[1, 10])) == ["cpu", "gpu"]
    assert chosen(group_of(monkeypatch, [ways[0], [way("npu", "npu", 9)]])) == ["gpu", "npu"]


def test_runs_of_one_member_take_turns_with_plans_on_one_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both processors are 1.5 times as fast as one; no fixed plans balance 20 and 5 ms."""

    def both_faster(by: float) -> list[list[Way]]:
        one = [[way(name, name, ms) for name in ("cpu", "gpu")] for ms in (20, 5)]
        return [[way("both", "cpu gpu", 1e3 * w[0].seconds / by), *w] for w in one]

    long, short = both_faster(1.5)
    group = group_of(monkeypatch, [long, short])
    assert max(group.load.values()) == pytest.approx(12.5e-3, rel=0.05)
    assert {one.name for m in group.members.values() for one in m.shares} == {"cpu", "gpu"}
    assert "% of the runs)" in str(group)
    fast = group_of(monkeypatch, both_faster(1.8))
    assert chosen(fast) == ["both", "both"], "mixtures would gain 1.1, which memory takes away"
    soon = group_of(monkeypatch, [long, short], deadlines_ms=[None, 100])
    assert all(len(member.shares) == 1 for member in soon.members.values())


def test_mixed_runs_overlap_and_keep_to_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is alone and takes the fastest plan; eight others wait for it."""
    both, gate, log = threading.Barrier(2), threading.Event(), list[str]()

    def meet() -> bool:
        return both.wait(10) in (0, 1)

    names = ("cpu", "gpu")
    ways = [way(n, n, 10, Scripted(log, n, meet)) for n in names]
    other = way("npu", "npu", 1, Scripted([], "npu", lambda: True))
    together = way("both", "cpu gpu", 9, Scripted(log, "both", lambda: gate.wait(10)))
    group = group_of(monkeypatch, [[together, *ways], [other]])
    futures = [group.submit(0, X) for _ in range(9)]
    gate.set()
    assert all(future.result(20) for future in futures)
    assert sorted(log) == ["both"] + ["cpu"] * 4 + ["gpu"] * 4
    group.close()


def test_plans_follow_the_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member keeps off the only processor on which the other one meets its deadline."""
    ways = [
        [way("cpu", "cpu", 50), way("gpu", "gpu", 10)],
        [way("cpu", "cpu", 9), way("gpu", "gpu", 1)],
    ]
    assert chosen(group_of(monkeypatch, ways, rates=[1, 9])) == ["gpu", "gpu"]
    soon = group_of(monkeypatch, ways, rates=[1, 9], deadlines_ms=[None, 5])
    assert chosen(soon) == ["cpu", "gpu"]


def test_deadlines_that_cannot_be_met_say_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [[way("gpu", "gpu", 50)], [way("gpu", "gpu", 1)]]
    with pytest.raises(InputError, match="got 5 for 1; allow 51, or raise its priority"):
        group_of(monkeypatch, ways, deadlines_ms=[None, 5])
    with pytest.raises(InputError, match="allow 51"):  # a run in progress is not stopped
        group_of(monkeypatch, ways, deadlines_ms=[None, 5], priorities=[0, 1])
    first = group_of(monkeypatch, ways, deadlines_ms=[None, 51], priorities=[0, 1])
    assert [member.deadline for member in first.members.values()][1] == 0.051


def test_runs_on_different_processors_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    names = ("cpu", "gpu")
    ways = [[way(n, n, 1, Scripted([], n, lambda: both.wait(10) in (0, 1)))] for n in names]
    group = group_of(monkeypatch, ways)
    futures = [group.submit(index, X) for index in (0, 1)]
    assert all(future.result(20) for future in futures)
    group.close()


def test_groups_that_share_leases_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As groups of two processes do; `test_leases.py` has these."""
    log: list[str] = []
    may_end = threading.Event()
    runs = lambda: may_end.wait(30) and log.append("ends") is None, lambda: True
    groups = [
        group_of(
            monkeypatch,
            [[way("gpu", "gpu", 1, Scripted(log, name, run))], [way("cpu", "cpu", 1)]],
            leases=tmp_path,
        )
        for name, run in zip(("first", "second"), runs, strict=True)
    ]
    first = groups[0].submit(0, X)
    while not log:
        time.sleep(1e-3)
    second = groups[1].submit(0, X)
    time.sleep(0.05)
    assert log == ["first"]
    may_end.set()
    assert first.result(30) and second.result(30)
    assert log == ["first", "ends", "second"]
    for group in groups:
        group.close()


def test_a_run_alone_takes_the_fastest_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    alone, both = (
        way(uses, uses, ms, Scripted(log, uses, lambda: 1))
        for uses, ms in (("cpu", 5), ("cpu gpu", 4))
    )
    group = group_of(monkeypatch, [[alone, both], [way("gpu", "gpu", 9)]])
    assert chosen(group) == ["cpu", "gpu"]
    assert group(0, X) == 1 and log == ["cpu gpu"]
    group.close()


def test_urgent_runs_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    gate = threading.Event()
    names = ("low", "high", "soon")
    ways = [[way(name, "gpu", 1, Scripted(log, name, lambda: gate.wait(10)))] for name in names]
    options = {"priorities": [0, 2, 0], "deadlines_ms": [None, None, 1000]}
    group = group_of(monkeypatch, ways, **options)
    futures = [group.submit(index, X) for index in (0, 0, 2, 1)]
    gate.set()
    for future in futures:
        assert future.result(10)
    assert log == ["low", "high", "soon", "low"], "the run in progress is not stopped"
    group.close()


def test_a_member_whose_processor_is_taken_ends_earlier_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []
    gate = threading.Event()
    slow = [way("gpu", "gpu", 100_000, Scripted(log, "slow", lambda: gate.wait(10)))]
    ways = [way(n, n, ms, Scripted(log, n, gate.is_set)) for n, ms in (("gpu", 1), ("cpu", 50))]
    group = group_of(monkeypatch, [slow, ways], rates=[1, 1e6])
    first = group.submit(0, X)
    group.members["1"].shares = {ways[0]: 1.0}
    assert group(1, X) is False and log == ["slow", "cpu"]
    gate.set()
    assert first.result(10)
    group.close()


def test_a_failure_takes_another_plan_and_touches_no_other_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    def lost() -> None:
        raise DeviceError("the gpu is gone")

    gpu = way("gpu", "gpu", 1, Scripted(log, "gpu", lost))
    cpu = way("cpu", "cpu", 5, Scripted(log, "cpu", lambda: "answer"))
    other = way("other", "dsp", 1, Scripted(log, "other", lambda: "fine"))
    group = group_of(monkeypatch, [[gpu, cpu], [other]])
    assert (group(0, X), group(1, X)) == ("answer", "fine")
    assert group(0, X) == "answer" and log == ["gpu", "cpu", "other", "cpu"]
    assert group.members["0"].failure == "the gpu is gone" and "the gpu is gone" in str(group)
    for _ in range(20):
        group(0, X)
    assert log.count("gpu") == 2, "it is tried again after a while"
    group.close()


def test_a_run_that_failed_is_repeated_before_others_of_its_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait with other arrays, which have no one truth value when they are compared."""
    gate, inputs = threading.Event(), [X, 2 * X, 3 * X]

    def lost(x: Any) -> None:
        assert gate.wait(10) and x is inputs[0]
        raise DeviceError("the gpu is gone")

    gpu, cpu = way("gpu", "gpu", 1, lost), way("cpu", "gpu cpu", 5, lambda x: x[0, 0])
    group = group_of(monkeypatch, [[gpu, cpu], [way("other", "dsp", 1)]])
    group.members["0"].shares = {gpu: 1.0}
    futures = [group.submit(0, x) for x in inputs]
    gate.set()
    assert [future.result(10) for future in futures] == [1, 2, 3]
    group.close()


def test_a_queue_of_many_runs_costs_each_of_them_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread takes one after the other, and looks only at the run that is next."""
    gate, looks, threads = threading.Event(), list[str](), set[int]()

    def run(_x: Any) -> bool:
        threads.add(threading.get_ident())
        return gate.wait(10)

    group = group_of(monkeypatch, [[way(name, "gpu", 1, run)] for name in ("one", "two")])
    ask = Group._way
    monkeypatch.setattr(
        Group, "_way", lambda self, job, free: looks.append("") or ask(self, job, free)
    )
    futures = [group.submit(index % 2, X) for index in range(200)]
    gate.set()
    assert all(future.result(10) for future in futures)
    assert len(looks) <= 2 * len(futures) and len(threads) == 1
    group.close()


def test_a_member_without_another_plan_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise DeviceError("the gpu is gone")

    ways = [[way("gpu", "gpu", 1, Scripted([], "", lost))]]
    ways.append([way("gpu", "gpu", 1, Scripted([], "", lambda: "fine"))])
    group = group_of(monkeypatch, ways)
    futures = [group.submit(index % 2, X) for index in range(6)]
    for index, future in enumerate(futures):
        if index % 2:
            assert future.result(10) == "fine"
        else:
            with pytest.raises(DeviceError, match="the gpu is gone"):
                future.result(10)
    group.close()


def test_a_run_that_waits_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    gate = threading.Event()
    names = ("one", "two")
    ways = [[way(name, "gpu", 1, Scripted(log, name, lambda: gate.wait(10)))] for name in names]
    group = group_of(monkeypatch, ways)
    first, second = group.submit(0, X), group.submit(1, X)
    assert second.cancel()
    gate.set()
    assert first.result(10)
    group.close()
    assert log == ["one"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": [1]}, "expected 2 numbers, one for each model, for rates"),
        ({"rates": [1, 0]}, "rates and deadlines are above 0"),
        ({"rates": [1, "often"]}, "for rates"),
        ({"deadlines_ms": [-1, None]}, "for deadlines_ms"),
        ({"priorities": [None, float("nan")]}, "for priorities"),
    ],
)
def test_numbers_that_are_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    ways = [[way("gpu", "gpu", 1)], [way("gpu", "gpu", 1)]]
    with pytest.raises(InputError, match=message):
        group_of(monkeypatch, ways, **options)


def test_what_is_no_member_is_refused(models: dict[str, ts.Model]) -> None:
    for wrong in (["net.onnx", "other.onnx"], [models["twice"]], models["twice"], {}):
        with pytest.raises(InputError, match="expected two models or more"):
            ts.Group(wrong)  # type: ignore[arg-type]
    group = Group(models)
    for name in ("third", 2, -1):
        with pytest.raises(InputError, match="expected one of twice, thrice"):
            group.submit(name, X)
    with pytest.raises(InputError, match="expected 1 inputs"):
        group("twice", X, X)
    group.close()
    assert isinstance(group.members["twice"], Member)
