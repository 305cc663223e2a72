"""The candidates of a network: each processor alone, and plans for several, worked out.

chains (chain.py), designed branches ──realise.py──> plans with predicted times ──> Found

A stretched network was designed for a plan: its branches run on the processors that
passes/duplicate_and_scale.py recorded, concats between them on one processor or in parts, and stem
and classifier as in any network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.base.words import counted
from tvm_stretch.make.branching import Branching
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.duplicate_and_scale import branch_operators, processors_of_branches
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search.chain import CLEARLY_LESS, Chain, ChainSearch
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.options import Option, one_by_one
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.realise import Candidate, by_objective, realise
from tvm_stretch.plan.search.scheduled import scheduled

_DOUBT = (1.25, 1.02)
"""A plan is worth building if it is predicted to take at most this many times the best processor
alone: first by costs that were not measured, then by measured ones."""


_STEPS, _PACE = 400, 0.5  # towards better weights of `least_ns`; any weights give a bound
_NOT_FIRST = "not built: another one is predicted to be faster"


@dataclass(frozen=True)
class Found:
    """What a search found."""

    # everything on one processor, the fastest first; empty if none supports it all
    singles: tuple[Candidate, ...]
    # plans for several processors that may be faster, the most promising first
    rivals: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()  # for people
    passed: tuple[Considered, ...] = ()  # plans that were dropped, and why
    least_ns: int = 0  # a bound of the time of any plan

    def bounded(self, least: int) -> Found:
        """The same with a bound, by which each candidate can be judged."""
        singles = tuple(replace(one, least_ns=least) for one in self.singles)
        rivals = tuple(replace(one, least_ns=least) for one in self.rivals)
        passed = tuple(replace(one, least_ns=least) for one in self.passed)
        return Found(singles, rivals, self.notes, passed, least)


def find_candidates(
    network: Network, costs: Costs, ranking: Sequence[Chain], most: int, limits: Limits
) -> Found:
    """The plans that may be worth building, the most promising first."""
    better = by_objective(limits)
    free = filter(limits.may_do_all, range(len(costs.processors)))
    singles = [_alone(network, costs, place) for place in free]
    ranked = sorted(filter(None, singles), key=better)
    if len(costs.processors) < 2:
        return Found(tuple(ranked), ())
    limit = _DOUBT[costs.trusted] * ranked[0].cost.ns if ranked else float("inf")
    notes, passed = _unlike_measured(network, costs), list[Considered]()
    most = most if costs.trusted or ranking[0].only_shares else 2
    if limits.objective.needs:  # a slow plan may take the least
        limit, most = float("inf"), len(ranking)
    rivals = _work_out(network, costs, ranking, (limit, most), (notes, passed), limits)
    designed = as_designed(network, costs, limits)
    if isinstance(designed, Candidate):
        rivals.insert(0, designed)
    elif designed is not None:
        notes.append(f"branches as designed: {designed}")
    if limits.scheduler is not None:
        asked = scheduled(network, costs, limits.scheduler, limits)
        if isinstance(asked, Candidate):
            rivals.append(asked)
        else:
            passed.append(asked)
    if not ranked and not rivals:
        plain = realise(network, costs, one_by_one(network, costs, limits), "one by one", limits)
        if isinstance(plain, str):
            raise UnsupportedError(
                f"expected a plan that these processors can run, got none: {plain}; add a "
                "processor, or change the network"
            )
        rivals.append(plain)
    return Found(tuple(ranked), tuple(rivals), tuple(dict.fromkeys(notes)), tuple(passed))


def _alone(network: Network, costs: Costs, place: int) -> Candidate | None:
    """All operators on one processor, if it supports them."""
    if any(costs.whole(group, place) is None for group in network.graph.groups):
        return None
    kernels = costs.kernels.alone(network.graph, place)
    total = costs.regions[place] + costs.sum(kernels, place)
    processors = tuple(processor.name for processor in costs.processors)
    operators = tuple(Calls(network.mod["main"]).calls)
    energy = costs.millijoules(place, total)
    region = PlannedRegion("r0", processors[place], operators, (0, total), "one processor", energy)
    busy = tuple(total if p == place else 0 for p in range(len(processors)))
    cost = costs.cost(total, busy)
    regions = (region,) if operators else ()
    plan = Plan(processors, regions, costs=costs.source, predicted_mj=cost.millijoules)
    alone, branched = f"{processors[place]} alone", Branching(network.mod, {})
    return Candidate(plan, alone, cost, busy, branched)


def _work_out(
    network: Network,  # the network to plan
    costs: Costs,  # of its kernels
    ranking: Sequence[Chain],  # as `rank` gives it
    limits: tuple[float, int],  # the longest predicted latency, and how many plans
    # notes, and the plans that are passed over; both lists grow
    remarks: tuple[list[str], list[Considered]],
    allowed: Limits,  # what processors may compute at most
) -> list[Candidate]:
    """The plans of promising chains, the most promising first."""
    (limit, most), (notes, passed) = limits, remarks
    clearly_less = CLEARLY_LESS[costs.trusted]
    rivals: list[Candidate] = []
    for chain in ranking:
        what = _describe(chain.options)
        # Each share of a layer transforms its whole input, which the chain does not count.
        disappointing = bool(rivals) and chain.ns < clearly_less * rivals[0].cost.ns
        clearly = chain.ns < clearly_less * limit / _DOUBT[costs.trusted]
        together = any(option.uses_several for option in chain.options)
        may_turn = _in_turns(chain) and (clearly or bool(allowed.objective.needs))
        is_bounded = limit < float("inf") or bool(allowed.objective.needs)
        if not together and not may_turn and is_bounded:
            notes.append("no way to use several processors is predicted to be faster")
        elif chain.ns > limit:
            why = "not built: one processor is predicted to be faster"
            passed.append(Considered(what, chain.ns, costs.source, verdict=why))
        elif len(rivals) == most and not disappointing:
            passed.append(Considered(what, chain.ns, costs.source, verdict=_NOT_FIRST))
        else:
            rival = realise(network, costs, chain.options, what, allowed)
            if isinstance(rival, str):
                why = f"impossible: {rival}"
                passed.append(Considered(what, chain.ns, costs.source, verdict=why))
            else:
                rivals.append(rival)
    if allowed.objective.needs:
        rivals.sort(key=by_objective(allowed))
    elif len(rivals) > 1 and rivals[1].cost.ns < clearly_less * rivals[0].cost.ns:
        rivals.reverse()
        most = most if costs.trusted else 2
    passed += [one.considered(_NOT_FIRST) for one in rivals[most:]]
    return rivals[:most]


def _in_turns(chain: Chain) -> bool:
    """Whether several processors work one after the other, such as a CPU at the ends of an NPU."""
    return len({step.place for option in chain.options for step in option.steps}) > 1


def _unlike_measured(network: Network, costs: Costs) -> list[str]:
    groups = network.graph.groups
    unlike = costs.unlike_measured(groups) if costs.trusted else 0
    if not unlike:
        return []
    return [
        f"{unlike} of {len(groups)} kernels are unlike all that were measured here: "
        "ts.tune.measure(..., networks={...}) measures this network's"
    ]


def _describe(options: Sequence[Option]) -> str:
    """``30 layers in shares, 2 segments in rows, 3 pieces scheduled``."""
    splits = [option.splits[0].by for option in options if option.splits]
    counts = (
        (sum(len(option.shares) for option in options), "layer", " in shares"),
        (splits.count("rows"), "segment", " in rows"),
        (splits.count("channels"), "segment", " in channels"),
        (sum(bool(option.scheduler) for option in options), "segment", " scheduled"),
    )
    return ", ".join(counted(*words) for words in counts if words[0]) or "one by one"


def as_designed(
    network: Network, costs: Costs, limits: Limits = NO_LIMITS
) -> Candidate | str | None:
    """The plan; None for a network without branches for these processors, or why it cannot be."""
    recorded = branch_operators(network.mod)
    names = [processor.name for processor in costs.processors]
    if not recorded or not set(recorded) <= set(names):
        return None
    owner = processors_of_branches(network.mod)
    designed: dict[str, int] = {}
    for group in network.graph.groups:
        if group.name not in owner:
            continue
        place = names.index(owner[group.name])
        if costs.whole(group, place) is None:
            return f"{group.name} on {names[place]}: {_refusal(network, costs, group.name, place)}"
        designed[group.name] = place
    chain = ChainSearch(network, costs, designed, limits).best(splits=False)
    shared = sum(len(option.shares) for option in chain.options)
    parts = f", {counted(shared, 'layer', ' in shares')}" if shared else ""
    return realise(network, costs, chain.options, f"branches as designed{parts}", limits)


def _refusal(network: Network, costs: Costs, name: str, place: int) -> str:
    group = next(group for group in network.graph.groups if group.name == name)
    reasons = (costs.processors[place].why_not(operator.call) for operator in group.operators)
    return next(filter(None, reasons), "refused")


def least_ns(times: Sequence[Sequence[int | None]]) -> int:
    """A bound of the time of any plan: processors are always busy, and kernels shared in any parts.

    conv    cpu 4 ms, gpu 2 ms    both processors always busy, nothing handed over: 1.67 ms
    add     cpu 1 ms, gpu 2 ms

    A plan takes at least any weighted mean of its processors' loads. The mean is least if each
    kernel runs where its weighted time is least: a bound for all weights of sum 1.

    Args:
        times: nanoseconds of each kernel on each processor, None where it is not supported.
    """
    if not times:
        return 0
    costs = np.array([[np.inf if ns is None else float(ns) for ns in row] for row in times])
    weights = np.full(costs.shape[1], 1 / costs.shape[1])
    best = 0.0
    for step in range(_STEPS):
        weighted = costs * weights
        places = weighted.argmin(axis=1)
        kernels = np.arange(len(costs))
        best = max(best, float(weighted[kernels, places].sum()))
        loads = np.bincount(places, costs[kernels, places], len(weights))
        if not loads.any():
            break
        weights = weights * np.exp(_PACE / (1 + step) ** 0.5 * loads / loads.max())
        weights /= weights.sum()
    return int(best)


class PlanFront(tuple[Plan, ...]):
    """The Pareto front of latency and energy, the fastest plan first; printing it shows a table."""

    def __str__(self) -> str:
        """Latency, energy and what each plan does, in Markdown."""
        rows = [
            f"| {(plan.predicted_ns or 0) / 1e6:.2f} | {plan.predicted_mj or 0:.1f} "
            f"| {plan.reason} |"
            for plan in self
        ]
        return "\n".join(("| ms | mJ | plan |", "| --- | --- | --- |", *rows))


def front_of(candidates: Iterable[Candidate]) -> PlanFront:
    """The Pareto front of candidates whose energy is known."""
    best: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (c.cost.ns, c.cost.millijoules)):
        energy = one.cost.millijoules
        assert energy is not None
        if not best or energy < (best[-1].cost.millijoules or 0.0):
            best.append(one)
    return PlanFront(_named(one) for one in best)


def _named(candidate: Candidate) -> Plan:
    used = dict.fromkeys(region.processor for region in candidate.plan.regions)
    return replace(candidate.plan, reason=f"{candidate.what} on {' + '.join(used)}")
