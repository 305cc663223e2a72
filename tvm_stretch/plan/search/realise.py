"""Turns chosen options into a plan: operators of the passes, their regions, predicted times.

    options ──branching──> operators ──regions, all phases──> kernels ──models──> predicted times

The passes carry out what the search chose piece by piece, and times are predicted from the kernels
that will run. The compiler uses these kernels as they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import tvm
from tvm import relax

from tvm_stretch.make.branching import Branching, branch
from tvm_stretch.make.kernels import KernelLevel, kernels_of_plan
from tvm_stretch.network.expressions import PIECES
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.provenance import Provenance
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.scheduling.heft import reordered
from tvm_stretch.plan.scheduling.of_network import problem_of
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import Cost
from tvm_stretch.plan.search.options import Option
from tvm_stretch.plan.search.pieces import Network

Begins: TypeAlias = Mapping[tuple[str, int], int]
"""Nanoseconds by the name of a kernel and a place."""


@dataclass(frozen=True)
class Candidate:
    """A plan with its prediction, and a name for people."""

    plan: Plan  # with predictions
    what: str  # for people
    cost: Cost  # of a run, predicted
    busy: tuple[int, ...]  # predicted nanoseconds of kernels on each processor
    branched: Branching  # the network with the plan's parts
    level: KernelLevel | None = None  # the kernels of the plan, if they are known
    least_ns: int | None = None  # a bound of the time of any plan
    is_asked: bool = False  # whether the caller's scheduler made it, so that it is always measured

    @property
    def lowered(self) -> tvm.IRModule | None:
        """Kernel-level Relax of the plan, if its kernels are known."""
        return None if self.level is None else self.level.mod

    def considered(self, verdict: str, seconds: float | None = None) -> Considered:
        """A row of the table of candidates, for people.

        Args:
            verdict: whether it was chosen, or why not.
        """
        measured = None if seconds is None else round(seconds * 1e9)
        energy = self.cost.millijoules
        columns = (self.cost.ns, self.plan.costs, measured, verdict, energy)
        return Considered(self.what, *columns, least_ns=self.least_ns)


def by_objective(limits: Limits) -> Callable[[Candidate], float]:
    """The key by which candidates are sorted."""
    return lambda candidate: limits.objective(candidate.cost)


def realise(
    network: Network,
    costs: Costs,
    options: Sequence[Option],
    what: str,
    limits: Limits = NO_LIMITS,
    # when each kernel, or its part, begins on each processor by a schedule, whose order is then
    # kept. Otherwise the order is ours.
    begins: Begins | None = None,
) -> Candidate | str:
    """The plan of these options, or why there is none: a part is refused, or a limit exceeded."""
    shares = {name: widths for option in options for name, widths in option.shares.items()}
    splits = tuple(split for option in options for split in option.splits)
    processors = costs.processors
    branched = branch(network.mod, shares, splits)
    main = branched.mod["main"]
    operators = network.operators if branched.mod is network.mod else Operators(main)
    wanted = {name: place for option in options for name, place in option.placed.items()}
    placed = {op: wanted[g] for op, g in network.group_of.items() if g in wanted}
    placed = complete(operators, {**placed, **branched.owners})
    for name, place in placed.items():
        operator, places = operators[name], range(len(processors))
        if operator.kind in PIECES:
            willing = [p for p in (place, *places) if costs.kernels.supports(operator, p)]
            placed[name] = willing[0] if willing else place
        if not costs.kernels.supports(operator, placed[name]):
            reason = processors[place].why_not(operator.call)
            return f"a part is refused, {name} on {processors[place].name}: {reason}"
    if not limits.allow(_work(operators, placed, costs)):
        return f"it would be more than {limits.text}"
    order = None if begins is None else _in_order(network, branched, operators, placed, begins)
    schedule = _Schedule(network, branched, operators, costs, placed, order)
    if order is None and len(set(placed.values())) > 1:
        refined = schedule.refined()
        if limits.allow(_work(operators, refined.placed, costs)):
            schedule = refined
    plan = Plan(
        tuple(processor.name for processor in processors),
        schedule.predict(_reasons(network, options, placed, branched.parts)),
        shares=shares,
        predicted_mj=schedule.cost.millijoules,
        splits=splits,
        costs=costs.source,
    )
    return Candidate(plan, what, schedule.cost, schedule.busy, branched, schedule.level)


def _work(operators: Operators, placed: Mapping[str, int], costs: Costs) -> dict[int, int]:
    """Multiply-adds of each processor, without operators that only one supports."""
    places = range(len(costs.processors))
    work = dict.fromkeys(places, 0)
    for name, place in placed.items():
        operator = operators[name]
        if sum(costs.kernels.supports(operator, other) for other in places) > 1:
            work[place] += operator.multiply_adds
    return work


def complete(operators: Operators, placed: Mapping[str, int]) -> dict[str, int]:
    """Places views and other operators on the first processor that reads or makes them."""
    processors = dict(placed)
    for reader in reversed(list(operators)):
        for name in reader.inputs:
            if reader.name in processors and name in operators and name not in placed:
                processors[name] = min(
                    processors[reader.name], processors.get(name, processors[reader.name])
                )
    for operator in operators:
        sources = (processors[name] for name in operator.inputs if name in processors)
        processors.setdefault(operator.name, next(sources, 0))
    return {
        op.name: processors[op.name] for op in operators if isinstance(op.binding.value, relax.Call)
    }


def _reasons(
    network: Network,
    options: Sequence[Option],
    names: Iterable[str],
    parts: Mapping[str, Provenance],
) -> dict[str, str]:
    """The reason for each operator's processor: the option of the kernel that it came from."""
    of_group = {name: option.what for option in options for name in option.placed}
    steps = [(step.tensor, option.what) for option in options for step in option.steps]
    of_group |= {name: what for name, what in steps if isinstance(name, str)}
    of_operator = {op: of_group[g] for op, g in network.group_of.items() if g in of_group}
    reasons = {}
    for name in names:
        base = _base(name, parts)
        if base in of_operator:
            reasons[name] = of_operator[base]
    return reasons


def _base(name: str, parts: Mapping[str, Provenance]) -> str:
    """The operator that a part belongs to; others are whole."""
    (base,) = parts[name].operators if name in parts else (name,)
    return base


def _in_order(
    network: Network,
    branched: Branching,
    operators: Operators,
    placed: Mapping[str, int],
    begins: Begins,
) -> list[str]:
    """All calls in the order of a schedule; a kernel that became whole begins with its parts."""
    first = {name: min(ns for (n, _), ns in begins.items() if n == name) for name, _ in begins}
    start = {}
    for name, place in placed.items():
        group = network.group_of.get(_base(name, branched.parts))
        if group in first:
            start[name] = begins.get((group, place), first[group])
    return by_start(operators, placed, start)


class _Schedule:
    """The times of the branched network's kernels, by their places and order.

    Attributes:
        level: the kernels.
        ns: when the last one is done.
        busy: nanoseconds of kernels on each processor.
    """

    def __init__(
        self,
        network: Network,
        branched: Branching,
        operators: Operators,
        costs: Costs,
        placed: Mapping[str, int],
        order: Sequence[str] | None = None,
    ) -> None:
        self.network, self.branched, self.operators = network, branched, operators
        self.costs, self.placed = costs, dict(placed)
        main, processors = branched.mod["main"], costs.processors
        names = {name: processors[place].name for name, place in placed.items()}
        self.regions = form_regions(main, names, order, self._kept_together(names))
        plan = Plan(tuple(processor.name for processor in processors), self.regions)
        self.level = kernels_of_plan(branched.mod, plan, processors, operators)
        self.timeline = self._run()
        self.ns = max(self.timeline.finish.values(), default=0)
        problem = self.timeline.problem
        self.busy = tuple(
            sum(problem.cost(operator, place) for operator in queue)
            for place, queue in enumerate(self.timeline.order)
        )

    def _kept_together(self, names: Mapping[str, str]) -> list[list[str]]:
        """The operators of each kernel that has several products, on one processor."""
        groups = [[op.name for op in g.operators] for g in self.network.graph.groups if g.is_joint]
        return [group for group in groups if len({names.get(name, name) for name in group}) == 1]

    def _run(self) -> Simulation:
        """Every kernel where its operators are placed, in the order of the regions."""
        groups = self.level.graph.groups
        where = [0, *(self.placed[group.operators[-1].name] for group in groups), 0]
        return run_sequence(self._problem(), where, range(len(where)))

    def _problem(self) -> Problem:
        """The branched network as a problem; parts, and operators that join them, keep places."""
        owners, places = self.branched.owners, range(len(self.costs.processors))
        base = {group.name: group for group in self.network.graph.groups}
        groups = self.level.graph.groups
        own = {group.name: self.placed[group.operators[-1].name] for group in groups}
        features = {name: self.level.features(name) for name in own}
        first = self._first_kernels(groups)
        self.costs.ask_for_kernels([(features[name], place) for name, place in own.items()])

        def nanoseconds(group: Group) -> list[int | None]:
            here, name = own[group.name], group.anchor.name
            ns = self.costs.sum(features[group.name], here)
            ns += self.costs.regions[here] if group.name in first else 0
            if name in owners:
                ns = round(ns * self.costs.slower(features[group.name], here))
            whole = base.get(group.name)
            if whole is None or name in owners or not _same(whole, group):
                return [ns if place == here else None for place in places]
            return [ns if place == here else self.costs.whole(whole, place) for place in places]

        names = [processor.name for processor in self.costs.processors]
        return problem_of(self.level.graph, names, nanoseconds, self.costs.transfers(formed=True))

    def _first_kernels(self, groups: Sequence[Group]) -> set[str]:
        """The first kernel of each region."""
        region_of = {op: region.name for region in self.regions for op in region.operators}
        first: dict[str, str] = {}
        for group in groups:
            first.setdefault(region_of[group.operators[-1].name], group.name)
        return set(first.values())

    @property
    def cost(self) -> Cost:
        """The cost of a run."""
        run = self.timeline
        moved = sum(run.problem.tensors[t].bytes for t, _ in run.received)
        busy = [sum(run.finish[op] - run.start[op] for op in queue) for queue in run.order]
        return self.costs.cost(self.ns, busy, moved)

    def refined(self) -> _Schedule:
        """The candidate in another order, if that order is faster."""
        better = reordered(self.timeline)
        if better is self.timeline:
            return self
        placed = dict(self.placed)
        start: dict[str, int] = {}
        for index, group in enumerate(self.level.graph.groups, start=1):
            placed.update((op.name, better.placement[index]) for op in group.operators)
            start.update((op.name, better.start[index]) for op in group.operators)
        order = by_start(self.operators, placed, start)
        other = _Schedule(self.network, self.branched, self.operators, self.costs, placed, order)
        return min(other, self, key=lambda schedule: schedule.ns)

    def predict(self, why: Mapping[str, str]) -> tuple[PlannedRegion, ...]:
        """The regions with their times and reasons."""
        groups = self.level.graph.groups
        times = {
            op.name: (self.timeline.start[index], self.timeline.finish[index])
            for index, group in enumerate(groups, start=1)
            for op in group.operators
        }
        regions: list[PlannedRegion] = []
        ends: dict[str, int] = {}
        for region in self.regions:
            own = [times[name] for name in region.operators if name in times]
            reads = [
                ends.get(source, 0)
                for name in region.operators
                for source in self.operators[name].inputs
            ]
            begin = min((start for start, _ in own), default=max(reads, default=0))
            end = max((finish for _, finish in own), default=begin)
            ends.update(dict.fromkeys(region.operators, end))
            reasons = dict.fromkeys(why[name] for name in region.operators if name in why)
            place = self.placed[region.operators[0]]
            energy = self.costs.millijoules(place, sum(b - a for a, b in dict.fromkeys(own)))
            regions.append(
                replace(
                    region,
                    predicted_ns=(begin, end),
                    predicted_mj=energy,
                    why="; ".join(list(reasons)[:2]),
                )
            )
        return tuple(regions)


def _same(one: Group, other: Group) -> bool:
    """Whether two groups compute the same; the operator that joins parts has the segment's name."""
    kinds = [[(op.name, op.kind) for op in group.operators] for group in (one, other)]
    return kinds[0] == kinds[1]


def by_start(
    operators: Operators, placed: Mapping[str, int], start: Mapping[str, int]
) -> list[str]:
    """All calls, each after its operands, in the order of their starts."""
    waiting = {op.name: len(set(op.inputs) - set(operators.params)) for op in operators}
    position = {op.name: index for index, op in enumerate(operators)}
    times: dict[str, int] = {}

    def key(name: str) -> tuple[int, int, str]:
        ends = [times[source] for source in operators[name].inputs if source in times]
        times[name] = max([start.get(name, 0), *ends])
        return times[name], position[name], name

    heap = [key(name) for name, count in waiting.items() if not count]
    heapq.heapify(heap)
    starts = []
    while heap:
        *_, name = heapq.heappop(heap)
        starts.append(name)
        for reader in operators.readers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(heap, key(reader))
    return [name for name in starts if name in placed]
