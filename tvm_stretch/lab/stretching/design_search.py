"""Finds the branches of each segment by dynamic programming over the segments.

    64 channels -> [segment 1] -> 96 or 112 or 128 channels -> [segment 2] -> ..

The state is the number of channels that the next segment reads: if branches are concatenated, a
segment's branches decide it. The search keeps the few fastest pasts of each state, and, of the
combinations of a segment that the rules keep, the few fastest for each number of channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np
from numpy.typing import NDArray

from tvm_stretch.lab.stretching.design_rules import Judged, Rules, judge
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.tables import Array, Pricing, Table, gain_of_width, slimness
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.design import Branch, Design, StretchedSegment
from tvm_stretch.plan.search.costs import Costs

NDInt = NDArray[np.int64]

_PER_WIDTH, _PASTS = 2, 6
"""The numbers of kept combinations for each number of channels, and of kept pasts of a state."""


@dataclass(frozen=True)
class Past:
    """The branches of the segments so far; None for an unstretched segment."""

    ns: float
    segments: tuple[StretchedSegment | None, ...]

    @property
    def design(self) -> Design:
        """The design of the stretched segments."""
        return Design(tuple(segment for segment in self.segments if segment is not None))


@dataclass(frozen=True)
class Search:
    """Searches the designs of one network for one set of processors."""

    runs: tuple[Run, ...]  # the segments
    pricing: Pricing  # the costs of their layers
    places: tuple[int, ...]  # the places of the processors that get branches
    home: int  # the place of the processor that runs everything else
    rules: Rules  # the rules that prune designs
    merge: str | None = None  # how branches are merged; by default as each segment suggests

    @property
    def costs(self) -> Costs:
        """The costs of kernels and transfers."""
        return self.pricing.costs

    def best(self, most: int) -> tuple[list[Design], dict[str, float]]:
        """The designs that are predicted to be fastest.

        Returns:
            The designs, and the decimal logarithm of the number of designs that each rule leaves.
        """
        tables = [self._table(run) for run in self.runs]
        reads = self._reads(tables)
        self.pricing.learn(
            layer for table, read in zip(tables, reads, strict=True) for layer in table.layers(read)
        )
        states: dict[int, list[Past]] = {self.runs[0].read: [Past(0.0, ())]}
        left: dict[str, float] = {}
        for index, (table, read) in enumerate(zip(tables, reads, strict=True)):
            segment = _Segment(self, table, read, self._entry(index))
            for rule, count in segment.counts().items():
                left[rule] = left.get(rule, 0.0) + log10(max(1, count))
            states = self._extended(states, segment, self._is_fed(index + 1))
        ended = sorted((past for pasts in states.values() for past in pasts), key=lambda p: p.ns)
        designs = dict.fromkeys(past.design for past in ended)
        return [design for design in designs if design.segments][:most], left

    def _table(self, run: Run) -> Table:
        merge = self.merge or run.merge
        return Table(run, self.pricing, self.places, merge, self.rules.least_ratio)

    def _is_fed(self, index: int) -> bool:
        """Whether a segment reads only the result of the one before it, perhaps through a pool."""
        if not 0 < index < len(self.runs):
            return False
        return _passes_on(self.runs[index].operators, self.runs[index - 1].end, self.runs[index])

    def _entry(self, index: int) -> float:
        """The time to bring a segment's input from the home to its other processors.

        It is 0 if the segment before computed the input, because its meeting includes the time.
        """
        run = self.runs[index]
        if index and self.runs[index - 1].end == run.start:
            return 0.0
        size = run.operators.bytes(run.start)
        return max(self.costs.enter(self.home, place, size) for place in self.places)

    def _reads(self, tables: Sequence[Table]) -> list[tuple[int, int]]:
        """The fewest and the most channels that each segment may read."""
        reads = []
        for index, table in enumerate(tables):
            own = table.run.read
            if not self._is_fed(index):
                reads.append((own, own))
                continue
            before = tables[index - 1]
            ends = [
                before.run.out_width([pick(before.widths[p]) for p in self.places], before.merge)
                for pick in (min, max)
            ]
            reads.append((min(own, *ends), max(own, *ends)))
        return reads

    def _extended(
        self, states: dict[int, list[Past]], segment: _Segment, is_fed: bool
    ) -> dict[int, list[Past]]:
        extended: dict[int, list[Past]] = {}
        for read, pasts in states.items():
            for out, ns, choice in segment.choices(read):
                key = out if is_fed else 0
                extended.setdefault(key, []).extend(
                    Past(past.ns + ns, (*past.segments, choice)) for past in pasts
                )
        if not is_fed:
            following = len(next(iter(extended.values()))[0].segments)
            read = self.runs[following].read if following < len(self.runs) else 0
            extended = {read: [past for pasts in extended.values() for past in pasts]}
            most = 4 * _PASTS
        else:
            most = _PASTS
        return {read: sorted(pasts, key=lambda p: p.ns)[:most] for read, pasts in extended.items()}


def _passes_on(operators: Operators, end: str, run: Run) -> bool:
    name = run.start
    while name != end:
        if name not in operators:
            return False
        operator = operators[name]
        if len(operator.inputs) != 1 or operator.kind in ("nn.conv2d", "matmul"):
            return False
        name = operator.inputs[0]
    return True


class _Segment:
    """The combinations of branches of one segment."""

    def __init__(self, search: Search, table: Table, reads: tuple[int, int], entry: float) -> None:
        self.search, self.table, self.run = search, table, table.run
        self.options = [table.options(place, reads) for place in search.places]
        self.originals = [table.original(place) for place in search.places]
        self.alone = table.original(search.home)
        costs, operators = search.costs, self.run.operators
        bytes_out = operators.bytes(self.run.end)
        self.meeting = costs.meeting(search.places, bytes_out)
        self.handing_over = entry + self.meeting
        self.gains = [gain_of_width(self.run, search.pricing, place) for place in search.places]

    def _axis(self, values: Array, index: int) -> Array:
        """Values of one processor's options along their own axis."""
        shape = [1] * len(self.options)
        shape[index] = -1
        return values.reshape(shape)

    def _judged(self, read: int) -> tuple[list[tuple[Array, ...]], Judged]:
        branches = [
            tuple(self._axis(row, index) for row in options.figures(read))
            for index, options in enumerate(self.options)
        ]
        shapes = [
            (gain, self._axis(slimness(options.depths, options.widths, self.run), index))
            for index, (gain, options) in enumerate(zip(self.gains, self.options, strict=True))
        ]
        rules = self.search.rules
        return branches, judge(branches, self.originals, rules, self.meeting, shapes)

    def counts(self) -> dict[str, int]:
        """The number of combinations after each rule, for the channels that the original reads."""
        size = int(np.prod([len(options.depths) for options in self.options]))
        _, judged = self._judged(self.run.read)
        return {"bounds, widths in steps": size, **judged.left()}

    def choices(self, read: int) -> Iterator[tuple[int, float, StretchedSegment | None]]:
        """Channels of the result, nanoseconds and branches of each combination to keep."""
        yield self.run.width, self._unstretched(read), None
        branches, judged = self._judged(read)
        mask = judged.kept
        if not mask.any():
            return
        ns = np.maximum.reduce(np.broadcast_arrays(*(branch[0] for branch in branches)))
        where = np.argwhere(mask)
        where = where[np.argsort(ns[mask], kind="stable")]
        outs = self._out_widths(where)
        for _ in range(_PER_WIDTH):
            _, first = np.unique(outs, return_index=True)
            for row in first:
                place = tuple(where[row])
                yield (
                    int(outs[row]),
                    float(ns[place]) + self.handing_over,
                    self._segment(place),
                )
            where, outs = np.delete(where, first, 0), np.delete(outs, first)

    def _unstretched(self, read: int) -> float:
        """Nanoseconds of the segment on one processor if it reads ``read`` channels."""
        own, home = self.run.read, self.search.home
        if read == own:
            return float(self.alone[0])
        layers = self.run.first_layers(read, self.run.width, "concat", 1)
        before = self.run.first_layers(own, self.run.width, "concat", 1)
        pricing = self.search.pricing
        more = pricing.nanoseconds(layers, home) - pricing.nanoseconds(before, home)
        return float(self.alone[0]) + more

    def _out_widths(self, where: NDInt) -> NDInt:
        columns = [o.widths[where[:, i]].astype(int) for i, o in enumerate(self.options)]
        if self.table.merge == "concat":
            return np.sum(columns, axis=0)
        return np.full(len(where), self.run.out_width([0] * len(columns), self.table.merge))

    def _segment(self, place: Sequence[int]) -> StretchedSegment:
        names = [self.search.costs.processors[p].name for p in self.search.places]
        branches = tuple(
            Branch(name, int(options.depths[i]), int(options.widths[i]))
            for name, options, i in zip(names, self.options, place, strict=True)
        )
        return StretchedSegment(self.run.start, self.run.end, branches, self.table.merge)
