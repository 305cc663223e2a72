"""Do no harm: what is built, what is measured against what, what ships, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fake_targets import TARGET, fake_processor

from tvm_stretch.make.branching import Branching
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search import Found
from tvm_stretch.plan.search import choose as choosing
from tvm_stretch.plan.search.choose import choose, decide
from tvm_stretch.plan.search.contest import MeasureError, Outcome
from tvm_stretch.plan.search.decision import Decision
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import Cost
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.timeline import RegionTime, Span, Timeline
from tvm_stretch.targets.cpu.cpu import cpu_processor


@pytest.fixture(autouse=True)
def surprises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them count as they do for users; conftest.py lets none."""
    monkeypatch.setattr(choosing, "_SURPRISING", 1.2)


NAMES = ("cpu", "npu")
PROCESSORS = [cpu_processor(TARGET, 1), fake_processor("npu")]


def candidate(what: str, ms: float, place: str = "cpu", **choices: Any) -> Candidate:
    costs = choices.pop("costs", "typical")
    plan = Plan(NAMES, (PlannedRegion("r0", place, ("conv2d",)),), costs=costs, **choices)
    busy = (int(ms * 1e6 / 2),) * 2 if choices else (int(ms * 1e6), 0)
    return Candidate(plan, what, Cost(int(ms * 1e6)), busy, Branching(None, {}))


ALONE = candidate("cpu alone", 20)
SHARES = candidate("9 layers in shares", 12, shares={"conv2d": (8, 8)})
UNEVEN = candidate("9 layers in shares", 14, shares={"conv2d": (12, 4)})


@dataclass
class Scripted:
    """A model that knows what it was made of."""

    what: Candidate

    @property
    def plan(self) -> Plan:
        return self.what.plan


@dataclass
class Scene:
    """What searches answer in turn, and how long models really take."""

    finds: list[Found]
    seconds: dict[str, float] = field(default_factory=dict)
    trusted: bool = True
    kernels: tuple[int, int] = (6_000_000, 6_000_000)
    corrections: list[tuple[float, ...]] = field(default_factory=list)
    built: list[Candidate] = field(default_factory=list)
    spread: float = 0.02

    def corrected(self, factors: Sequence[float]) -> Scene:
        self.corrections.append(tuple(factors))
        return self

    def search(self, _mod: object, _costs: object, limits: Limits) -> Found:
        assert limits is NO_LIMITS
        return self.finds.pop(0) if len(self.finds) > 1 else self.finds[0]

    def build(self, _mod: object, chosen: Candidate) -> Scripted:
        self.built.append(chosen)
        return Scripted(chosen)

    def trace(self, _model: Scripted, count: int) -> list[Timeline]:
        regions = tuple(
            RegionTime(name, name, (), (Span("kernel", "k", 0, ns),))
            for name, ns in zip(NAMES, self.kernels, strict=True)
        )
        return [Timeline(max(self.kernels), NAMES, regions)] * count

    def compare(self, models: Sequence[Scripted]) -> list[Outcome]:
        taken = [self.seconds[model.what.what] for model in models]
        less, more = 1 - self.spread, 1 + self.spread
        return [Outcome(s, s / taken[0], less * s / taken[0], more * s / taken[0]) for s in taken]

    def decide(
        self,
        monkeypatch: pytest.MonkeyPatch,
        take: Any = None,
        memory: Any = None,
    ) -> Decision:
        monkeypatch.setattr(Site, "costs", lambda *_: self)
        monkeypatch.setattr(choosing, "at_present_pace", lambda costs, _measure: costs)
        for name in ("search", "trace", "compare"):
            monkeypatch.setattr(choosing, name, getattr(self, name))
        site = Site(PROCESSORS, PROCESSORS, take or (lambda model: model))
        return decide(site.job(None), site, self.build, memory=memory)  # type: ignore[arg-type]

    def predict(self, monkeypatch: pytest.MonkeyPatch, device: str) -> Decision:
        monkeypatch.setattr(Site, "costs", lambda *_: self)
        monkeypatch.setattr(choosing, "search", self.search)
        site = Site(PROCESSORS, PROCESSORS, device=device)
        return choose(site.job(None), site)  # type: ignore[arg-type]


def test_the_plan_ships_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([Found((ALONE,), (SHARES,))], {"cpu alone": 0.021, SHARES.what: 0.013})
    decision = scene.decide(monkeypatch)
    assert decision.trial.what is SHARES and {id(c) for c in scene.built} == {id(ALONE), id(SHARES)}
    assert decision.reason == "chosen: 9 layers in shares"
    versus = "x0.62 of cpu alone (95 % 0.61 to 0.63)"
    assert decision.considered == (
        Considered("cpu alone", 20_000_000, "typical", 21_000_000, "slower"),
        Considered(SHARES.what, 12_000_000, "typical", 13_000_000, f"chosen: {versus}"),
    )
    assert decision.plan.explain().splitlines()[-5:-1] == [
        "candidate           predicted ms  costs  measured ms  verdict",
        "cpu alone           20.000        1      21.000       slower",
        f"9 layers in shares  12.000        1      13.000       chosen: {versus}",
        "costs 1: typical",
    ]


@pytest.mark.parametrize("seconds", [0.030, 0.0208])
def test_one_processor_ships_where_the_plan_is_slower_or_about_as_fast(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    scene = Scene([Found((ALONE,), (SHARES,))], {"cpu alone": 0.021, SHARES.what: seconds})
    decision = scene.decide(monkeypatch)
    assert decision.trial.what is ALONE and decision.reason.endswith("chosen: cpu alone")
    assert [one.measured_ns for one in decision.considered] == [21_000_000, round(seconds * 1e9)]
    assert decision.considered[0].verdict == "chosen"
    assert decision.considered[1].verdict.startswith("not faster: x")


@pytest.mark.parametrize(("seconds", "spread"), [(0.013, 0.02), (0.030, 0.02), (0.018, 0.2)])
def test_what_won_is_remembered_and_whether_it_may_have_been_luck(
    monkeypatch: pytest.MonkeyPatch, seconds: float, spread: float
) -> None:
    kept: list[tuple[Plan, bool]] = []
    scene = Scene([Found((ALONE,), (SHARES,))], {"cpu alone": 0.021, SHARES.what: seconds})
    scene.spread = spread
    memory = SimpleNamespace(store=lambda *given: kept.append(given))
    decision = scene.decide(monkeypatch, memory=memory)
    assert kept == [(decision.plan, spread < 0.1)]


def test_the_only_plan_is_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Plan] = []
    memory = SimpleNamespace(store=kept.append)
    decision = Scene([Found((), (SHARES,))]).decide(monkeypatch, memory=memory)
    assert kept == [decision.plan]


def test_nothing_to_gain_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = ("no way to use several processors is predicted to be faster",)
    scene = Scene([Found((ALONE,), (), notes)], {"cpu alone": 0.021})
    decision = scene.decide(monkeypatch)
    assert decision.trial.what is ALONE and notes[0] in decision.reason


def test_processors_that_need_each_other_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = Scene([Found((), (SHARES,))]).decide(monkeypatch)
    assert decision.trial.what is SHARES and "no processor supports everything" in decision.reason


def test_nothing_is_measured_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = Scene([Found((ALONE,), (SHARES,))]).predict(monkeypatch, "")
    assert decision.plan.regions == ALONE.plan.regions
    assert decision.reason.endswith("not measured, for another machine")


def test_plans_for_a_device_are_measured_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A phone on which shares disappoint gets another plan than one on which they do not."""
    for shares, winner in ((0.012, SHARES), (0.030, ALONE)):
        taken: list[Candidate] = []

        def take(model: Scripted, taken: list[Candidate] = taken) -> Scripted:
            taken.append(model.what)
            return model

        scene = Scene([Found((ALONE,), (SHARES,))], {"cpu alone": 0.02, SHARES.what: shares})
        assert scene.decide(monkeypatch, take).trial.what is winner
        assert taken == [ALONE, SHARES], "each crosses once"


@pytest.mark.parametrize(("trusted", "chosen"), [(True, SHARES), (False, ALONE)])
def test_without_the_device_its_models_decide(
    trusted: bool, chosen: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene([Found((ALONE,), (SHARES,))], trusted=trusted)
    decision = scene.predict(monkeypatch, "pixel")
    assert decision.plan.shares == chosen.plan.shares and decision.trial is None
    said = "predicted for pixel, not measured" if trusted else "not measured, for pixel"
    assert decision.reason.endswith(said)
    assert [one.verdict for one in decision.considered] == ["chosen", "not chosen"]


@pytest.mark.parametrize(("ms", "is_tried"), [(17, True), (19, False)])
def test_a_processor_alone_that_is_far_behind_the_plans_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, ms: float, is_tried: bool
) -> None:
    """With nothing to compare it with, and where it may be the best one, it is."""
    other = candidate("npu alone", ms, "npu")
    times = {"cpu alone": 0.016, other.what: 0.010, SHARES.what: 0.012}
    near = candidate("cpu alone", 16)
    scene = Scene([Found((near, other), (SHARES,))], times, trusted=False)
    assert scene.decide(monkeypatch).trial.what is (other if is_tried else SHARES)
    assert Scene([Found((near, other), ())], times, False).decide(monkeypatch).trial.what is other


def test_typical_costs_are_corrected_by_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second processor is three times as slow as assumed: the search answers once more."""
    finds = [Found((ALONE,), (SHARES,)), Found((ALONE,), (UNEVEN,))]
    scene = Scene(finds, {"cpu alone": 0.021, SHARES.what: 0.014}, False, (6_000_000, 18_000_000))
    decision = scene.decide(monkeypatch)
    assert scene.corrections == [(1.0, 3.0)]
    assert {id(c) for c in scene.built} == {id(ALONE), id(SHARES), id(UNEVEN)}
    assert [one.verdict for one in decision.considered if one.measured_ns is None] == [
        "not built: a run showed other speeds, and the search was repeated"
    ]


def test_each_prediction_says_of_which_costs_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """11.5 ms by typical costs do not compare with 128 ms by those that a run corrected."""
    first = candidate("9 layers in shares", 11.5, shares={"conv2d": (8, 8)})
    corrected = "typical, corrected by a run"
    alone = candidate("cpu alone", 128, costs=corrected)
    uneven = candidate("8 layers in shares", 215, shares={"conv2d": (12, 4)}, costs=corrected)
    finds = [Found((ALONE,), (first,)), Found((alone,), (uneven,))]
    times = {"cpu alone": 0.130, first.what: 0.140, uneven.what: 0.150}
    decision = Scene(finds, times, False, (6_000_000, 18_000_000)).decide(monkeypatch)
    lines = [line.split() for line in decision.plan.explain().splitlines()]
    assert ["cpu", "alone", "128.000", "1", "130.000", "chosen"] in lines
    assert ["costs", "1:", *corrected.split()] in lines and ["costs", "2:", "typical"] in lines
    assert any(line[:6] == ["9", "layers", "in", "shares", "11.500", "2"] for line in lines)
    assert any(line[:6] == ["8", "layers", "in", "shares", "215.000", "1"] for line in lines)
    assert "predictions by different costs do not compare" in decision.plan.explain()
    assert Plan.read(json.loads(decision.plan.to_json())) == decision.plan


@pytest.mark.parametrize("trusted", [True, False])
def test_measured_costs_and_right_ones_are_not_corrected(
    monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    kernels = (6_000_000, 18_000_000) if trusted else (9_000_000, 9_100_000)
    times = {"cpu alone": 0.021, SHARES.what: 0.014}
    scene = Scene([Found((ALONE,), (SHARES,))], times, trusted, kernels)
    assert scene.decide(monkeypatch).trial.what is SHARES
    assert scene.corrections == []


def test_a_device_that_fails_in_the_contest_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene([Found((ALONE,), (SHARES,))])

    def lost(_models: object) -> list[Outcome]:
        raise MeasureError("the device is lost")

    monkeypatch.setattr(scene, "compare", lost)
    with pytest.raises(MeasureError, match="the device is lost"):
        scene.decide(monkeypatch)
