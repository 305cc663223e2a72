"""Node merging (HOPE 3.2): a short operator with one predecessor goes where its predecessor goes.

conv -> relu -> add      becomes      [conv relu] -> add

Both operators must have the same supported processors. Otherwise the network's inputs, which only
the CPU supports, would keep their readers on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_stretch.plan.scheduling.problem import Job, Problem, Tensor
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence

# An operator is short if it takes less than this share of the mean operator on every processor.
_SHORT = 0.1


@dataclass(frozen=True)
class Merged:
    """A smaller problem, and the operators that each of its operators stands for, in order."""

    problem: Problem
    groups: tuple[tuple[int, ...], ...]

    def expand(self, problem: Problem, simulation: Simulation) -> Simulation:
        """Expand a schedule of the merged operators to the original ones."""
        placement = [0] * len(problem.operators)
        sequence: list[int] = []
        position = {op: i for i, op in enumerate(simulation.finish)}  # in which they were appended
        for group in sorted(position, key=lambda g: (simulation.start[g], position[g])):
            for operator in self.groups[group]:
                placement[operator] = simulation.placement[group]
                sequence.append(operator)
        return run_sequence(problem, placement, sequence)


def unmerged(problem: Problem) -> Merged:
    """The problem itself: every operator stays alone."""
    return Merged(problem, tuple((operator,) for operator in range(len(problem.operators))))


def merge_short_operators(problem: Problem) -> Merged:
    """Merge every short operator into its only predecessor, if that restricts no placement."""
    limit = _short_limits(problem)
    group_of: dict[int, int] = {}
    groups: list[list[int]] = []
    for operator in problem.sequence:
        before = problem.predecessors[operator]
        if len(before) == 1 and _may_follow(problem, operator, before[0], limit):
            group_of[operator] = group_of[before[0]]
            groups[group_of[operator]].append(operator)
        else:
            group_of[operator] = len(groups)
            groups.append([operator])
    operators = tuple(_super_operator(problem, group) for group in groups)
    merged = Problem(
        problem.processors,
        operators,
        tuple(_outer_tensors(problem, group_of)),
        problem.transfers,
        problem.caching,
        problem.launch,
    )
    return Merged(merged, tuple(map(tuple, groups)))


def _short_limits(problem: Problem) -> list[float]:
    limits = []
    for processor in range(len(problem.processors)):
        costs = [c for op in problem.operators if (c := op.costs[processor]) is not None]
        limits.append(_SHORT * sum(costs) / max(1, len(costs)))
    return limits


def _may_follow(problem: Problem, operator: int, before: int, limit: list[float]) -> bool:
    short = all(problem.cost(operator, p) <= limit[p] for p in problem.supported[operator])
    return short and problem.supported[operator] == problem.supported[before]


def _super_operator(problem: Problem, group: list[int]) -> Job:
    costs: list[int | None] = []
    for processor in range(len(problem.processors)):
        parts = [problem.operators[i].costs[processor] for i in group]
        costs_of = [part for part in parts if part is not None]
        costs.append(sum(costs_of) if len(costs_of) == len(parts) else None)
    return Job(problem.operators[group[0]].name, tuple(costs))


def _outer_tensors(problem: Problem, group_of: dict[int, int]) -> list[Tensor]:
    tensors = []
    for tensor in problem.tensors:
        producer = group_of[tensor.producer]
        readers = sorted({group_of[c] for c in tensor.consumers} - {producer})
        if readers:
            tensors.append(Tensor(tensor.name, tensor.bytes, producer, tuple(readers)))
    return tensors
