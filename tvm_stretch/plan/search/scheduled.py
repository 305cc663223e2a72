"""A scheduler of the caller plans a whole network, and its schedule becomes a candidate.

    network ──whole_problem──> Problem ──scheduler──> Result ──check──> carried_out ──> Candidate

Whole kernels run where and in the order in which the schedule has them. An operator in parts
becomes a layer in shares of its output channels. A chain of operators whose parts read only their
own processor's parts becomes bands of rows, or layers in shares where rows cannot be split.
Operators that no pass can split stay whole on the processor with the larger share: pools and
depthwise convolutions whose input is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tvm_stretch.base.errors import InputError, ScheduleError, UnsupportedError
from tvm_stretch.network.emitting.row_branches import plan_row_split
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.operators import POINTWISE
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.scheduling import Problem, Result, Scheduler, check_schedule
from tvm_stretch.plan.scheduling.of_network import problem_of, splittable
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits, apportion
from tvm_stretch.plan.search.options import Option
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.realise import Candidate, realise
from tvm_stretch.plan.splits import RowSplit


def whole_problem(network: Network, costs: Costs) -> Problem:
    """The scheduling problem of a whole network, whose operators may be scheduled in parts."""
    places, graph = range(len(costs.processors)), network.graph
    costs.ask_for(graph.groups)
    names = [processor.name for processor in costs.processors]

    def nanoseconds(group: Group) -> list[int | None]:
        return [costs.whole(group, place) for place in places]

    problem = problem_of(graph, names, nanoseconds, costs.transfers())
    return splittable(problem, graph, [costs.start(place) for place in places])


def ask(scheduler: Scheduler, problem: Problem) -> Result:
    """The answer of a scheduler, checked."""
    result: object = scheduler(problem)
    if not isinstance(result, Result):
        raise ScheduleError(
            "expected a Result for the problem that was given from the scheduler, got "
            f"{result!r:.100}; see tutorials/03_writing_a_scheduler.py"
        )
    check_schedule(problem, result)
    return result


def scheduled(
    network: Network, costs: Costs, scheduler: Scheduler, limits: Limits
) -> Candidate | Considered:
    """The plan of a scheduler, or why there is none to race.

    Raises:
        ScheduleError: what it answers is no schedule of the network.
    """
    problem = whole_problem(network, costs)
    result = ask(scheduler, problem)
    what = f"whole network scheduled by {result.scheduler}"
    places = _places(result)
    used = {places[group.name] for group in network.graph.groups}
    if len(used) == 1 and result.problem.operators == problem.operators:
        why = f"not built: the same as {costs.processors[used.pop()].name} alone"
        return Considered(what, result.makespan, costs.source, verdict=why)
    candidate = carried_out(network, costs, result, limits)
    if isinstance(candidate, str):
        why = f"impossible: {candidate}"
        return Considered(what, result.makespan, costs.source, verdict=why)
    return replace(candidate, is_asked=True)


def carried_out(
    network: Network, costs: Costs, result: Result, limits: Limits = NO_LIMITS
) -> Candidate | str:
    """The plan that carries out a schedule of `whole_problem`, or why it cannot be."""
    cut = _Cut(network, costs, result)
    begins: dict[tuple[str, int], int] = {}
    for job, place, start in zip(
        result.problem.operators, result.placement, result.start, strict=True
    ):
        begins[job.whole or job.name, place] = start
    placed = {n: p for n, p in cut.places.items() if n in cut.groups}
    who = f"scheduled by {result.scheduler}"
    option = Option(who, (), placed, shares=cut.shares, splits=cut.splits)
    return realise(network, costs, [option], f"whole network {who}", limits, begins)


@dataclass(frozen=True)
class _Chain:
    """Operators in the same parts; a part of one reads only its own processor's part of another."""

    operators: tuple[str, ...]
    shares: Mapping[int, Fraction]  # by place


class _Cut:
    """Places, shares and splits of a schedule."""

    def __init__(self, network: Network, costs: Costs, result: Result) -> None:
        self.network, self.costs = network, costs
        self.groups = {group.name: group for group in network.graph.groups}
        self.places = _places(result)
        self.shares: dict[str, tuple[int, ...]] = {}
        splits: list[RowSplit] = []
        for chain in _chains(result):
            layers = [self.groups[name] for name in chain.operators if self._heads(chain, name)]
            rows = self._rows(chain) if len(layers) > 1 else None
            if rows is None:
                self._share(layers, chain.shares)
            else:
                splits.append(rows)
        self.splits = tuple(splits)

    def _heads(self, chain: _Chain, name: str) -> bool:
        """Whether an operator begins a layer: pointwise operators continue one."""
        kinds = (operator.kind for operator in self.groups[name].operators)
        return name == chain.operators[0] or any(kind not in POINTWISE for kind in kinds)

    def _rows(self, chain: _Chain) -> RowSplit | None:
        start = self.groups[chain.operators[0]].anchor.inputs[0]
        end = self.groups[chain.operators[-1]].operators[-1].name
        ratios = tuple(float(chain.shares.get(p, 0)) for p in range(len(self.costs.processors)))
        rows = RowSplit(start, end, ratios)
        try:
            plan_row_split(self.network.operators, rows)
        except (UnsupportedError, InputError):
            return None
        return rows

    def _share(self, layers: Sequence[Group], shares: Mapping[int, Fraction]) -> None:
        for layer in layers:
            widths = self._widths(layer, shares)
            if can_be_shared(layer.anchor.call) and min(w for w in widths if w) < sum(widths):
                self.shares[layer.anchor.name] = widths

    def _widths(self, group: Group, shares: Mapping[int, Fraction]) -> tuple[int, ...]:
        """Channels in whole vectors, as near to the shares as that allows."""
        lanes = self.costs.processors[0].machine.lanes
        unit = self.network.channel_unit(group.anchor, lanes)
        units, rest = divmod(group.anchor.shape[1], unit)
        largest_first = sorted(shares, key=lambda place: shares[place], reverse=True)
        kept = {place: float(shares[place]) for place in largest_first[: max(1, units)]}
        counts = apportion(units, kept) if units else {}
        widths = [counts.get(place, 0) * unit for place in range(len(self.costs.processors))]
        widths[max(kept)] += rest
        return tuple(widths)


def _places(result: Result) -> dict[str, int]:
    """The processor of each operator; of one in parts, that of the largest part."""
    best: dict[str, tuple[Fraction, int]] = {}
    for job, place in zip(result.problem.operators, result.placement, strict=True):
        name = job.whole or job.name
        best[name] = max(best.get(name, (Fraction(0), 0)), (job.share, place))
    return {name: place for name, (_, place) in best.items()}


def _chains(result: Result) -> list[_Chain]:
    """The operators in parts, joined where parts exchange nothing, in topological order."""
    problem = result.problem
    shares: dict[str, dict[int, Fraction]] = {}
    for index in problem.sequence:
        job = problem.operators[index]
        if job.whole:
            of_job = shares.setdefault(job.whole, {})
            place = result.placement[index]
            of_job[place] = of_job.get(place, Fraction(0)) + job.share
    chain_of: dict[str, list[str]] = {}
    for index in problem.sequence:
        name = problem.operators[index].whole
        if not name or name in chain_of:
            continue
        sources = (problem.operators[i].whole for i in problem.predecessors[index])
        read = Counter(source for source in sources if source)
        own = [s for s, n in read.items() if n == 1 and shares[s] == shares[name]]
        chain_of[name] = chain_of[own[0]] if own else []
        chain_of[name].append(name)
    chains = {id(names): names for names in chain_of.values()}
    return [_Chain(tuple(names), shares[names[0]]) for names in chains.values()]
