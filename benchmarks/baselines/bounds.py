"""Lower bounds of the makespan.

Load: for weights w >= 0 of the processors that sum to 1, the makespan T is at least every
processor's load, so T >= sum of w[p] * load[p] >= sum over operators of min over p w[p] * cost[p].
The best weights give the linear relaxation; a grid of them comes close and needs no solver.

Path: an operator on processor p starts after each operator that it reads, on whichever q, has
finished and its result has been received; the longest path takes the best q at every step.

Segments: all operators between u and v (after u, before v) have to run between them, so bounds add
up along a chain of operators:

    u ──> [a b c] ──> v ──> [d e] ──> w     T >= time(a b c, v) + time(d e, w) + ...

The bound of v is the longest such chain, where time(...) is the larger of load and critical path.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from math import ceil

import numpy as np
import numpy.typing as npt

from tvm_stretch.plan.scheduling import check
from tvm_stretch.plan.scheduling.check_parts import require
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result

# The number of operators that split a graph best; the bound considers every pair of them.
_HUBS = 48


def lower_bound(problem: Problem) -> int:
    """Nanoseconds that every schedule of the problem takes at least."""
    bound: int | None = problem.__dict__.get("_lower_bound")
    if bound is None:
        bound = max(critical_path(problem), _segments(problem)) if problem.operators else 0
        problem.__dict__["_lower_bound"] = bound  # the problem is frozen, so this stays true
    return bound


def check_schedule(problem: Problem, result: Result) -> None:
    """Like ``scheduling.check_schedule``; the lower bounds have to hold, too."""
    check.check_schedule(problem, result)
    bound = bound_of(result)
    require(bound <= result.makespan, f"expected at least {bound} for makespan, got less")


def bound_of(result: Result) -> int:
    """Nanoseconds that every schedule of the result's problem takes at least."""
    if result.proved:
        return result.makespan
    if any(operator.whole for operator in result.problem.operators):
        return critical_path(result.problem)  # the better bound holds without split operators only
    return lower_bound(result.problem)


def gap_of(result: Result) -> float:
    """How far above the lower bound a schedule is, as a share of the schedule."""
    return 1 - bound_of(result) / result.makespan if result.makespan else 0.0


def critical_path(problem: Problem) -> int:
    """The longest path if every operator runs where the path is shortest."""
    if not problem.operators:
        return 0
    every_start = np.zeros((1, len(problem.processors)))
    finish = _finishes(problem, {}, every_start)
    return int(max(times.min() for times in finish))


def _segments(problem: Problem) -> int:
    """The longest chain of segments between hubs."""
    before = _ancestors(problem)
    comparable = before.sum(axis=0) + before.sum(axis=1)
    central = set(np.argsort(-comparable, kind="stable")[:_HUBS].tolist())
    hubs = [i for i in problem.sequence if i in central]
    loads = _weighted_costs(problem)  # [weights, operators]
    path = _paths_from(problem, hubs)  # [hub, operator]: longest path after the hub
    after = before[hubs].T.astype(np.float64)  # [operator, hub]
    reached: dict[int, float] = {}
    for v in hubs:
        inside = before[:, v].copy()
        inside[v] = True
        own = loads[:, inside]
        bound = float(own.sum(axis=1).max())
        earlier = [(k, u) for k, u in enumerate(hubs) if before[u, v]]
        if earlier:
            segment = (own @ after[np.ix_(inside, [k for k, _ in earlier])]).max(axis=0)
            for (k, u), load in zip(earlier, segment, strict=True):
                bound = max(bound, reached[u] + max(float(load), float(path[k, v])))
        reached[v] = bound
    return _close(problem, hubs, reached, before, loads, path)


def _close(
    problem: Problem,
    hubs: list[int],
    reached: dict[int, float],
    before: npt.NDArray[np.bool_],
    loads: npt.NDArray[np.float64],
    path: npt.NDArray[np.float64],
) -> int:
    """Add the way from the last hub to the end of the network."""
    total = float(loads.sum(axis=1).max())
    for k, hub in enumerate(hubs):
        rest = max(float((loads @ before[hub]).max()), float(path[k].max()))
        total = max(total, reached[hub] + rest)
    return ceil(total * (1 - 1e-11))  # a sum of floats; times are whole nanoseconds


def _ancestors(problem: Problem) -> npt.NDArray[np.bool_]:
    """``[u, v]``: whether u has to finish before v starts."""
    count = len(problem.operators)
    before = np.zeros((count, count), dtype=bool)
    for operator in problem.sequence:
        for predecessor in problem.predecessors[operator]:
            before[:, operator] |= before[:, predecessor]
            before[predecessor, operator] = True
    return before


def _paths_from(problem: Problem, hubs: list[int]) -> npt.NDArray[np.float64]:
    """``[k, v]``: the longest path that starts after hub k and ends with v; 0 without a path."""
    nowhere = np.full((len(hubs), len(problem.processors)), -np.inf)
    finish = _finishes(problem, {hub: k for k, hub in enumerate(hubs)}, nowhere)
    return np.maximum(np.stack([times.min(axis=1) for times in finish], axis=1), 0)


def _finishes(
    problem: Problem, hubs: dict[int, int], start: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """By operator, ``[k, p]``: its earliest finish on p, by its paths from hub k.

    Args:
        problem: the problem.
        hubs: operators with their row, in which they finish at 0 on each processor that supports
            them.
        start: by row and processor, when operators without predecessors may start.
    """
    costs = _cost_table(problem)
    finish = [start] * len(problem.operators)
    for operator in problem.sequence:
        ready = start
        for t in problem.reads[operator]:
            before = finish[problem.tensors[t].producer]
            transfer = np.array(problem.transfer_ns[t], dtype=np.float64)
            ready = np.maximum(ready, (before[:, :, None] + transfer).min(axis=1))
        # Rows without a path to the operator stay unknown, even where it is not supported.
        known = np.isfinite(ready)
        finish[operator] = np.where(known, np.where(known, ready, 0) + costs[operator], ready)
        if operator in hubs:
            finish[operator][hubs[operator]] = np.where(np.isinf(costs[operator]), np.inf, 0.0)
    return finish


def _cost_table(problem: Problem) -> npt.NDArray[np.float64]:
    """``[i, p]``; infinite where operator i is not supported."""
    return np.array(
        [[np.inf if c is None else c for c in op.costs] for op in problem.operators],
        dtype=np.float64,
    )


def _weighted_costs(problem: Problem) -> npt.NDArray[np.float64]:
    """``[w, i]``: the cheapest weighted cost of operator i for the w-th choice of weights."""
    costs = _cost_table(problem)
    weights = _weights(len(problem.processors))  # [weights, processors]
    with np.errstate(invalid="ignore"):  # 0 * inf: weight 0, unsupported
        weighted = weights[:, None, :] * costs[None, :, :]
    weighted[np.isnan(weighted)] = np.inf
    return weighted.min(axis=2)


@cache
def _weights(count: int) -> npt.NDArray[np.float64]:
    """Weights that sum to 1, evenly spread over ratios between 1:64 and 64:1, or 1:16 and 16:1."""
    reach, steps = (6, 193) if count == 2 else (4, max(3, int(240 ** (1 / max(1, count - 1)))))
    ratios = np.concatenate([[0.0], np.exp2(np.linspace(-reach, reach, steps))])
    grid = np.array([(1.0, *rest) for rest in product(ratios, repeat=count - 1)])
    return np.concatenate([grid / grid.sum(axis=1, keepdims=True), np.eye(count)])
