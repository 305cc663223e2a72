"""What holds for every scheduler on every graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduling_problems import problems

from tvm_stretch.scheduling import (
    SCHEDULERS,
    Problem,
    TransferCost,
    check_schedule,
    lower_bound,
    schedule,
    schedule_exhaustive,
    schedule_ilp,
)

# The solver may take a second for an awkward program, and machines differ.
slow = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@given(problem=problems(most=14, splittable=True))
@settings(slow, max_examples=25)
def test_every_schedule_passes_the_checker(scheduler, problem):
    result = scheduler(problem)
    check_schedule(problem, result)
    for operator, processor in zip(result.problem.operators, result.placement, strict=True):
        assert operator.costs[processor] is not None


@given(problem=problems(most=6))
@settings(slow, max_examples=60)
def test_exhaustive_equals_program_and_beats_every_other(problem):
    best = schedule_exhaustive(problem)
    check_schedule(problem, best)
    program = schedule_ilp(problem)
    check_schedule(problem, program)
    assert best.makespan == program.makespan
    assert lower_bound(problem) <= best.makespan
    for scheduler in SCHEDULERS.values():
        assert scheduler(problem).makespan >= best.makespan


# The same graphs every time: nothing keeps a search from missing an optimum that the program finds.
@given(problem=problems(most=16, splittable=True))
@settings(slow, max_examples=60, derandomize=True)
def test_ours_is_never_worse_than_any_other(problem):
    ours = schedule(problem).makespan
    for name, scheduler in SCHEDULERS.items():
        assert ours <= scheduler(problem).makespan, name


@given(problem=problems(most=12, processors=3), removed=st.integers(0, 2))
@settings(slow, max_examples=40)
def test_another_processor_never_makes_ours_slower(problem, removed):
    kept = [p for p in range(3) if p != removed]
    if any(all(op.costs[p] is None for p in kept) for op in problem.operators):
        return
    operators = [replace(op, costs=tuple(op.costs[p] for p in kept)) for op in problem.operators]
    transfers = tuple(tuple(problem.transfers[p][q] for q in kept) for p in kept)
    fewer = Problem(("a", "b"), tuple(operators), problem.tensors, transfers, problem.caching)
    assert schedule(problem).makespan <= schedule(fewer).makespan


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "HOPE:LP"])
@given(problem=problems(most=10), factor=st.integers(2, 1000))
@settings(slow, max_examples=20)
def test_scaling_all_costs_scales_the_makespan(name, problem, factor):
    # Transfers become constant, so that both problems round them alike.
    size = {t.bytes for t in problem.tensors} or {0}
    flat = tuple(
        tuple(TransferCost(((0, c(max(size))),)) for c in row) for row in problem.transfers
    )
    once = replace(problem, transfers=flat)
    many = replace(
        once,
        operators=tuple(
            replace(op, costs=tuple(None if c is None else c * factor for c in op.costs))
            for op in once.operators
        ),
        transfers=tuple(
            tuple(TransferCost(((0, c(0) * factor),)) for c in row) for row in once.transfers
        ),
    )
    assert SCHEDULERS[name](many).makespan == factor * SCHEDULERS[name](once).makespan


@given(problem=problems(most=6), factor=st.integers(2, 1000))
@settings(slow, max_examples=20)
def test_scaling_all_costs_scales_the_optimum(problem, factor):
    free = tuple(tuple(TransferCost() for _ in row) for row in problem.transfers)
    once = replace(problem, transfers=free)
    operators = tuple(
        replace(op, costs=tuple(None if c is None else c * factor for c in op.costs))
        for op in once.operators
    )
    many = replace(once, operators=operators)
    assert schedule_ilp(many).makespan == factor * schedule_ilp(once).makespan


@given(problem=problems(most=14))
@settings(slow, max_examples=20)
def test_ours_is_the_same_every_time(problem):
    first, second = schedule(problem), schedule(replace(problem))
    assert (first.placement, first.order) == (second.placement, second.order)
