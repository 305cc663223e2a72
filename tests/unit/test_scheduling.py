"""Schedulers on small graphs whose best schedule is known, and on bad input."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from helpers.scheduling_problems import chain, fan, problem
from scipy.optimize import OptimizeResult

from benchmarks.baselines import (
    schedule_exhaustive,
    schedule_hope_gs,
    schedule_hope_lp,
    schedule_ilp,
    schedule_mosaic,
    schedule_mulayer,
    schedule_single,
    schedule_starpu,
)
from benchmarks.baselines.anneal import SCHEDULERS, schedule
from benchmarks.baselines.bounds import bound_of, check_schedule, gap_of, lower_bound
from benchmarks.baselines.split import schedule_codl
from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.scheduling import (
    FREE,
    Job,
    Problem,
    Tensor,
    TransferCost,
    ilp,
    linear_transfer,
    run_sequence,
    simulate,
)
from tvm_stretch.plan.scheduling.hope_partition import partition
from tvm_stretch.plan.scheduling.merge import merge_short_operators
from tvm_stretch.plan.scheduling.result import result_of
from tvm_stretch.plan.scheduling.simulate import Simulation

EXACT = {"exhaustive": schedule_exhaustive, "ILP": schedule_ilp, "ours": schedule}


@pytest.fixture(params=EXACT.values(), ids=EXACT.keys())
def exact(request):
    return request.param


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS.keys())
def test_every_scheduler_answers_every_kind_of_problem(scheduler):
    for given in [
        chain([(5, 5)] * 4, transfer=1),
        fan([(4, 2)] * 5, transfer=1),
        chain([(3, None), (None, 4), (3, 9)], transfer=2),
        problem([(7,)], {}),
        problem([], {}, processors=2),
        problem([(0, 0), (0, 0)], {0: (4, [1])}),
        fan([(40, 20, 30)] * 6, transfer=3),
        replace(fan([(40, 20)] * 5, transfer=3, read_bytes=5), caching=False),
    ]:
        result = scheduler(given)
        check_schedule(given, result)
        assert result.makespan >= bound_of(result)


def test_two_independent_operators_run_side_by_side(exact):
    assert exact(problem([(10, 10), (10, 10)], {})).makespan == 10


def test_a_chain_stays_where_it_is_if_transfers_cost_more(exact):
    result = exact(chain([(10, 9), (10, 12), (10, 9)], transfer=5))
    assert result.makespan == 30
    assert len(set(result.placement)) == 1


def test_a_chain_moves_if_transfers_cost_less(exact):
    assert exact(chain([(10, 1), (1, 10), (10, 1)], transfer=2)).makespan == 7


def test_load_is_shared_in_proportion_to_speed(exact):
    # 6 operators, the second processor twice as fast: 2 on the first, 4 on the second.
    assert exact(problem([(20, 10)] * 6, {})).makespan == 40


def test_a_tensor_is_received_once(exact):
    costs = [(0, None), (None, 10), (None, 10)]
    tensors = {0: (8, [1, 2])}
    cached = problem(costs, tensors, transfer=TransferCost(((0, 6),)))
    assert exact(cached).makespan == 26
    assert exact(replace(cached, caching=False)).makespan == 32


def test_what_leaves_the_network_returns_home(exact):
    # On the second processor the operator itself would be faster, but not the way there and back.
    costs = [(0, None), (10, 3), (0, None)]
    given = problem(costs, {0: (1, [1]), 1: (1, [2])}, transfer=TransferCost(((0, 4),)))
    result = exact(given)
    assert (result.makespan, result.placement) == (10, (0, 0, 0))


def test_fan_of_branches_with_a_receiving_processor_that_is_busy(exact):
    # Receiving takes 3 on the processor that computes: 0 -> {1, 2} -> 3.
    given = problem(
        [(2, 2), (10, 10), (10, 10), (2, 2)],
        {0: (1, [1, 2]), 1: (1, [3]), 2: (1, [3])},
        transfer=TransferCost(((0, 3),)),
    )
    assert exact(given).makespan == 2 + 3 + 10 + 3 + 2 - 3 + 3


def test_proof_of_optimality():
    for result in (schedule_exhaustive(chain([(3, 4)] * 3)), schedule_ilp(chain([(3, 4)] * 3))):
        assert gap_of(result) == 0.0
    assert gap_of(schedule(chain([(3, 4)] * 3))) == 0.0  # the critical path proves it


def two_fans(first, second):
    """0 -> each of first -> 5 -> each of second -> the last."""
    costs = [(0, 0), *first, (0, 0), *second, (0, 0)]
    middle, last = len(first) + 1, len(costs) - 1
    left, right = range(1, middle), range(middle + 1, last)
    tensors = {0: (0, list(left)), middle: (0, list(right))}
    tensors |= {i: (0, [middle]) for i in left} | {i: (0, [last]) for i in right}
    return problem(costs, tensors)


def test_lower_bound_adds_up_over_segments():
    # Load of the whole: 40, as each processor is fast in one fan. Its critical path: 20.
    uneven = two_fans([(10, 100)] * 4, [(100, 10)] * 4)
    assert 70 < lower_bound(uneven) <= schedule(uneven).makespan == 80
    # Load of one segment and path of the other; of the whole they are 45 and 60.
    mixed = two_fans([(10, 10)] * 4, [(50, 50)])
    assert lower_bound(mixed) == schedule(mixed).makespan == 70


def test_lower_bound_counts_the_transfers_of_the_longest_path():
    given = chain([(10, None), (90, 10), (10, None)], transfer=7)
    assert lower_bound(given) == schedule(given).makespan == 10 + 7 + 10 + 7 + 10
    # The second branch is as long with or without: what is short may stay.
    both = fan([(10, None), (90, 10), (5, 5), (10, None)], transfer=7)
    assert lower_bound(both) == schedule(both).makespan == 44


def test_mosaic_runs_nothing_at_the_same_time():
    assert schedule_mosaic(fan([(10, 10)] * 4)).makespan == 40
    assert schedule_mosaic(chain([(1, 9), (9, 1)], transfer=3)).makespan == 5


def test_mosaic_pays_for_what_a_slice_reads_only():
    # 0 is read by 1 and 3: the slice of 2, which runs elsewhere, does not receive it.
    given = problem(
        [(5, 200), (5, 200), (120, 5), (5, 200)],
        {0: (1, [1, 3]), 1: (1, [2]), 2: (1, [3])},
        transfer=TransferCost(((0, 30),)),
    )
    assert schedule_mosaic(given).placement == (0, 0, 1, 0)
    assert schedule_mosaic(given).makespan == 5 + 5 + 30 + 5 + 30 + 5


def test_mosaic_takes_branches_one_behind_the_other():
    branches = {0: (1, [1, 3]), 1: (1, [2]), 2: (1, [5]), 3: (1, [4]), 4: (1, [5])}
    given = problem([(1, 1)] * 6, branches)
    assert given.sequence == (0, 1, 3, 2, 4, 5)
    assert schedule_mosaic(given).sequence == (0, 1, 2, 3, 4, 5)


def test_mosaic_leaves_a_slice_for_an_unsupported_operator():
    result = schedule_mosaic(chain([(9, 1), (2, None), (9, 1)], transfer=1))
    assert result.placement == (1, 0, 1)


def test_starpu_looks_at_one_operator_at_a_time():
    # The short operator is ready first and takes the fast processor; the long one has to wait.
    given = problem([(8, 6), (50, 20)], {})
    assert schedule_starpu(given).makespan == 26
    assert schedule_hope_gs(given).makespan == 20


def test_starpu_counts_a_shared_tensor_once():
    # Both readers are done at 16 where receiving costs 6 once; if it did twice, at 22.
    given = problem(
        [(0, None), (20, 5), (20, 5)], {0: (1, [1, 2])}, transfer=TransferCost(((0, 6),))
    )
    result = schedule_starpu(given)
    assert (result.placement, result.makespan) == ((0, 1, 1), 16)


def test_single_processor_falls_back_where_it_must():
    given = chain([(5, 1), (5, None), (5, 1)], transfer=2)
    found = schedule_single(given)
    assert (found.placement, found.makespan) == ((1, 0, 1), 1 + 7 + 3)


def test_partition_makes_small_pieces_in_order():
    given = chain([(1, 1)] * 50)
    pieces = partition(given)
    assert all(0 < len(piece) < 12 for piece in pieces)
    assert [op for piece in pieces for op in piece] == list(given.sequence)
    # Nothing separates operators of one rank.
    assert len(partition(problem([(1, 1)] * 20, {}))) == 1


def test_partition_cuts_where_fewest_operators_are_among_balanced_halves():
    # Operators by rank: 3 1 4 1 3. No cut gives halves of at most 1.2 * 6 operators; with 1.4 * 6
    # the cuts behind the second rank (4 and 8) and the third (8 and 4) do: one cuts 1, one 4.
    ranks = [[0, 1, 2], [3], [4, 5, 6, 7], [8], [9, 10, 11]]
    tensors = {op: (0, after) for level, after in pairwise(ranks) for op in level}
    pieces = partition(problem([(1, 1)] * 12, tensors))
    assert pieces == [(0, 1, 2, 3), (4, 5, 6, 7, 8, 9, 10, 11)]


def test_greedy_search_places_four_operators_at_once_on_two_processors_and_three_on_three():
    two = problem([(1, 1), (1, 1), (1, 1), (3, 3)], {})
    assert schedule_hope_gs(two).makespan == 3
    three = problem([(1, 1, 1), (1, 1, 1), (1, 1, 1), (3, 3, 3)], {})
    assert schedule_hope_gs(three).makespan == 4  # the last operator is not seen before the others


def test_short_operators_follow_their_only_predecessor():
    given = chain([(100, 80), (1, 1), (90, 90), (1, None), (80, 80)])
    merged = merge_short_operators(given)
    assert merged.groups == ((0, 1), (2,), (3,), (4,))  # the last but one would be restricted
    assert merged.problem.operators[0].costs == (101, 81)


def test_short_operators_stay_out_of_groups_that_fewer_processors_support():
    # The first operator holds the network's inputs, which only the first processor has.
    merged = merge_short_operators(chain([(0, None), (1, 1), (90, 90)]))
    assert merged.groups == ((0,), (1,), (2,))


def test_hope_lp_says_how_the_solver_ended_with_each_piece(monkeypatch):
    given = fan([(7, 9), (40, 20), (30, 31), (25, 26), (17, 5), (11, 12), (8, 8)], transfer=3)
    assert schedule_hope_lp(given).pieces == ("proved",)
    assert schedule_hope_gs(given).pieces == ()
    monkeypatch.setattr(ilp, "milp", lambda *_, **__: OptimizeResult(x=None, status=2))
    result = schedule_hope_lp(given)  # the solver calls it infeasible: the list schedule is there
    check_schedule(given, result)
    assert result.pieces == ("list",)


def test_the_program_leaves_room_for_the_solvers_tolerance():
    simulation = Simulation(chain([(10, 10)] * 3))
    program = ilp._Program(simulation, (0, 1, 2), 30)
    latest = program.upper[program.last]
    assert 1.001 < latest / program.scale / 30 < 1.1


def test_mulayer_splits_each_operator_and_pays_for_every_exchange():
    operators = [(160, 160), (160, 160)]
    given = chain(operators, splittable=True)
    assert schedule_mulayer(given).makespan == 160
    dear = chain(operators, splittable=True, transfer=10)
    result = schedule_mulayer(dear)
    check_schedule(dear, result)
    assert result.makespan == 170
    assert {part.share for part in result.problem.operators} == {Fraction(1, 2)}


def test_mulayer_puts_whole_branches_side_by_side_where_that_is_faster():
    """In shares each layer launches twice, and both branches exchange: 2 * (20 + 40) > 100."""
    wide = fan([(0, 0), (100, 100), (100, 100), (0, 0)])
    operators = tuple(replace(op, splittable=bool(op.costs[0])) for op in wide.operators)
    given = replace(wide, operators=operators, launch=(20, 20))
    result = schedule_mulayer(given)
    check_schedule(given, result)
    assert result.makespan == 100 and sorted(result.placement[1:3]) == [0, 1]
    quick = replace(given, launch=(2, 2))  # 2 * (2 + 49) > 100 still, by one launch each
    assert schedule_mulayer(quick).makespan == 100
    unlike = [(0, 0), (100, 20), (20, 100), (0, 0)]
    pairs = zip(operators, unlike, strict=True)
    fast = replace(wide, operators=tuple(replace(op, costs=costs) for op, costs in pairs))
    assert schedule_mulayer(fast).makespan == 20


def windows(given, halo, *, pointwise=()):
    """The same chain of operators that read so many rows beyond a band; some point by point."""
    operators = [
        replace(op, pointwise=True) if i in pointwise else replace(op, halo=halo)
        for i, op in enumerate(given.operators)
    ]
    return replace(given, operators=tuple(operators))


def test_codl_exchanges_at_the_ends_of_chains_only():
    costs = [(0, None), (320, 320), (320, 320), (0, None)]
    given = windows(chain(costs, splittable=True, transfer=20), Fraction(1, 32))
    result = schedule_codl(given)
    check_schedule(given, result)
    halo = 10  # 1/32 of the first operator
    assert result.makespan == 20 + 320 + halo + 20
    assert result.makespan < schedule_mulayer(given).makespan


def test_bias_and_activation_belong_to_the_layer_before_them():
    # conv, bias, relu, conv: one exchange, between the layers, and no rows for bias and relu.
    costs = [(320, 320), (32, 32), (32, 32), (320, 320)]
    given = windows(chain(costs, splittable=True, transfer=10), Fraction(1, 32), pointwise=(1, 2))
    channels, rows = schedule_mulayer(given), schedule_codl(given)
    for result in (channels, rows):
        check_schedule(given, result)
    assert channels.makespan == 160 + 16 + 16 + 10 + 160
    assert rows.makespan == 352 + 10 + 1 + 1  # the rows that the second convolution reaches for


def test_codl_repeats_more_rows_the_more_layers_follow_and_none_for_small_windows():
    costs = [(320, 320)] * 3
    given = windows(chain(costs, splittable=True, transfer=1000), Fraction(1, 32))
    assert schedule_codl(given).makespan == 480 + 20 + 10
    assert schedule_codl(windows(given, Fraction(0))).makespan == 480
    # Each row of a matrix product needs all rows before it: chains are of no use.
    assert schedule_codl(windows(given, Fraction(1))).makespan > 480 + 160


def test_codl_cuts_a_run_where_its_chains_take_least():
    # Together the layers would repeat half a map; apart they exchange once.
    given = windows(chain([(320, 320)] * 2, splittable=True, transfer=20), Fraction(1, 2))
    assert schedule_codl(given).makespan == 160 + 20 + 160


def test_what_is_not_split_stays_where_its_input_is():
    # The last operator is faster elsewhere, by less than the transfer.
    given = chain([(10, 20), (9, 8)], transfer=5, splittable=False)
    assert schedule_mulayer(given).placement == (0, 0)
    assert schedule_codl(given).placement == (0, 0)


def test_a_launch_does_not_shrink_with_the_share():
    given = replace(chain([(100, 100)], splittable=True), launch=(20, 20))
    assert schedule_mulayer(given).makespan == 20 + 40


def test_ours_splits_only_what_may_be_split():
    costs = [(160, 160)] * 3
    assert schedule(chain(costs, splittable=True)).makespan < 300
    assert schedule(chain(costs)).makespan == 480


def test_transfer_costs_are_linear_between_and_beyond_measured_points():
    cost = TransferCost(((0, 10), (100, 20), (300, 120)))
    assert [cost(0), cost(50), cost(100), cost(200), cost(400)] == [10, 15, 20, 70, 170]
    assert FREE(10**9) == 0
    assert linear_transfer(500, 1000)(2_000_000) == 500 + 2_000_000


# The checker finds what is wrong.


def good():
    given = chain([(5, 5), (5, 5), (5, 5)], transfer=2)
    timeline = run_sequence(given, (0, 1, 0), (0, 1, 2))
    return given, result_of("test", timeline, 0)


def test_checker_accepts_a_schedule():
    check_schedule(*good())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"makespan": 18}, "makespan"),
        ({"start": (0, 4, 12)}, "o1"),
        ({"finish": (5, 10, 19)}, "o1 to finish at 12"),
        ({"placement": (0, 0, 0)}, "queue"),
        ({"placement": (0, 1)}, "3 values for placement"),
        ({"placement": (0, 2, 0)}, "supports o1"),
        ({"order": ((0, 2), ())}, "every operator once"),
        ({"order": ((2, 0), (1,))}, "is free"),
    ],
)
def test_checker_refuses(change, message):
    given, result = good()
    with pytest.raises(ScheduleError, match=message):
        check_schedule(given, replace(result, **change))


def test_checker_refuses_a_placement_that_is_not_supported():
    given, result = good()
    other = replace(given, operators=(given.operators[0], Job("o1", (5, None)), Job("o2", (5, 5))))
    with pytest.raises(ScheduleError, match="supports o1"):
        check_schedule(other, replace(result, problem=other))


def test_checker_refuses_parts_that_leave_work_out():
    given = chain([(160, 160), (160, 160)], splittable=True, transfer=1)
    result = schedule_mulayer(given)
    parts = result.problem
    cheaper = (replace(parts.operators[0], costs=(10, None)), *parts.operators[1:])
    smaller = (replace(parts.operators[0], share=Fraction(1, 4)), *parts.operators[1:])
    for operators in (cheaper, smaller):
        with pytest.raises(ScheduleError, match="o0"):
            check_schedule(given, replace(result, problem=replace(parts, operators=operators)))
    unread = tuple(replace(t, consumers=t.consumers[:1]) for t in parts.tensors)
    with pytest.raises(ScheduleError, match="o1@"):
        check_schedule(given, replace(result, problem=replace(parts, tensors=unread)))
    with pytest.raises(ScheduleError, match="whole"):
        check_schedule(chain([(160, 160), (160, 160)], transfer=1), result)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": (Job("a", (1, None)), Job("b", (None, None)))}, "supports b"),
        ({"operators": (Job("a", (1, -1)), Job("b", (1, 1)))}, "at least 0 for a"),
        ({"operators": (Job("a", (1, 1.5)), Job("b", (1, 1)))}, "integer nanoseconds"),
        ({"operators": (Job("a", (1,)), Job("b", (1, 1)))}, "2 costs for a"),
        ({"operators": (Job("a", (1, 1)), Job("a", (1, 1)))}, "'a' twice"),
        ({"tensors": (Tensor("t", 1, 0, (1,)), Tensor("u", 1, 1, (0,)))}, "cycle through a, b"),
        ({"tensors": (Tensor("t", 1, 0, (0,)),)}, "cycle through a"),
        ({"tensors": (Tensor("t", 1, 0, (7,)),)}, "operators 0 to 1 for tensor t"),
        ({"tensors": (Tensor("t", -1, 0, (1,)),)}, "at least 0 bytes for tensor t"),
        ({"tensors": (Tensor("t", 1, 0, (1, 1)),)}, "twice"),
        ({"processors": ()}, "processor"),
        ({"processors": ("cpu", "cpu")}, "'cpu' twice"),
        ({"transfers": ((FREE,),)}, "transfers"),
        ({"transfers": ((FREE, TransferCost(((0, -1),))), (FREE, FREE))}, "transfers"),
        ({"transfers": ((FREE, TransferCost(((5, 1), (0, 2)))), (FREE, FREE))}, "rising size"),
        ({"launch": (1,)}, "launch"),
    ],
)
def test_problems_without_an_answer_are_refused(arguments, message):
    fields = {
        "processors": ("cpu", "gpu"),
        "operators": (Job("a", (1, 1)), Job("b", (1, 1))),
        "tensors": (),
        "transfers": ((FREE, FREE), (FREE, FREE)),
    }
    with pytest.raises(ScheduleError, match=message):
        Problem(**(fields | arguments))


def test_exhaustive_refuses_large_graphs():
    with pytest.raises(ScheduleError, match="at most 12"):
        schedule_exhaustive(chain([(1, 1)] * 13))


def test_simulator_refuses_orders_that_wait_for_each_other():
    given = problem([(1, 1)] * 4, {0: (0, [1]), 2: (0, [3])})
    with pytest.raises(ScheduleError, match="wait for each other"):
        simulate(given, (0, 1, 1, 0), [[3, 0], [1, 2]])


# The simulator.


def test_simulator_runs_a_queue_per_processor_and_receives_before_it_computes():
    # 0 -> 1 (elsewhere, 4 to receive) -> 3; 2 waits behind 1 in the same queue.
    given = problem(
        [(5, None), (None, 7), (None, 2), (3, None)],
        {0: (1, [1]), 1: (1, [3])},
        transfer=TransferCost(((0, 4),)),
    )
    timeline = simulate(given, (0, 1, 1, 0), [[0, 3], [1, 2]])
    assert timeline.start == {0: 0, 1: 5, 2: 16, 3: 16}
    assert timeline.finish == {0: 5, 1: 5 + 4 + 7, 2: 18, 3: 16 + 4 + 3}
    first = simulate(given, (0, 1, 1, 0), [[0, 3], [2, 1]])
    assert (first.start[2], first.start[1]) == (0, 5)


@pytest.mark.parametrize(("caching", "last"), [(True, 10 + 6 + 1 + 1), (False, 10 + 6 + 1 + 6 + 1)])
def test_simulator_keeps_what_was_received(caching, last):
    given = problem(
        [(10, None), (None, 1), (None, 1)], {0: (1, [1, 2])}, transfer=TransferCost(((0, 6),))
    )
    timeline = simulate(replace(given, caching=caching), (0, 1, 1), [[0], [1, 2]])
    assert timeline.finish[2] == last


@pytest.mark.parametrize(
    ("order", "message"),
    [([[0, 0], [1]], "once"), ([[0, 1], []], "processor 1"), ([[0], []], "leave operators out")],
)
def test_simulator_refuses_queues_that_do_not_fit(order, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(problem([(1, 1), (1, 1)], {}), (0, 1), order)
