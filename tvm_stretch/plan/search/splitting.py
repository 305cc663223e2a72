"""Options that split a segment exactly: in bands of rows, or in shares of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations
from math import lcm

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.network.emitting.row_branches import RowPlan, plan_row_split
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.properties.branch_spans import has_tokens, token_axis
from tvm_stretch.network.properties.channel_plan import ChannelStep, Form, plan_channel_split
from tvm_stretch.plan.scheduling.clock import Step
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits, amortised, straggles
from tvm_stretch.plan.search.options import Option
from tvm_stretch.plan.search.pieces import Network, Piece
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, taking_part
from tvm_stretch.targets.kernels.layers import Along

LENGTHS = (1, 2, 3, 4, 6, 8)
"""How many pieces in a row are split by rows together; more meet less often, repeat more rows."""

_GRAIN = 16
_CORRECTIONS = 2


class Splitting:
    """Makes the options of the pieces of one network that are splits."""

    def __init__(self, network: Network, costs: Costs, limits: Limits = NO_LIMITS) -> None:
        self.network = network
        self.costs = costs
        self.limits = limits
        self.places = range(len(costs.processors))

    # --- rows ---

    def rows(self, pieces: Sequence[Piece]) -> Iterator[Option]:
        """All operators from the start of the first piece to the end of the last one, in bands."""
        groups = [group for piece in pieces for group in piece.groups]
        start, end = pieces[0].start, pieces[-1].end
        shape = self.network.operators.shape(end) if end else ()
        if not start or len(shape) < 2 or not all(piece.start for piece in pieces):
            return
        height = shape[token_axis(shape)]  # of an image, too
        for places, speeds, alone in self._teams(groups):
            meeting = self.costs.meeting(places, self.network.operators.bytes(end))
            if not amortised(meeting, alone) or height < 2 * len(places):
                continue
            option = self._best_rows(groups, (start, end), height, speeds, alone)
            if option is not None:
                yield option

    def sequences(self) -> dict[int, int]:
        """The longest runs of pieces that work token by token: the first one, and how many."""
        lengths: dict[int, int] = {}
        first = None
        for index, piece in enumerate(self.network.pieces):
            if not self._works_by_token(piece):
                first = None
                continue
            first = index if first is None else first
            lengths[first] = index + 1 - first
        return lengths

    def _works_by_token(self, piece: Piece) -> bool:
        operators = self.network.operators
        if not piece.start or not has_tokens(operators.shape(piece.start)):
            return False
        try:
            plan_row_split(operators, RowSplit(piece.start, piece.end, (1, 1)))
        except UnsupportedError:
            return False
        return True

    def _best_rows(
        self,
        groups: Sequence[Group],
        ends: tuple[str, str],
        height: int,
        speeds: dict[int, float],
        alone: int,
    ) -> Option | None:
        """Heights in proportion to speed, corrected by the halo and padding of each branch."""
        unit = self.limits.unit(height, 1)
        counts = self.limits.apportion(height // unit, speeds)
        if counts is None:
            return None
        heights = {place: count * unit for place, count in counts.items()}
        heights[max(heights)] += height % unit
        best: tuple[int, Option] | None = None
        for _ in range(1 + _CORRECTIONS):
            split = RowSplit(*ends, tuple(heights.get(place, 0) for place in self.places))
            try:
                plan = plan_row_split(self.network.operators, taking_part(split)[0])
            except (UnsupportedError, InputError):
                break
            steps, times = self._row_steps(groups, split, plan)
            slowest, fastest = max(times, key=times.__getitem__), min(times, key=times.__getitem__)
            if straggles(times[slowest], alone) or (best and times[slowest] >= best[0]):
                break
            if not self.limits.allow(self._row_work(groups, plan, taking_part(split)[1])):
                break
            what = f"rows {_ratio(split.ratios)} of {len(groups)} kernels"
            home = max(heights, key=heights.__getitem__)
            placed = dict.fromkeys((group.name for group in groups), home)
            best = (times[slowest], Option(what, steps, placed, splits=(split,)))
            gap = (times[slowest] - times[fastest]) / max(1, times[slowest]) / 2
            moved = unit * max(1, round(heights[slowest] * gap / unit))
            if heights[slowest] - moved < 1:
                break
            heights = {**heights, slowest: heights[slowest] - moved}
            heights[fastest] += moved
        return None if best is None else best[1]

    @staticmethod
    def _row_work(
        groups: Sequence[Group], plan: RowPlan, owners: Sequence[int]
    ) -> dict[int, float]:
        """Multiply-adds of each processor, including rows that several compute."""
        work = dict.fromkeys(owners, 0.0)
        for index, place in enumerate(owners):
            for group in groups:
                work[place] += group.multiply_adds * plan.fraction(index, group.anchor)
        return work

    def _row_steps(
        self, groups: Sequence[Group], split: RowSplit, plan: RowPlan
    ) -> tuple[tuple[Step, ...], dict[int, int]]:
        """The steps, and nanoseconds of each branch."""
        network, costs = self.network, self.costs
        inside = {group.name for group in groups}
        joined = {network.group_of.get(name) for name in plan.joined}
        starts, ends = (network.graph.sources((name,)) for name in (split.start, split.end))
        steps: list[Step] = []
        times: dict[int, int] = {}
        owners = taking_part(split)[1]
        for index, place in enumerate(owners):
            first = len(steps)
            cut = ("cut", split.start)
            sources = tuple((name, None) for name in starts)
            steps.append(Step(cut, place, 0, sources, plan.bytes_read[index], place))
            for group in groups:
                fraction = plan.fraction(index, group.anchor)
                reads = {
                    (("band", r), None if r in joined else place)
                    if r in inside
                    else ((cut, place) if r in starts else (r, None))  # or from outside
                    for r in network.reads(group)
                }
                ns = costs.part(group, place, "rows", fraction)
                size = round(group.bytes * fraction)
                band = ("band", group.name)
                steps.append(Step(band, place, ns, tuple(reads), size, place))
            times[place] = sum(step.ns for step in steps[first:])
        home = max(owners, key=lambda place: split.ratios[place])
        for end in ends:
            # A concat at the end may read the segment's start, which is then cut into bands, too.
            bands = ("band", end) if end in inside else cut
            whole = network.operators.bytes(end)
            steps.append(Step(end, home, 0, ((bands, None),), whole, joins=True))
        return tuple(steps), times

    # --- channels ---

    def channels(self, piece: Piece) -> Iterator[Option]:
        """A segment in shares of channels, earlier convolutions repeated or split."""
        if not piece.start:
            return
        for places, speeds, alone in self._teams(piece.groups):
            meeting = self.costs.meeting(places, self.network.operators.bytes(piece.end))
            if not amortised(meeting, alone):
                continue
            shares = self.limits.apportion(self.limits.parts or _GRAIN, speeds)
            if shares is None:
                continue
            ratios = _reduced(shares, self.places)
            lanes = self.costs.processors[places[0]].machine.lanes
            seen = []
            for first in ("repeat", "split"):
                split = ChannelSplit(piece.start, piece.end, ratios, lanes, first)
                try:
                    wanted = plan_channel_split(self.network.operators, taking_part(split)[0])
                except (UnsupportedError, InputError):
                    break
                if wanted in seen:
                    continue
                seen.append(wanted)
                option = self._channel_option(piece, split, wanted, alone)
                if option is not None:
                    yield option

    def _channel_option(
        self, piece: Piece, split: ChannelSplit, wanted: Sequence[ChannelStep], alone: int
    ) -> Option | None:
        owners = taking_part(split)[1]
        home = max(owners, key=lambda place: split.ratios[place])
        anchors = {group.anchor.name: group for group in piece.groups}
        steps: list[Step] = []
        for step in wanted:
            for tensor, held in step.joins:
                if held.form is Form.SUM:
                    steps.append(self._sum(tensor, home))
            steps += self._channel_steps(step, anchors.get(step.operator), owners, home)
        if wanted[-1].result.form is Form.SUM:
            steps.append(self._sum(split.end, home))
        busy = [sum(step.ns for step in steps if step.place == place) for place in owners]
        if straggles(max(busy), alone):
            return None
        for step in wanted:  # whole vectors may be more than the ratio
            widths = [float(end - begin) for begin, end in step.result.spans]
            if widths and not self.limits.allow(dict(zip(owners, widths, strict=True))):
                return None
        placed = dict.fromkeys((group.name for group in piece.groups), home)
        what = f"channels {_ratio(split.ratios)}, first convolutions {split.first}"
        return Option(what, tuple(steps), placed, splits=(split,))

    def _channel_steps(
        self, step: ChannelStep, group: Group | None, owners: Sequence[int], home: int
    ) -> Iterator[Step]:
        """One operator, in each branch or once; epilogues take no time."""
        operators, form = self.network.operators, step.result.form
        size = operators.bytes(step.operator)
        sources = self.network.graph.sources
        reads = {
            (source, None if held.form is Form.ONCE else True)
            for name, held in step.reads.items()
            for source in sources((name,))
        }
        if form is Form.ONCE:
            ns = self.costs.whole(group, home) if group is not None else 0
            yield Step(step.operator, home, ns or 0, tuple((n, None) for n, _ in reads), size)
            return
        for index, place in enumerate(owners):
            fraction = 1.0
            spans = step.channels if form is Form.SUM else step.result.spans
            if spans:
                fraction = (spans[index][1] - spans[index][0]) / spans[-1][1]
            ns = 0
            if group is not None:
                along: Along = "inputs" if form is Form.SUM and step.channels else "outputs"
                ns = self.costs.part(group, place, along, fraction)
            written = size if form is Form.SUM else round(size * fraction)
            own = tuple((name, place if apart else None) for name, apart in reads)
            yield Step(step.operator, place, ns, own, written, place)

    def _sum(self, tensor: str, home: int) -> Step:
        size = self.network.operators.bytes(tensor)
        return Step(tensor, home, self.costs.copy(home, size), ((tensor, None),), size, joins=True)

    # --- both ---

    def _teams(
        self, groups: Sequence[Group]
    ) -> Iterator[tuple[tuple[int, ...], dict[int, float], int]]:
        """Processors that may share the kernels, their speeds, and the time of the fastest."""
        times = {p: [self.costs.whole(group, p) for group in groups] for p in self.places}
        ns_of = {
            p: sum(ns for ns in nanoseconds if ns is not None)
            for p, nanoseconds in times.items()
            if None not in nanoseconds
        }
        alone = min(ns_of.values(), default=0)
        for count in range(2, len(ns_of) + 1):
            for places in combinations(ns_of, count):
                yield places, {p: 1 / max(1, ns_of[p]) for p in places}, alone


def _reduced(numbers: dict[int, int], places: range) -> tuple[int, ...]:
    """The same ratios in the smallest numbers."""
    listed = [numbers.get(place, 0) for place in places]
    first = next(number for number in listed if number)
    fractions = [Fraction(number, first) for number in listed]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    return tuple(int(fraction * scale) for fraction in fractions)


def _ratio(ratios: Sequence[float]) -> str:
    return ":".join(f"{ratio:g}" for ratio in ratios)
