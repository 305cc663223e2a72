"""The ways in which the search may compute a piece of the network.

one processor     every kernel there, but kernels that work by channels keep the parts they read
scheduled         kernels on several processors, by a scheduler
shares            every processor computes some output channels of the large layers
rows, channels    `splitting.py`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tvm_stretch.network.operator_graph import Group
from tvm_stretch.passes.split_outputs import can_be_shared, kept_widths
from tvm_stretch.plan.scheduling import Job, Problem, Tensor, schedule_heft
from tvm_stretch.plan.scheduling.clock import Step
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import ALPHAS, NO_LIMITS, Limits, amortised, straggles
from tvm_stretch.plan.search.pieces import Network, Piece
from tvm_stretch.plan.splits import Split

Widths = tuple[int, ...]

_WORTH_MOVING = 0.95
"""Shares differ from the processors' speeds only for more than this; equal shares of neighbouring
layers need no slices where they are added."""


@dataclass(frozen=True, eq=False)
class Option:
    """One way to compute a piece, or several pieces in a row."""

    what: str  # in words
    steps: tuple[Step, ...]  # what runs, in an order in which it may run
    placed: Mapping[str, int]  # the processor of each group that is computed whole
    # channels of the parts of each exit that is not whole
    forms: Mapping[str, Widths] = field(default_factory=dict)
    shares: Mapping[str, Widths] = field(default_factory=dict)  # as in a plan
    splits: tuple[Split, ...] = ()  # as in a plan
    scheduler: str = ""  # who chose the places and the order, if one did

    @property
    def is_schedule(self) -> bool:
        """Whether kernels are whole, on several processors."""
        return not self.shares and not self.splits and len(set(self.placed.values())) > 1

    @property
    def uses_several(self) -> bool:
        """Whether more than one processor works."""
        return len({step.place for step in self.steps}) > 1


class Options:
    """Makes the options of the pieces of one network."""

    def __init__(self, network: Network, costs: Costs, limits: Limits = NO_LIMITS) -> None:
        self.network = network
        self.costs = costs
        self.limits = limits
        self.places = range(len(costs.processors))
        self._widths: dict[tuple[str, float], Widths | None] = {}

    def of_piece(self, piece: Piece, forms: Mapping[str, Widths]) -> Iterator[Option]:
        """The options that depend on the form in which the piece's entries come."""
        ways = self._ways(piece.groups)
        for place_of, what in ways:
            yield self.follow(piece, forms, {}, place_of, what)
        done: list[Mapping[str, Widths]] = [{}]
        for alpha in ALPHAS:
            shares = self.worthwhile_shares(piece, alpha)
            if shares not in done:
                done.append(shares)
                for place_of, _ in ways:
                    yield self.follow(piece, forms, shares, place_of, "shares of output channels")

    def designed(self, piece: Piece, places: Mapping[str, int]) -> Iterator[Option]:
        """Some groups on the processors of the design, the others on one processor."""
        rest = [group for group in piece.groups if group.name not in places]
        for place_of, _ in self._ways(rest):
            placed = {g.name: places.get(g.name, place_of(g)) for g in piece.groups}
            steps = tuple(self.whole_step(group, placed[group.name]) for group in piece.groups)
            yield Option("its branch", steps, placed)

    def _ways(self, groups: Sequence[Group]) -> list[tuple[Callable[[Group], int], str]]:
        """Places for whole kernels: all on one processor, or each on its fastest."""
        homes = [place for place in self.places if self._may_run_all(groups, place)]
        ways = [(self._always(home), self._name(home)) for home in homes]
        return ways or [(self.best_place, "each where it is fastest")]

    @staticmethod
    def _always(place: int) -> Callable[[Group], int]:
        return lambda _: place

    # --- one processor, and shares ---

    def follow(
        self,
        piece: Piece,
        forms: Mapping[str, Widths],
        shares: Mapping[str, Widths],
        place_of: Callable[[Group], int],
        what: str,
    ) -> Option:
        """Layers in the given shares; others in the parts that they read, or whole."""
        held = dict(forms)
        steps: list[Step] = []
        placed: dict[str, int] = {}
        for group in piece.groups:
            widths = shares.get(group.anchor.name) or self.kept_parts(group, held)
            reads = self.network.reads(group)
            if widths is None:
                placed[group.name] = place_of(group)
                steps.append(self.whole_step(group, placed[group.name]))
                continue
            held[group.name] = widths
            total = sum(widths)
            data = self.network.graph.sources(group.anchor.inputs[:1])
            for place, width in enumerate(widths):
                if width:
                    shared = group.anchor.name in shares
                    sources = tuple((r, None if shared and r in data else place) for r in reads)
                    ns = self.costs.part(group, place, "outputs", width / total)
                    size = group.bytes * width // total
                    steps.append(Step(group.name, place, ns, sources, size, place))
        left = {name: held[name] for name in piece.exits if name in held}
        return Option(what, tuple(steps), placed, left, shares)

    def whole_step(self, group: Group, place: int) -> Step:
        """All of a kernel on one processor."""
        reads = tuple((name, None) for name in self.network.reads(group))
        ns = self.costs.whole(group, place)
        assert ns is not None
        return Step(group.name, place, ns, reads, group.bytes)

    def best_place(self, group: Group) -> int:
        """The processor on which a kernel is fastest."""
        ns_of = self._known(group)
        return min(self._allowed(ns_of), key=ns_of.__getitem__) if ns_of else 0

    def _known(self, group: Group) -> dict[int, int]:
        """Nanoseconds of the group on each processor that supports it."""
        return {p: ns for p in self.places if (ns := self.costs.whole(group, p)) is not None}

    def _allowed(self, ns_of: Mapping[int, int]) -> dict[int, int]:
        """The processors that may compute it alone; all of them if there is none."""
        allowed = {p: ns for p, ns in ns_of.items() if self.limits.may_do_all(p)}
        return allowed or dict(ns_of)

    def worthwhile_shares(self, piece: Piece, alpha: float) -> dict[str, Widths]:
        """Shares of each layer of the piece that is large enough for its meeting."""
        shares = {}
        for group in piece.groups:
            key = (group.name, alpha)
            if key not in self._widths:
                self._widths[key] = self._best_widths(group, alpha)
            widths = self._widths[key]
            if widths is not None:
                shares[group.anchor.name] = widths
        return shares

    def _best_widths(self, group: Group, alpha: float) -> Widths | None:
        """The shares with which the layer ends first, if they beat one processor."""
        anchor = group.anchor
        if not can_be_shared(anchor.call):
            return None
        ns_of = self._known(group)
        if len(ns_of) < 2:
            return None
        alone = min(self._allowed(ns_of).values())
        unit = self.network.channel_unit(anchor, self.costs.processors[0].machine.lanes)
        best: tuple[int, Widths] | None = None
        for places in (c for n in range(2, len(ns_of) + 1) for c in combinations(ns_of, n)):
            meeting = self.costs.meeting(places, group.bytes)
            widths = self._aligned(group, {p: ns_of[p] for p in places}, unit)
            if widths is None or not amortised(meeting, alone, alpha):
                continue
            slowest = self._slowest(group, widths)
            if not straggles(slowest, alone) and slowest + meeting < (best[0] if best else alone):
                best = (slowest + meeting, widths)
        return None if best is None else best[1]

    def _aligned(self, group: Group, ns_of: Mapping[int, int], unit: int) -> Widths | None:
        """Channels in proportion to the processors' speeds (equation 6), or a few units from it."""
        channels = group.anchor.shape[1]
        unit = self.limits.unit(channels, unit)
        units, rest = divmod(channels, unit)
        if units < len(ns_of):
            return None
        speeds = {place: 1 / max(1, ns) for place, ns in ns_of.items()}
        counts = self.limits.apportion(units, speeds)
        if counts is None:
            return None

        def widths(given: Mapping[int, int]) -> Widths:
            last = max(given)
            return tuple(
                given.get(place, 0) * unit + (rest if place == last else 0) for place in self.places
            )

        best = widths(counts)
        for _ in range(3):
            times = {p: self.costs.part(group, p, "outputs", best[p] / channels) for p in counts}
            slow, fast = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
            moved = {**counts, slow: counts[slow] - 1, fast: counts[fast] + 1}
            if moved[slow] < 1 or not self._may_divide(widths(moved)):
                break
            if self._slowest(group, widths(moved)) > _WORTH_MOVING * max(times.values()):
                break
            counts, best = moved, widths(moved)
        return best if self._may_divide(best) else None

    def _may_divide(self, widths: Widths) -> bool:
        return self.limits.allow(dict(enumerate(widths)))

    def _slowest(self, group: Group, widths: Widths) -> int:
        total = sum(widths)
        return max(
            self.costs.part(group, place, "outputs", width / total)
            for place, width in enumerate(widths)
            if width
        )

    def kept_parts(self, group: Group, held: Mapping[str, Widths]) -> Widths | None:
        """The parts that SplitOutputs leaves a kernel in, because it works by channels."""
        anchor = group.anchor
        inputs = self.network.graph.sources(anchor.inputs)
        widths = next((held[name] for name in inputs if name in held), None)
        if widths is None or len(anchor.shape) < 2:
            return None
        supported = all(
            self.costs.whole(group, place) is not None for place, w in enumerate(widths) if w
        )
        if not supported:
            return None
        return kept_widths(anchor.call, widths)

    # --- a scheduler ---

    def scheduled(self, piece: Piece) -> Option | None:
        """The kernels of a piece with branches on several processors."""
        if len(self.places) < 2 or not self._forks(piece):
            return None
        result = schedule_heft(self._problem(piece))
        order = [i for i in result.sequence if i]
        placed = {piece.groups[i - 1].name: result.placement[i] for i in order}
        if len(set(placed.values())) < 2 or not self.limits.allow(self._work(piece, placed)):
            return None
        steps = tuple(self.whole_step(piece.groups[i - 1], result.placement[i]) for i in order)
        who = result.scheduler
        return Option(f"scheduled by {who}", steps, placed, scheduler=who)

    def _work(self, piece: Piece, placed: Mapping[str, int]) -> dict[int, int]:
        """Multiply-adds of each processor, without operators that only one supports."""
        work = dict.fromkeys(self.places, 0)
        for group in piece.groups:
            if len(self._known(group)) > 1:
                work[placed[group.name]] += group.multiply_adds
        return work

    def _forks(self, piece: Piece) -> bool:
        """Whether kernels may run at the same time: one forks, or several read no other one."""
        reads = [self.network.reads(group) for group in piece.groups]
        readers = Counter(name for names in reads for name in names)
        inside = {group.name for group in piece.groups}
        first = sum(inside.isdisjoint(names) for names in reads)
        return first > 1 or any(count > 1 for count in readers.values())

    def _problem(self, piece: Piece) -> Problem:
        """The piece as a scheduling problem; operator 0 has the entries, on the first processor."""
        index = dict.fromkeys(piece.entries, 0)
        index |= {group.name: i for i, group in enumerate(piece.groups, start=1)}
        home = (0, *[None] * (len(self.places) - 1))
        jobs = [Job("entries", home)]
        jobs += [
            Job(group.name, tuple(self.costs.whole(group, p) for p in self.places))
            for group in piece.groups
        ]
        readers: dict[str, list[int]] = {}
        for group in piece.groups:
            for name in self.network.reads(group):
                readers.setdefault(name, []).append(index[group.name])
        size = self.network.operators.bytes
        tensors = [Tensor(n, size(n), index[n], tuple(r)) for n, r in readers.items()]
        return Problem(
            tuple(p.name for p in self.costs.processors),
            tuple(jobs),
            tuple(tensors),
            tuple(map(tuple, self.costs.transfers())),
        )

    def _may_run_all(self, groups: Sequence[Group], place: int) -> bool:
        return self.limits.may_do_all(place) and all(
            self.costs.whole(group, place) is not None for group in groups
        )

    def _name(self, place: int) -> str:
        return f"all on {self.costs.processors[place].name}"


def one_by_one(network: Network, costs: Costs, limits: Limits) -> list[Option]:
    """Every whole kernel on its fastest processor: for processors that support little."""
    ways = Options(network, costs, limits)
    return [next(ways.of_piece(piece, {})) for piece in network.pieces]
