"""HOPE, algorithm 1: cut a graph at an upward rank, recursively, until the pieces are small.

The upward rank of an operator is the length of the longest path to it. Operators up to a rank go
first, so the pieces are in a topological order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tvm_stretch.plan.scheduling.problem import Problem

# Pieces have fewer operators than this (NT in the paper), and this balance at first (ε).
PIECE = 12
BALANCE = 0.2
_BALANCE_STEP = 0.1


def partition(
    problem: Problem, *, piece: int = PIECE, balance: float = BALANCE
) -> list[tuple[int, ...]]:
    """The operators in pieces; each piece in topological order."""
    return _partition(problem, problem.sequence, piece, balance)


def _partition(
    problem: Problem, operators: Sequence[int], piece: int, balance: float
) -> list[tuple[int, ...]]:
    if len(operators) < piece:
        return [tuple(operators)] if operators else []
    ranks = _upward_ranks(problem, operators)
    cut = _best_cut(Counter(ranks.values()), balance)
    if cut is None:  # all have one rank, so no cut separates them
        return [tuple(operators)]
    first = [op for op in operators if ranks[op] <= cut]
    second = [op for op in operators if ranks[op] > cut]
    parts = (_partition(problem, some, piece, balance) for some in (first, second))
    return [part for pieces in parts for part in pieces]


def _upward_ranks(problem: Problem, operators: Sequence[int]) -> dict[int, int]:
    ranks: dict[int, int] = {}
    for operator in operators:
        before = (ranks[p] for p in problem.predecessors[operator] if p in ranks)
        ranks[operator] = 1 + max(before, default=0)
    return ranks


def _best_cut(counts: Counter[int], balance: float) -> int | None:
    """The rank with the fewest operators among those that balance the halves.

    The paper's line 15 also compares the balance, with a sign that would prefer lopsided halves;
    here the balance breaks ties.
    """
    total, top = counts.total(), max(counts)
    if top == 1:
        return None
    while True:
        candidates, below = [], 0
        for rank in range(1, top):
            below += counts[rank]
            if max(below, total - below) <= (1 + balance) * total / 2:
                candidates.append((counts[rank], abs(total - 2 * below), rank))
        if candidates:
            return min(candidates)[2]
        balance += _BALANCE_STEP
