"""A scheduler of one's own: it is asked, checked, and its schedules become plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_helpers import answers, random_inputs
from helpers.search_helpers import costs, emit

import tvm_stretch as ts
from tvm_stretch.plan.scheduling import Problem, Result, schedule_heft
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.options import Options
from tvm_stretch.plan.search.pieces import Network


class Asked:
    """HEFT under another name, which notes what it is asked."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def __call__(self, problem: Problem) -> Result:
        self.problems.append(problem)
        return replace(schedule_heft(problem), scheduler="mine")


def test_compile_asks_it() -> None:
    mine, mod = Asked(), emit(["fork"], size=14)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], scheduler=mine, cpu_threads=1)
    assert mine.problems and all(p.processors == ("cpu", "p1") for p in mine.problems)
    (want,) = answers(mod, *random_inputs(mod))
    got = model(*random_inputs(mod))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_its_schedule_is_an_option() -> None:
    known = costs(1.0, 1.0, meeting=100)
    network = Network(emit(["fork"], size=14), known.kernels)
    options = Options(network, known, replace(NO_LIMITS, scheduler=Asked()))
    (option,) = filter(None, map(options.scheduled, network.pieces))
    assert option.what == "scheduled by mine" and option.uses_several


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
def test_what_it_answers_is_checked(answer: object, said: str) -> None:
    targets = [TARGET, fake_processor("p1")]
    with pytest.raises(ts.ScheduleError, match=said):
        ts.compile(emit(["fork"], size=14), targets, scheduler=answer, cpu_threads=1)


def test_wrong_words() -> None:
    mod = emit(["fork"], size=14)
    with pytest.raises(ts.InputError, match="expected a function from Problem to Result"):
        ts.compile(mod, scheduler="heft")
    with pytest.raises(ts.InputError, match="expected no scheduler where a plan is given"):
        ts.compile(mod, plan=ts.Plan(("cpu",), ()), scheduler=schedule_heft)


def test_a_network_as_a_problem_and_back() -> None:
    mod = emit(["conv", "fork"], size=14)
    targets = [TARGET, fake_processor("p1")]
    found = ts.problems.network_problem(mod, targets, cpu_threads=1)
    result = schedule_heft(found.problem)
    plan = found.plan(result)
    model = ts.compile(mod, targets, plan=plan, cpu_threads=1)
    assert model.plan.processor_of() == plan.processor_of()
    (want,) = answers(found.module, *random_inputs(mod))
    got = model(*random_inputs(mod))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
    with pytest.raises(ts.ScheduleError, match="makespan"):
        found.plan(replace(result, makespan=1))
    other = ts.problems.network_problem(emit(["conv"], size=14), targets, cpu_threads=1)
    with pytest.raises(ts.ScheduleError):
        other.plan(result)
