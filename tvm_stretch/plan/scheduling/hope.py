"""HOPE (Xia et al. 2022): an integer linear program per piece of the graph, or a greedy search.

HOPE:LP   merge short operators, cut into pieces (algorithm 1), solve each piece
HOPE:GS   merge short operators, place the K operators that can start first (algorithm 2)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from tvm_stretch.plan.scheduling.hope_partition import BALANCE, PIECE, partition
from tvm_stretch.plan.scheduling.ilp import solve_piece
from tvm_stretch.plan.scheduling.merge import merge_short_operators, unmerged
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation

# The solver's time for one piece. The limit of nodes should end it earlier, so that answers do not
# depend on the machine's load; this is only a guard.
_SECONDS_PER_PIECE = 300.0


def schedule_hope_lp(
    problem: Problem, *, merges: bool = True, piece: int = PIECE, balance: float = BALANCE
) -> Result:
    """HOPE:LP: pieces are solved in order, each after the schedule of the pieces before it.

    The solver has a limit of nodes; `Result.pieces` says how it ended with each piece.
    """
    began = time.perf_counter_ns()
    merged = merge_short_operators(problem) if merges else unmerged(problem)
    simulation = Simulation(merged.problem)
    pieces = partition(merged.problem, piece=piece, balance=balance)
    ends = [solve_piece(simulation, piece, seconds=_SECONDS_PER_PIECE) for piece in pieces]
    result = result_of("HOPE:LP", merged.expand(problem, simulation), began)
    return replace(result, pieces=tuple(ends))


def schedule_ilp(problem: Problem) -> Result:
    """The integer linear program of the whole graph: optimal, for small graphs."""
    began = time.perf_counter_ns()
    simulation = Simulation(problem)
    end = solve_piece(simulation, problem.sequence)
    return result_of("ILP", simulation, began, optimal=end == "proved")


def schedule_hope_gs(problem: Problem, *, merges: bool = True, width: int = 0) -> Result:
    """HOPE:GS, the greedy search; without a width (K), K is 4 for two processors, 3 for more."""
    began = time.perf_counter_ns()
    merged = merge_short_operators(problem) if merges else unmerged(problem)
    simulation = _greedy(merged.problem, width or (4 if len(problem.processors) <= 2 else 3))
    return result_of("HOPE:GS", merged.expand(problem, simulation), began)


def _greedy(problem: Problem, width: int) -> Simulation:
    """Algorithm 2."""
    simulation = Simulation(problem)
    waiting = [len(before) for before in problem.predecessors]
    queue = [op for op in problem.sequence if waiting[op] == 0]
    while queue:
        queue.sort(key=simulation.ready)
        chosen, queue = queue[:width], queue[width:]
        for operator, processor in zip(chosen, _best_mapping(simulation, chosen), strict=True):
            simulation.append(operator, processor)
        for operator in chosen:
            for successor in problem.successors[operator]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    queue.append(successor)
    return simulation


def _best_mapping(simulation: Simulation, operators: Sequence[int]) -> tuple[int, ...]:
    """The processors with the earliest last finish, then with the least sum of finishes.

    None of the operators may read another one's result.
    """
    problem = simulation.problem
    ready = [simulation.ready(op) for op in operators]
    missing = {
        (op, p): [(t, simulation.transfer_to(t, p)) for t in simulation.to_receive(op, p)]
        for op in operators
        for p in problem.supported[op]
    }

    def ends(processors: tuple[int, ...]) -> tuple[int, int]:
        free, received = list(simulation.free), set()
        total = 0
        for op, p, begin in zip(operators, processors, ready, strict=True):
            end = max(free[p], begin) + problem.cost(op, p)
            for tensor, cost in missing[op, p]:
                if (tensor, p) not in received:
                    end += cost
                    if problem.caching:
                        received.add((tensor, p))
            free[p] = end
            total += end
        return max(free[p] for p in processors), total

    return min(product(*(problem.supported[op] for op in operators)), key=ends)
