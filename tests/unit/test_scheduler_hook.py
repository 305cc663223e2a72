"""A scheduler plans the whole network: it is asked, checked, and its schedules become plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import answers, random_inputs
from helpers.search_helpers import costs, emit

import tvm_stretch as ts
from benchmarks.baselines import BASELINES
from benchmarks.schedulers import NETWORKS
from tutorials import zoo
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling import Problem, Result, Scheduler, schedule_heft
from tvm_stretch.plan.scheduling.hope import schedule_hope_gs, schedule_hope_lp
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.limits import NO_LIMITS

PHONE, TEAM = "snapdragon-855", ["cpu", "opencl"]


class Asked:
    """A scheduler that notes its problems and results."""

    def __init__(self, scheduler: Scheduler = schedule_heft, name: str = "mine") -> None:
        self.scheduler, self.name = scheduler, name
        self.problems: list[Problem] = []
        self.results: list[Result] = []

    def __call__(self, problem: Problem) -> Result:
        self.problems.append(problem)
        self.results.append(replace(self.scheduler(problem), scheduler=self.name))
        return self.results[-1]


def require_same(mod: tvm.IRModule, model: ts.Model) -> None:
    (want,) = answers(mod, *random_inputs(mod))
    got = model(*random_inputs(mod))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_compile_asks_it_about_the_whole_network_and_races_its_plan() -> None:
    mine, mod = Asked(), emit(["conv", "fork"], size=14)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], scheduler=mine, cpu_threads=1)
    kernels = {job.name for job in mine.problems[0].operators} - {"inputs", "outputs"}
    found = ts.problems.network_problem(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    assert kernels == {group.name for group in found.network.graph.groups}
    (row, *_) = (one for one in model.plan.considered if "scheduled by mine" in one.what)
    assert row.measured_ns or "the same as" in row.verdict
    require_same(mod, model)


@pytest.mark.parametrize("name", BASELINES)
def test_schedulers_of_papers_come_through_the_same_door(name: str) -> None:
    known = costs(1.0, 1.0, meeting=100)
    asked = Asked(BASELINES[name], name)
    mod = emit(["conv", "fork"], size=56)
    found = search(mod, known, limits=replace(NO_LIMITS, scheduler=asked))
    what = f"whole network scheduled by {name}"
    rivals = [one for one in found.rivals if one.what == what]
    (row,) = rivals or [one for one in found.passed if one.what == what]
    if rivals:
        assert row.is_asked and set(row.plan.processor_of().values()) == {"cpu", "p1"}
        assert bool(row.plan.shares or row.plan.splits) == (name in ("µLayer", "CoDL"))
    else:
        assert "the same as" in row.verdict and name in ("single", "MOSAIC")


@pytest.mark.parametrize("name", ["hope", "hope-greedy", "heft"])
def test_schedulers_by_name(name: str) -> None:
    mod = emit(["conv", "fork"], size=14)
    plan = ts.plan_for(mod, device=PHONE, scheduler=name)
    who = {"hope": "HOPE:LP", "hope-greedy": "HOPE:GS", "heft": "HEFT"}[name]
    assert any(who in one.what for one in plan.considered)


def require_equal_plans(source: object, scheduler: Scheduler) -> Plan:
    """The plan of a whole network is the scheduler's own: the same places, order and makespan."""
    asked = Asked(scheduler)
    ts.plan_for(source, TEAM, device=PHONE, scheduler=asked)
    found = ts.problems.network_problem(source, TEAM, device=PHONE)
    assert asked.problems[0] == found.problem
    own = scheduler(found.problem)
    assert [asked.results[0].makespan, asked.results[0].order] == [own.makespan, own.order]
    plan = found.plan(own)
    placed, names = plan.processor_of(), own.problem.processors
    groups = {group.name: group for group in found.network.graph.groups}
    for job, place in zip(own.problem.operators, own.placement, strict=True):
        for operator in groups[job.name].operators if job.name in groups else ():
            assert placed[operator.name] == names[place]
    of_kernel = found.network.group_of
    order = [of_kernel.get(op) for region in plan.regions for op in region.operators]
    for queue in own.order:
        wanted = [own.problem.operators[i].name for i in queue]
        wanted = [name for name in wanted if name in groups]
        assert [name for name in dict.fromkeys(order) if name in wanted] == wanted
    assert f"{own.makespan / 1e6:.6f} ms" in plan.reason
    return plan


@pytest.mark.parametrize("scheduler", [schedule_hope_gs, schedule_hope_lp])
def test_plans_of_hope_are_those_of_its_schedules(scheduler: Scheduler) -> None:
    require_equal_plans(emit(["conv", "fork", "residual", "fork"]), scheduler)


@pytest.mark.full
@pytest.mark.parametrize("scheduler", [schedule_hope_gs, schedule_hope_lp])
@pytest.mark.parametrize("network", NETWORKS)
def test_plans_of_hope_on_its_seven_networks(network: str, scheduler: Scheduler) -> None:
    require_equal_plans(zoo.build(network), scheduler)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: None, "expected a Result for the problem that was given from the scheduler"),
        (
            lambda p: replace(schedule_heft(p), makespan=0),
            "expected the last finish [0-9]* for makespan",
        ),
        (
            lambda p: replace(schedule_heft(p), problem=replace(p, tensors=())),
            "expected a Result for the problem that was given",
        ),
    ],
)
def test_what_it_answers_is_checked(answer: Callable[[Problem], object], said: str) -> None:
    targets = [TARGET, fake_processor("p1")]
    with pytest.raises(ts.ScheduleError, match=said):
        ts.compile(emit(["fork"], size=14), targets, scheduler=answer, cpu_threads=1)


def test_wrong_words() -> None:
    mod = emit(["fork"], size=14)
    targets = [TARGET, fake_processor("p1")]
    with pytest.raises(ts.InputError, match="or one of hope, hope-greedy, heft, for scheduler"):
        ts.compile(mod, targets, scheduler="help")
    with pytest.raises(ts.InputError, match="expected no scheduler where a plan is given"):
        ts.compile(mod, plan=ts.Plan(("cpu",), ()), scheduler=schedule_heft)


def test_a_network_as_a_problem_and_back() -> None:
    mod = emit(["conv", "fork"], size=14)
    targets = [TARGET, fake_processor("p1")]
    found = ts.problems.network_problem(mod, targets, cpu_threads=1)
    result = ts.problems.scheduler("hope-greedy")(found.problem)
    plan = found.plan(result)
    model = ts.compile(mod, targets, plan=plan, cpu_threads=1)
    assert model.plan.processor_of() == plan.processor_of()
    require_same(found.module, model)
    with pytest.raises(ts.ScheduleError, match="makespan"):
        found.plan(replace(result, makespan=1))
    other = ts.problems.network_problem(emit(["conv"], size=14), targets, cpu_threads=1)
    with pytest.raises(ts.ScheduleError):
        other.plan(result)
