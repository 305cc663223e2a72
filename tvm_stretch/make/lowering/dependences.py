"""Find which regions wait for which, and what has to be copied, from the last writer of every byte.

    region  processor  reads   writes        after   receives   sends
    r0      cpu        x       a             -       x          a
    r1      opencl     a       b             r0      a          b
    r2      cpu        a, b    c             r1      b          c         a is in its memory already
    r3      opencl     a, c    y             r2      c          y         it received a before

Bytes are tracked instead of tensors, because two regions may each write a part of what a third one
reads. Rows of a feature map are many parts, one in each block of channels.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tvm_stretch.make.lowering.placed_tensors import Buffer, DraftNode, View


@dataclass(eq=False)
class RegionSteps:
    """A region whose tensors have no numbers yet."""

    name: str
    processor: int
    steps: list[DraftNode] = field(default_factory=list)


@dataclass(frozen=True)
class Links:
    """Dependencies of one region on others; see `graph.Region`."""

    after: tuple[int, ...]
    receives: tuple[View, ...]
    sends: tuple[View, ...]


def link_regions(
    regions: Sequence[RegionSteps],  # in the order of the graph
    outputs: Iterable[View],  # tensors that the caller reads
) -> tuple[list[Links], list[int]]:
    """Find the links of all regions.

    Returns:
        The links, and for each region the regions (bits of an integer) that happen before it.
    """
    trace = _Trace(regions)
    for index, region in enumerate(regions):
        for step in region.steps:
            for view in step.inputs + (step.when[:1] if step.when else ()):
                trace.read(index, view)
            for view in step.outputs:
                trace.write(index, view)
    for view in outputs:
        trace.return_to_caller(view)
    after, before = _order(regions, trace.sources)
    windows = zip(after, trace.receives, trace.sends, strict=True)
    return [Links(a, r.views(), s.views()) for a, r, s in windows], before


def happens_before(regions: Sequence[RegionSteps], before: Sequence[int]) -> list[int]:
    """For each step, numbered through all regions, the steps (bits) that are complete before it."""
    own: list[int] = []
    count = 0
    for region in regions:
        own.append(((1 << len(region.steps)) - 1) << count)
        count += len(region.steps)
    earlier: list[int] = []
    for region, mask in zip(regions, before, strict=True):
        steps_before = 0
        for other, bits in enumerate(own):
            if mask >> other & 1:
                steps_before |= bits
        for _ in region.steps:
            earlier.append(steps_before)
            steps_before |= 1 << (len(earlier) - 1)
    return earlier


def _order(
    regions: Sequence[RegionSteps], sources: Sequence[set[int]]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """`after` without implied regions, and all regions that happen before each region."""
    after: list[tuple[int, ...]] = []
    before: list[int] = []
    latest: dict[int, int] = {}  # the last region of each processor so far
    for index, region in enumerate(regions):
        direct = set(sources[index])
        if region.processor in latest:
            direct.add(latest[region.processor])
        latest[region.processor] = index
        implied = 0
        for other in direct:
            implied |= before[other]
        needed = sorted(other for other in direct if not implied >> other & 1)
        after.append(tuple(i for i in needed if regions[i].processor != region.processor))
        before.append(implied | sum(1 << other for other in needed))
    return after, before


@dataclass
class _Piece:
    """Consecutive bytes of one buffer with the same history."""

    start: int
    stop: int
    writer: int | None  # region; None is the caller
    holders: set[int]  # processors that have these bytes


@dataclass
class _Windows:
    """Parts of buffers; parts that touch or overlap are merged."""

    parts: dict[Buffer, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, root: Buffer, start: int, stop: int) -> None:
        kept = []
        for other in self.parts.get(root, []):
            if other[0] <= stop and start <= other[1]:
                start, stop = min(start, other[0]), max(stop, other[1])
            else:
                kept.append(other)
        self.parts[root] = sorted([*kept, (start, stop)])

    def views(self) -> tuple[View, ...]:
        return tuple(
            View(root, (stop - start,), "uint8", start)
            for root, windows in self.parts.items()
            for start, stop in windows
        )


class _Trace:
    """Tracks every byte while the regions run in order."""

    def __init__(self, regions: Sequence[RegionSteps]) -> None:
        self.processors = [region.processor for region in regions]
        self.sources: list[set[int]] = [set() for _ in regions]
        self.receives = [_Windows() for _ in regions]
        self.sends = [_Windows() for _ in regions]
        self._pieces: dict[Buffer, list[_Piece]] = {}

    def read(self, region: int, view: View) -> None:
        """`region` reads a tensor: it may have to wait for its writer and to receive it."""
        processor = self.processors[region]
        for root, piece in self._covering(view):
            if piece.writer is not None and piece.writer != region:
                self.sources[region].add(piece.writer)
            if processor not in piece.holders:
                self.receives[region].add(root, piece.start, piece.stop)
                piece.holders.add(processor)
                if piece.writer is not None:
                    self.sends[piece.writer].add(root, piece.start, piece.stop)

    def write(self, region: int, view: View) -> None:
        """`region` writes a tensor, which no other processor has yet."""
        for _, piece in self._covering(view):
            piece.writer, piece.holders = region, {self.processors[region]}

    def return_to_caller(self, view: View) -> None:
        """The caller reads a tensor when all regions are complete."""
        for root, piece in self._covering(view):
            if piece.writer is not None:
                self.sends[piece.writer].add(root, piece.start, piece.stop)

    def _covering(self, view: View) -> list[tuple[Buffer, _Piece]]:
        """The pieces of a tensor, cut where it begins and ends; none for a constant."""
        root = view.buffer.root
        if root.is_constant or view.bytes == 0:
            return []
        pieces = self._pieces.setdefault(root, [_Piece(0, root.bytes, None, set())])
        covering = []
        for start, stop in view.layout.runs():
            first, last = _cut(pieces, start), _cut(pieces, stop)
            covering += [(root, piece) for piece in pieces[first:last]]
        return covering


def _cut(pieces: list[_Piece], at: int) -> int:
    """Cut pieces at this byte; returns the index of the piece that begins there."""
    index = bisect.bisect_left(pieces, at, key=lambda piece: piece.start)
    if index and pieces[index - 1].stop > at:
        before = pieces[index - 1]
        pieces.insert(index, _Piece(at, before.stop, before.writer, set(before.holders)))
        before.stop = at
    return index
