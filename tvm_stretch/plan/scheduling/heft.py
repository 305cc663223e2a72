"""HEFT (Topcuoglu, Hariri, Wu 2002): longest remaining path first, each to its earliest finish."""

from __future__ import annotations

import time
from bisect import bisect, insort
from collections.abc import Mapping, Sequence
from itertools import islice

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation, simulate

_CLEARLY_LESS = 0.99
"""Another order is taken only if it takes less than this of the one that is there."""

_MOST_STEPS = 12_000  # operators that `reordered` simulates, about 30 us each


def schedule_heft(problem: Problem) -> Result:
    """Schedule with HEFT; `Problem.caching` decides whether received tensors are kept."""
    began = time.perf_counter_ns()
    plan = _Plan(problem)
    ranks = remaining_paths(problem)
    topological = {op: i for i, op in enumerate(problem.sequence)}
    for operator in sorted(topological, key=lambda op: (-ranks[op], topological[op])):
        plan.insert(operator)
    order = [[slot[2] for slot in slots] for slots in plan.slots]
    simulation = simulate(problem, [plan.placement[i] for i in range(len(ranks))], order)
    return result_of("HEFT", simulation, began)


def remaining_paths(problem: Problem) -> list[float]:
    """The longest path from each operator to the end, with mean costs and mean transfers."""
    count = len(problem.processors)
    pairs = max(1, count * (count - 1))
    transfer = [0.0] * len(problem.operators)  # by producer: its most expensive tensor
    for index, tensor in enumerate(problem.tensors):
        mean = sum(map(sum, problem.transfer_ns[index])) / pairs
        transfer[tensor.producer] = max(transfer[tensor.producer], mean)
    ranks = [0.0] * len(problem.operators)
    for operator in reversed(problem.sequence):
        after = max((ranks[s] for s in problem.successors[operator]), default=None)
        rest = 0.0 if after is None else transfer[operator] + after
        ranks[operator] = problem.mean_cost(operator) + rest
    return ranks


class _Plan:
    """The occupied slots of each processor, sorted by time."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.slots: list[list[tuple[int, ...]]] = [[] for _ in problem.processors]
        self.placement: dict[int, int] = {}
        self.finish: dict[int, int] = {}

    def insert(self, operator: int) -> None:
        """Place an operator on the processor where it finishes first."""
        options = [self._earliest(operator, p) for p in self.problem.supported[operator]]
        finish, start, processor = min(options)
        insort(self.slots[processor], (start, finish, operator))
        self.placement[operator] = processor
        self.finish[operator] = finish

    def _earliest(self, operator: int, processor: int) -> tuple[int, int, int]:
        """The first gap that fits the operator, as (finish, start, processor)."""
        problem = self.problem
        ready = max((self.finish[p] for p in problem.predecessors[operator]), default=0)
        duration = problem.cost(operator, processor) + self._receive_ns(operator, processor)
        slots = self.slots[processor]
        first = bisect(slots, (ready,))
        start = max(ready, slots[first - 1][1]) if first else ready
        for begin, finish, _ in slots[first:]:
            if start + duration <= begin:
                break
            start = max(start, finish)
        return start + duration, start, processor

    def _receive_ns(self, operator: int, processor: int) -> int:
        """The time to receive its inputs, without tensors that the processor holds already."""
        problem = self.problem
        total = 0
        for t in problem.reads[operator]:
            tensor = problem.tensors[t]
            source = self.placement[tensor.producer]
            there = any(self.placement.get(c) == processor for c in tensor.consumers)
            if not (there and problem.caching):
                total += problem.transfer_ns[t][source][processor]
        return total


def reordered(simulation: Simulation) -> Simulation:
    """A schedule that is clearly faster than a complete one; that one if none is found.

    Operators run in the order in which they can start. If that gains, operators go to other
    processors one by one, as long as each of them gains.
    """
    problem, ranks = simulation.problem, remaining_paths(simulation.problem)
    listed = _listed(problem, simulation.placement, ranks)
    if _end(listed) > _CLEARLY_LESS * _end(simulation):
        return simulation
    moves = [(op, place) for op, able in enumerate(problem.supported) for place in able]
    for operator, place in islice((*moves, *moves), _MOST_STEPS // len(ranks)):
        if place != listed.placement[operator]:
            moved = _listed(problem, {**listed.placement, operator: place}, ranks)
            listed = min(listed, moved, key=_end)
    return listed


def _listed(problem: Problem, placement: Mapping[int, int], ranks: Sequence[float]) -> Simulation:
    """A schedule in which the next operator is the one that can start first."""
    simulation = Simulation(problem)
    missing = [len(before) for before in problem.predecessors]
    ready = [operator for operator, count in enumerate(missing) if not count]

    def start(operator: int) -> tuple[float, float]:
        free = simulation.free[placement[operator]]
        return max(simulation.ready(operator), free), -ranks[operator]

    while ready:
        operator = min(ready, key=start)
        ready.remove(operator)
        simulation.append(operator, placement[operator])
        for after in problem.successors[operator]:
            missing[after] -= 1
            if not missing[after]:
                ready.append(after)
    return simulation


def _end(simulation: Simulation) -> int:
    return max(simulation.finish.values(), default=0)
