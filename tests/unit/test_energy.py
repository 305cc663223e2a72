"""Plans of little energy: predicted from powers, measured by scripted meters, within budgets."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import two_convolutions
from helpers.search_helpers import costs, emit

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, InputError
from tvm_stretch.plan.cost.profile import Power
from tvm_stretch.plan.cost.profile_file import load_profile, parse_profile, profile_text
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search import choose as choosing
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.candidates import front_of
from tvm_stretch.plan.search.contest import Outcome
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.objective import LATENCY, Cost, Objective, read_objective
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.benchmark import BenchmarkResult
from tvm_stretch.run.meters import Energy, Meter
from tvm_stretch.run.report import collect
from tvm_stretch.targets.cpu.cpu import cpu_processor

PHONE = "snapdragon-855"
FRUGAL = replace(NO_LIMITS, objective=Objective("energy"))
METER = Meter("scripted", "watts", lambda: 1.0)


@pytest.fixture(scope="module")
def mod() -> tvm.IRModule:
    return emit(["conv"] * 3, size=56, channels=64)


def powered(*watts: float, idle: float = 0.0) -> Costs:
    known = costs(1.0, 0.9)
    known.power = Power(watts, idle)
    return known


def test_energy_is_work_by_power_and_idle_time() -> None:
    power = Power((5.0, 1.0), 0.5, 40.0)
    assert power.millijoules(2_000_000, [1_000_000, 2_000_000]) == pytest.approx(5 + 2 + 1)
    assert power.millijoules(0, [0, 0], 1_000_000_000) == pytest.approx(40)


@pytest.mark.full
def test_the_thriftiest_plan_is_another_one_than_the_fastest(mod: tvm.IRModule) -> None:
    """A processor that takes a tenth of the power does everything, though both are faster."""
    found = search(mod, powered(5.0, 0.5), limits=FRUGAL)
    best = min((*found.singles, *found.rivals), key=lambda c: FRUGAL.objective(c.cost))
    fastest = min((*found.singles, *found.rivals), key=lambda c: c.cost.ns)
    assert best.what == "p1 alone" and fastest.what != best.what
    assert best.cost.millijoules == pytest.approx(0.5 * best.cost.ns / 1e6)
    assert best.plan.predicted_mj == best.cost.millijoules


def test_idle_power_makes_the_fastest_plan_the_thriftiest(mod: tvm.IRModule) -> None:
    found = search(mod, powered(0.1, 0.1, idle=10.0), limits=FRUGAL)
    best = min((*found.singles, *found.rivals), key=lambda c: FRUGAL.objective(c.cost))
    assert len({region.processor for region in best.plan.regions}) == 2


def test_a_front_has_no_plan_that_another_one_beats(mod: tvm.IRModule) -> None:
    found = search(mod, powered(5.0, 0.5), limits=FRUGAL)
    front = front_of([*found.singles, *found.rivals])
    known = [(plan.predicted_ns, plan.predicted_mj) for plan in front]
    assert len(known) > 1 and known == sorted(known)
    assert [mj for _, mj in known] == sorted((mj for _, mj in known), reverse=True)  # type: ignore[type-var]
    assert str(front).count("\n") == len(front) + 1


def test_plans_of_a_phone_have_joules(mod: tvm.IRModule) -> None:
    fast = ts.plan_for(mod, ["llvm", "hexagon"], device=PHONE)
    thrifty = ts.plan_for(mod, ["llvm", "hexagon"], device=PHONE, objective="energy")
    assert fast.predicted_mj is not None and thrifty.predicted_mj is not None
    assert thrifty.predicted_mj < fast.predicted_mj
    assert f"{thrifty.predicted_mj:.3g} mJ" in thrifty.explain()
    assert "predicted mJ" in thrifty.explain() and "measured mJ" not in thrifty.explain()
    assert Plan.read(json.loads(thrifty.to_json())) == thrifty
    front = ts.plan_front(mod, ["llvm", "hexagon"], device=PHONE)
    assert front[-1].predicted_mj == thrifty.predicted_mj


def test_each_region_has_its_energy(mod: tvm.IRModule) -> None:
    found = search(mod, powered(5.0, 0.5, idle=2.0))
    for one in (found.singles[0], found.rivals[0]):
        known = sum(region.predicted_mj or 0 for region in one.plan.regions)
        assert known + 2.0 * one.cost.ns / 1e6 == pytest.approx(one.cost.millijoules)


def test_timeline_and_report_have_the_energy_of_each_processor() -> None:
    regions = (
        PlannedRegion("a", "cpu", ("conv2d", "relu"), (0, 4_000_000), predicted_mj=8.0),
        PlannedRegion("b", "fake", ("conv2d1", "relu1"), (4_000_000, 9_000_000), predicted_mj=2.5),
    )
    plan = Plan(("cpu", "fake"), regions, predicted_mj=12.0)
    model = ts.compile(two_convolutions(), [TARGET, fake_processor()], plan=plan, cpu_threads=1)
    timeline = model.timeline()
    assert "the plan predicts 9.000 ms, 12 mJ (cpu 8, fake 2.5)" in str(timeline)
    events = timeline.to_chrome()["traceEvents"]
    assert {"mJ": 2.5} in [event.get("args") for event in events]
    data = collect(model.running, model.plan, timeline, None)
    assert [region["millijoules"] for region in data["regions"]] == [8.0, 2.5]
    assert data["plan"]["millijoules"] == 12.0
    assert "mJ" in model.plan.explain().splitlines()[0]


def test_budgets_that_cannot_be_met_say_what_can(mod: tvm.IRModule) -> None:
    wanted = ts.Objective(minimise="energy", latency_ms=1e-3)
    with pytest.raises(InputError, match=r"within 0.001 ms for objective, got .* ms with .* mJ"):
        ts.plan_for(mod, ["llvm"], device=PHONE, objective=wanted)
    slack = ts.Objective(minimise="energy", latency_ms=1e3)
    assert ts.plan_for(mod, ["llvm"], device=PHONE, objective=slack).predicted_mj


def test_a_budget_goes_before_the_goal() -> None:
    within = Objective("energy", latency_ms=10.0)
    slow, fast, late = Cost(9_000_000, 1.0), Cost(1_000_000, 9.0), Cost(11_000_000, 0.1)
    assert within(slow) < within(fast) < within(late) < within(Cost(20_000_000, 0.1))
    quick = Objective(energy_mj=5.0)
    assert quick(Cost(9_000_000, 5.0)) < quick(Cost(1_000_000, 5.1))
    assert str(Objective("energy")) == "the least energy"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Objective("speed"), "expected 'latency' or 'energy'"),  # type: ignore[arg-type]
        (lambda: Objective(latency_ms=0), "above 0 for latency_ms"),
        (lambda: Objective(energy_mj=float("nan")), "above 0 for energy_mj"),
        (lambda: Objective(latency_ms=True), "above 0 for latency_ms"),
        (lambda: Objective(meter=3), "expected True, a Meter"),  # type: ignore[arg-type]
        (lambda: read_objective("speed"), "or a ts.Objective"),
        (lambda: read_objective(None), "or a ts.Objective"),
    ],
)
def test_what_is_no_objective_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ts.StretchError, match=message):
        wrong()  # type: ignore[operator]


def test_no_objective_beside_a_plan(mod: tvm.IRModule) -> None:
    plan = ts.plan_for(mod, ["llvm"])
    with pytest.raises(InputError, match="expected no objective where a plan is given"):
        ts.compile(mod, ["llvm"], plan=plan, objective="energy")


def test_unknown_powers_are_an_error(mod: tvm.IRModule) -> None:
    with pytest.raises(InputError, match="expected powers of the processors of this machine"):
        ts.plan_for(mod, ["llvm"], objective="energy")


# --- measured -------------------------------------------------------------------------------------


def measured(
    monkeypatch: pytest.MonkeyPatch,
    energies: dict[str, float],
    objective: Objective,
    device: str = "",
) -> tuple[str, str]:
    """The search chooses among two processors alone, which take 2 ms and 1 ms."""
    processors = [cpu_processor(TARGET, 1), fake_processor("p1")]
    network = emit(["conv"], size=14)
    taken = {"cpu alone": 0.002, "p1 alone": 0.001}
    meters: list[object] = []

    def build(_mod: object, chosen: object) -> SimpleNamespace:
        what = chosen.what  # type: ignore[attr-defined]
        spent = Energy(energies[what], 1.0, 1, 1.0, ("m",))

        def benchmark(_repeat: int, energy: object) -> BenchmarkResult:
            meters.append(energy)
            return BenchmarkResult((taken[what],), spent)

        return SimpleNamespace(plan=chosen.plan, what=what, benchmark=benchmark)  # type: ignore[attr-defined]

    def compare(models: list[SimpleNamespace]) -> list[Outcome]:
        return [Outcome(taken[model.what], 1, 1, 1) for model in models]

    known = costs(1.0, 2.0)
    found = search(network, known)
    found = replace(found, rivals=())
    monkeypatch.setattr(Site, "costs", lambda *_: known)
    monkeypatch.setattr(choosing, "at_present_pace", lambda costs, _measure: costs)
    monkeypatch.setattr(choosing, "search", lambda *_a, **_k: found)
    monkeypatch.setattr(choosing, "compare", compare)
    site = Site(processors, processors, lambda model: model, device)
    limits = replace(NO_LIMITS, objective=objective)
    decision = choosing.decide(site.job(network), site, build, limits)  # type: ignore[arg-type]
    assert decision.trial is not None and decision.plan is not None
    assert set(meters) == {objective.meter or True}
    return decision.trial.what, decision.plan.explain()  # type: ignore[attr-defined]


def test_the_meter_decides_where_plans_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"cpu alone": 3.0, "p1 alone": 8.0}
    chosen, said = measured(monkeypatch, spent, Objective("energy", meter=METER))
    assert chosen == "cpu alone" and "measured mJ" in said
    quick = Objective("energy", latency_ms=1.5, meter=METER)
    assert measured(monkeypatch, spent, quick)[0] == "p1 alone"


def test_measured_budgets_that_cannot_be_met_say_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"cpu alone": 3.0, "p1 alone": 8.0}
    with pytest.raises(InputError, match="got 1 ms with 8 mJ or 2 ms with 3 mJ at best"):
        measured(monkeypatch, spent, Objective("energy", latency_ms=0.5, meter=METER))


def test_a_phone_is_measured_by_its_own_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"cpu alone": 3.0, "p1 alone": 8.0}
    assert measured(monkeypatch, spent, Objective("energy"), device="pixel")[0] == "cpu alone"


# --- profiles -------------------------------------------------------------------------------------


def test_powers_are_part_of_a_profile_s_file() -> None:
    profile = replace(load_profile(PHONE), copied_pj_per_byte=40.0)
    assert parse_profile(profile_text(profile)) == profile
    assert profile.power(["cpu", "hexagon"]) == Power((5.2, 0.95), 0.6, 40.0)
    unknown = replace(profile.processor("cpu"), watts=None)
    bare = replace(profile, processors={**profile.processors, "cpu": unknown})
    assert parse_profile(profile_text(bare)) == bare
    assert bare.power(["cpu", "hexagon"]) is None


@pytest.mark.parametrize("line", ["watts = -1", 'watts = "much"', "watts = 1e9"])
def test_powers_that_are_none_are_refused(line: str) -> None:
    text = profile_text(load_profile(PHONE)).replace("watts = 5.2", line)
    with pytest.raises(CostModelError, match="watts"):
        parse_profile(text)


def test_latency_is_what_counts_by_default() -> None:
    assert NO_LIMITS.objective is LATENCY and not LATENCY.needs
    assert LATENCY(Cost(7)) == 7e-6
