"""HOPE (Xia et al. 2022): an integer linear program per piece of the graph, or a greedy search.

HOPE:LP   merge short operators, cut into pieces (algorithm 1), solve each piece exactly
HOPE:GS   merge short operators, place the K operators that can start first (algorithm 2)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product

from tvm_stretch.scheduling.hope_partition import partition
from tvm_stretch.scheduling.ilp import solve_piece
from tvm_stretch.scheduling.merge import Merged, merge_short_operators
from tvm_stretch.scheduling.problem import Problem
from tvm_stretch.scheduling.result import Result, result_of
from tvm_stretch.scheduling.simulate import Timeline, run_sequence

# What the solver may spend on one piece.
_SECONDS_PER_PIECE = 5.0


def schedule_hope_lp(problem: Problem) -> Result:
    """HOPE:LP. Each piece starts with the processors and tensors as the pieces before left them."""
    began = time.perf_counter_ns()
    merged = merge_short_operators(problem)
    timeline = Timeline(merged.problem)
    for piece in partition(merged.problem):
        solve_piece(timeline, piece, seconds=_SECONDS_PER_PIECE)
    return result_of("HOPE:LP", _expand(problem, merged, timeline), began)


def schedule_ilp(problem: Problem) -> Result:
    """The integer linear program of the whole graph: optimal, for small graphs."""
    began = time.perf_counter_ns()
    timeline = Timeline(problem)
    optimal = solve_piece(timeline, problem.sequence)
    return result_of("ILP", timeline, began, optimal=optimal)


def schedule_hope_gs(problem: Problem) -> Result:
    """HOPE:GS."""
    began = time.perf_counter_ns()
    merged = merge_short_operators(problem)
    timeline = _greedy(merged.problem)
    return result_of("HOPE:GS", _expand(problem, merged, timeline), began)


def _greedy(problem: Problem) -> Timeline:
    """Algorithm 2: K is 4 for two processors and 3 for more."""
    width = 4 if len(problem.processors) <= 2 else 3
    timeline = Timeline(problem)
    waiting = [len(before) for before in problem.predecessors]
    queue = [op for op in problem.sequence if waiting[op] == 0]
    while queue:
        queue.sort(key=timeline.ready)
        chosen, queue = queue[:width], queue[width:]
        timeline = _best_mapping(timeline, chosen)
        for operator in chosen:
            for successor in problem.successors[operator]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    queue.append(successor)
    return timeline


def _best_mapping(timeline: Timeline, operators: Sequence[int]) -> Timeline:
    """The placement with which the last of the operators finishes first; then the other ones."""
    best: tuple[tuple[int, int], Timeline] | None = None
    for processors in product(*(timeline.problem.supported[op] for op in operators)):
        trial = timeline.copy()
        ends = [trial.append(op, p) for op, p in zip(operators, processors, strict=True)]
        if best is None or (max(ends), sum(ends)) < best[0]:
            best = (max(ends), sum(ends)), trial
    assert best is not None
    return best[1]


def _expand(problem: Problem, merged: Merged, timeline: Timeline) -> Timeline:
    """The schedule of the merged operators, as one of the operators they stand for."""
    placement = [0] * len(problem.operators)
    sequence: list[int] = []
    position = {op: i for i, op in enumerate(timeline.finish)}  # in which they were appended
    for group in sorted(position, key=lambda g: (timeline.start[g], position[g])):
        for operator in merged.groups[group]:
            placement[operator] = timeline.placement[group]
            sequence.append(operator)
    return run_sequence(problem, placement, sequence)
