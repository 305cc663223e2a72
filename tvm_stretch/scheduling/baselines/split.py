"""Operators computed in parts, each on another processor; µLayer and CoDL, which work this way.

    conv 8 ms on cpu, 4 ms on gpu   ->   conv@cpu 1/3, 2.7 ms    conv@gpu 2/3, 2.7 ms

Channels (µLayer): each part reads the whole input, so every operator exchanges what others wrote.
Rows (CoDL): inside a chain a part reads only the rows of its own processor, and computes some rows
more for the operators behind it; parts meet at the end of the chain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from tvm_stretch.scheduling.check import HALO
from tvm_stretch.scheduling.problem import Job, Problem, Tensor
from tvm_stretch.scheduling.result import Result, result_of
from tvm_stretch.scheduling.simulate import run_sequence

# Shares are multiples of 1/16: channels come in blocks.
_GRAIN = 16
_LONGEST_CHAIN = 4


@dataclass(frozen=True)
class SplitChain:
    """Operators, each the only reader of the one before, cut into the same shares of rows.

    Attributes:
        operators: one for a split by channels.
        shares: processor -> share; they sum to 1.
    """

    operators: tuple[int, ...]
    shares: dict[int, Fraction]


def schedule_mulayer(problem: Problem) -> Result:
    """µLayer (Kim et al. 2019): every layer on all processors, in shares that finish together.

    A layer that no split makes faster runs where it takes least.  Synchronisation is not in the
    estimate, which is what makes small layers slow.
    """
    began = time.perf_counter_ns()
    chains = []
    for operator in problem.sequence:
        if problem.operators[operator].splittable:
            chain = _best_chain(problem, (operator,), exchange=False)
            chains.extend([chain] if chain else [])
    return _all_pinned("µLayer", split(problem, chains), began)


def schedule_codl(problem: Problem) -> Result:
    """CoDL (Jia et al. 2022): chains of operators on all processors, transfers in the estimate."""
    began = time.perf_counter_ns()
    return _all_pinned("CoDL", split(problem, codl_chains(problem)), began)


def codl_chains(problem: Problem) -> list[SplitChain]:
    """The chains that are faster split, transfers at both ends included."""
    chains = []
    for run in _linear_runs(problem):
        while run:
            found = None
            for length in range(min(_LONGEST_CHAIN, len(run)), 0, -1):
                found = _best_chain(problem, run[:length], exchange=True)
                if found:
                    break
            chains.extend([found] if found else [])
            run = run[len(found.operators) if found else 1 :]
    return chains


def _all_pinned(name: str, problem: Problem, began: int) -> Result:
    """Parts run where they must, everything else where it takes least."""
    placement = [problem.fastest(i) for i in range(len(problem.operators))]
    return result_of(name, run_sequence(problem, placement, problem.sequence), began)


def _linear_runs(problem: Problem) -> list[tuple[int, ...]]:
    """Splittable operators in runs in which each is the only reader of the one before."""
    runs: dict[int, list[int]] = {}  # by the last operator
    for operator in problem.sequence:
        if not problem.operators[operator].splittable:
            continue
        before = problem.predecessors[operator]
        joins = len(before) == 1 and before[0] in runs and len(problem.successors[before[0]]) == 1
        runs[operator] = [*(runs.pop(before[0]) if joins else []), operator]
    return [tuple(run) for run in runs.values()]


def _best_chain(
    problem: Problem, operators: tuple[int, ...], *, exchange: bool
) -> SplitChain | None:
    """The shares with which the operators finish first, or None if one processor is as fast."""
    common = set.intersection(*(set(problem.supported[op]) for op in operators))
    best: SplitChain | None = None
    least = min((sum(problem.cost(op, p) for op in operators) for p in common), default=0)
    for count in range(2, len(common) + 1):
        for processors in combinations(sorted(common), count):
            shares = _balanced(problem, operators, processors)
            chain = SplitChain(operators, shares)
            time = max(_chain_cost(problem, chain, p) for p in shares)
            if exchange:
                time += _exchange_cost(problem, chain)
            if len(shares) == count and time < least:
                best, least = chain, time
    return best


def _balanced(
    problem: Problem, operators: Sequence[int], processors: Sequence[int]
) -> dict[int, Fraction]:
    """Shares in proportion to speed; what rounding leaves goes to the fastest."""
    times = {p: max(1, sum(problem.cost(op, p) for op in operators)) for p in processors}
    total = sum(1 / t for t in times.values())
    grains = {p: int(_GRAIN / t / total) for p, t in times.items()}
    grains[min(times, key=times.__getitem__)] += _GRAIN - sum(grains.values())
    return {p: Fraction(grain, _GRAIN) for p, grain in grains.items() if grain}


def _chain_cost(problem: Problem, chain: SplitChain, processor: int) -> int:
    share = chain.shares[processor]
    last = len(chain.operators) - 1
    return sum(
        part_cost(problem, op, processor, with_halo(share, last - position))
        for position, op in enumerate(chain.operators)
    )


def _exchange_cost(problem: Problem, chain: SplitChain) -> int:
    """The dearest processor's transfers: the input it does not have, the parts it did not write."""
    home = problem.fastest(chain.operators[0])
    enter = problem.reads[chain.operators[0]]
    leave = problem.writes[chain.operators[-1]]
    costs = [0]
    for processor in chain.shares:
        cost = sum(problem.transfer_ns[t][home][processor] for t in enter)
        for other, share in chain.shares.items():
            if other != processor:
                sizes = (_share_of(problem.tensors[t].bytes, share) for t in leave)
                cost += sum(problem.transfers[other][processor](size) for size in sizes)
        costs.append(cost)
    return max(costs)


def with_halo(share: Fraction, following: int) -> Fraction:
    """The share of rows to compute so that ``following`` operators of the chain can go on."""
    return min(Fraction(1), share + HALO * following)


def part_cost(problem: Problem, operator: int, processor: int, share: Fraction) -> int:
    """A share of an operator takes that share of its time, but a whole launch."""
    cost = problem.cost(operator, processor)
    launch = min(cost, problem.launch[processor]) if problem.launch else 0
    return launch + _share_of(cost - launch, share)


def _share_of(amount: int, share: Fraction) -> int:
    return -(-amount * share.numerator // share.denominator)


def split(problem: Problem, chains: Sequence[SplitChain]) -> Problem:
    """The problem with the operators of the chains in parts."""
    parts: dict[int, dict[int, int]] = {}  # operator -> processor -> part
    chain_of: dict[int, SplitChain] = {op: chain for chain in chains for op in chain.operators}
    operators: list[Job] = []
    whole_of: dict[int, int] = {}
    for index, operator in enumerate(problem.operators):
        if index not in chain_of:
            whole_of[index] = len(operators)
            operators.append(operator)
            continue
        parts[index] = {}
        for processor in chain_of[index].shares:
            parts[index][processor] = len(operators)
            operators.append(_part(problem, index, chain_of[index], processor))
    tensors = []
    for tensor in problem.tensors:
        chain = chain_of.get(tensor.producer)
        sources = parts.get(tensor.producer) or {-1: whole_of[tensor.producer]}
        for processor, source in sources.items():
            readers: list[int] = []
            for consumer in tensor.consumers:
                if consumer not in parts:
                    readers.append(whole_of[consumer])
                elif chain is not None and consumer in chain.operators:
                    readers.append(parts[consumer][processor])
                else:
                    readers.extend(parts[consumer].values())
            share = chain.shares[processor] if chain else Fraction(1)
            size = _share_of(tensor.bytes, share)
            name = f"{tensor.name}@{problem.processors[processor]}" if chain else tensor.name
            tensors.append(Tensor(name, size, source, tuple(readers)))
    return Problem(
        problem.processors,
        tuple(operators),
        tuple(tensors),
        problem.transfers,
        problem.caching,
        problem.launch,
    )


def _part(problem: Problem, index: int, chain: SplitChain, processor: int) -> Job:
    whole = problem.operators[index]
    share = chain.shares[processor]
    following = len(chain.operators) - 1 - chain.operators.index(index)
    cost = part_cost(problem, index, processor, with_halo(share, following))
    only = tuple(cost if p == processor else None for p in range(len(problem.processors)))
    return Job(f"{whole.name}@{problem.processors[processor]}", only, whole=whole.name, share=share)
