"""What holds for every scheduler on every graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.scheduling_problems import problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.baselines import (
    schedule_exhaustive,
    schedule_ilp,
)
from benchmarks.baselines.anneal import SCHEDULERS, schedule
from benchmarks.baselines.bounds import check_schedule, gap_of, lower_bound
from benchmarks.baselines.local_search import searched
from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.scheduling import FREE, Problem, Tensor, TransferCost, run_sequence, simulate
from tvm_stretch.plan.scheduling.clock import Clock, Step
from tvm_stretch.plan.scheduling.heft import reordered
from tvm_stretch.plan.scheduling.hope_partition import PIECE, partition
from tvm_stretch.plan.scheduling.result import result_of

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
@pytest.mark.full
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


# Without HOPE:LP: rounding decides which of several optima of a piece the solver finds.
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


def free_of_transfers(problem):
    return replace(
        problem, transfers=((FREE,) * len(problem.processors),) * len(problem.processors)
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@given(problem=problems(most=10, splittable=True))
@settings(slow, max_examples=20)
def test_free_transfers_take_no_time_and_need_no_cache(scheduler, problem):
    result = scheduler(replace(free_of_transfers(problem), caching=True))
    for i, operator in enumerate(result.problem.operators):
        assert result.finish[i] - result.start[i] == operator.costs[result.placement[i]]
    uncached = replace(result.problem, caching=False)
    check_schedule(uncached, replace(result, problem=uncached))


@given(problem=problems(most=6))
@settings(slow, max_examples=30)
def test_free_transfers_never_make_the_optimum_slower(problem):
    free = free_of_transfers(problem)
    assert schedule_exhaustive(free).makespan <= schedule_exhaustive(problem).makespan


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
@given(problem=problems(most=12, processors=1, splittable=True))
@settings(slow, max_examples=15)
def test_one_processor_works_all_the_time(scheduler, problem):
    result = scheduler(problem)
    check_schedule(problem, result)
    assert result.makespan == sum(op.costs[0] for op in problem.operators)
    assert gap_of(result) == 0.0


def side_by_side(first, second):
    """Both networks, of which neither waits for the other."""
    shift = len(first.operators)
    operators = [replace(op, name=f"second_{op.name}") for op in second.operators]
    tensors = [
        Tensor(
            f"second_{t.name}", t.bytes, t.producer + shift, tuple(c + shift for c in t.consumers)
        )
        for t in second.tensors
    ]
    return replace(
        first,
        operators=(*first.operators, *operators),
        tensors=(*first.tensors, *tensors),
    )


@given(first=problems(most=3, processors=2), second=problems(most=3, processors=2))
@settings(slow, max_examples=30)
def test_networks_side_by_side(first, second):
    second = replace(second, transfers=first.transfers, caching=first.caching)
    both = side_by_side(first, second)
    alone = [schedule_exhaustive(problem).makespan for problem in (first, second)]
    together = schedule_exhaustive(both).makespan
    assert max(alone) <= together <= sum(alone)
    for scheduler in SCHEDULERS.values():
        result = scheduler(both)
        check_schedule(both, result)
        assert result.makespan >= together


@st.composite
def runs(draw):
    """A problem, a random placement and a random topological sequence."""
    problem = draw(problems(most=10))
    placement = [draw(st.sampled_from(supported)) for supported in problem.supported]
    sequence: list[int] = []
    while len(sequence) < len(placement):
        ready = [
            op
            for op, before in enumerate(problem.predecessors)
            if op not in sequence and set(before) <= set(sequence)
        ]
        sequence.append(draw(st.sampled_from(ready)))
    return problem, placement, sequence


@given(run=runs())
@settings(slow, max_examples=100)
def test_whatever_is_simulated_passes_the_checker(run):
    problem, placement, sequence = run
    timeline = run_sequence(problem, placement, sequence)
    result = result_of("random", timeline, 0)
    check_schedule(problem, result)
    again = simulate(problem, placement, result.order)
    assert (again.start, again.finish) == (timeline.start, timeline.finish)
    assert schedule(problem).makespan <= result.makespan


@given(run=runs(), data=st.data())
@settings(slow, max_examples=100)
def test_checker_refuses_times_that_were_changed(run, data):
    problem, placement, sequence = run
    result = result_of("random", run_sequence(problem, placement, sequence), 0)
    operator = data.draw(st.integers(0, len(sequence) - 1))
    shift = data.draw(st.integers(-5, 5).filter(bool))

    def moved(times, by):
        return tuple(t + by if i == operator else t for i, t in enumerate(times))

    start, finish = moved(result.start, shift), moved(result.finish, shift)
    earlier = (moved(result.start, -abs(shift)), moved(result.finish, -abs(shift)))
    for doctored in (
        replace(result, start=start),  # longer or shorter than computing and receiving take
        replace(result, finish=finish, makespan=max(finish)),
        replace(result, start=earlier[0], finish=earlier[1], makespan=max(earlier[1])),
    ):
        with pytest.raises(ScheduleError):
            check_schedule(problem, doctored)


@given(run=runs(), data=st.data())
@settings(slow, max_examples=100)
def test_checker_refuses_an_order_that_is_not_that_of_the_times(run, data):
    problem, placement, sequence = run
    result = result_of("random", run_sequence(problem, placement, sequence), 0)
    pairs = [
        (p, k)
        for p, queue in enumerate(result.order)
        for k in range(len(queue) - 1)
        if result.start[queue[k]] < result.start[queue[k + 1]]
    ]
    if not pairs:
        return
    processor, place = data.draw(st.sampled_from(pairs))
    order = [list(queue) for queue in result.order]
    queue = order[processor]
    queue[place], queue[place + 1] = queue[place + 1], queue[place]
    with pytest.raises(ScheduleError):
        check_schedule(problem, replace(result, order=tuple(map(tuple, order))))


@given(run=runs())
@settings(slow, max_examples=60)
def test_checker_refuses_what_is_not_received(run):
    """The times of the same schedule if nothing cost a transfer."""
    problem, placement, sequence = run
    free = result_of("random", run_sequence(free_of_transfers(problem), placement, sequence), 0)
    dear = run_sequence(problem, placement, sequence)
    received = any(dear.finish[i] - dear.start[i] > problem.cost(i, placement[i]) for i in sequence)
    claimed = replace(free, problem=problem)
    if received:
        with pytest.raises(ScheduleError, match="to finish at"):
            check_schedule(problem, claimed)
    else:
        check_schedule(problem, claimed)


@given(problem=problems(most=60))
@settings(slow, max_examples=60)
def test_pieces_of_the_partition_stand_in_a_topological_order(problem):
    pieces = partition(problem)
    position = {op: i for i, op in enumerate(op for piece in pieces for op in piece)}
    assert sorted(position) == list(range(len(problem.operators)))
    for operator, before in enumerate(problem.predecessors):
        assert all(position[p] < position[operator] for p in before)
    for piece in pieces:
        independent = not any(set(problem.predecessors[op]) & set(piece) for op in piece)
        assert len(piece) < PIECE or independent


@given(problems(most=10), st.data())
def test_steps_of_a_search_take_the_times_of_a_schedule(
    problem: Problem, data: st.DataObject
) -> None:
    problem = replace(problem, caching=True)
    placement = [data.draw(st.sampled_from(supported)) for supported in problem.supported]
    written = {tensor.producer: tensor for tensor in problem.tensors}
    clock = Clock([0] * len(problem.processors), problem.hand_over, {})
    names = [operator.name for operator in problem.operators]
    for operator in problem.sequence:
        reads = [names[problem.tensors[t].producer] for t in problem.reads[operator]]
        size = written[operator].bytes if operator in written else 0
        ns = problem.cost(operator, placement[operator])
        sources = tuple((read, None) for read in reads)
        clock.run([Step(names[operator], placement[operator], ns, sources, size)])
    simulation = run_sequence(problem, placement, problem.sequence)
    for operator, finish in simulation.finish.items():
        assert clock.when([names[operator]]) == finish


@given(run=runs())
@settings(slow, max_examples=50)
def test_another_order_is_a_faster_schedule(run):
    problem, placement, sequence = run
    given = run_sequence(problem, placement, sequence)
    found = reordered(given)
    check_schedule(problem, result_of("reordered", found, 0))
    ends = [max(one.finish.values()) for one in (found, given)]
    assert found is given or ends[0] <= 0.99 * ends[1]


@given(run=runs(), steps=st.sampled_from([0, 40, 2_000]), seed=st.integers(0, 9))
@settings(slow, max_examples=100)
def test_the_simulator_of_the_local_search_agrees(run, steps, seed):
    """It simulates only what a change moves; the answer is the last finish of what it kept."""
    problem, placement, sequence = run
    given = run_sequence(problem, placement, sequence)
    heat = float(max(given.finish.values()))
    found, order, makespan = searched(given, steps=steps, heat=heat, seed=seed)
    assert makespan == max(run_sequence(problem, found, order).finish.values())
    assert makespan <= max(given.finish.values())
