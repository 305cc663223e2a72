"""A network as the search sees it: a chain of pieces between meeting points.

    input -> [conv, pool] -> [conv, conv, add] -> [conv, conv, add] -> [mean, dense] -> output

A network without meeting points is one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm

import tvm

from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.operators import CONVOLUTIONS, OF_ONE, OF_TWO, Operator
from tvm_stretch.network.properties.meeting_points import (
    MeetingPoints,
    Segment,
    detect_meeting_points,
    set_aside,
)
from tvm_stretch.network.steps import UNITS, is_block_product
from tvm_stretch.plan.search.priced_kernels import Kernels


@dataclass(frozen=True, eq=False)
class Piece:
    """The kernels between two meeting points."""

    groups: tuple[Group, ...]  # its kernels in program order
    entries: tuple[str, ...]  # the inputs and earlier kernels that it or later pieces read
    exits: tuple[str, ...]  # the inputs and kernels that later pieces read
    start: str = ""  # the tensor at its beginning, empty if it is no segment
    end: str = ""  # the tensor at its end, empty if it is no segment


class Network:
    """The pieces of ``main``."""

    def __init__(self, mod: tvm.IRModule, kernels: Kernels) -> None:
        self.mod = mod
        self.graph = kernels.lower(mod)
        self.operators = self.graph.operators
        self.aside = set_aside(self.operators)
        points = detect_meeting_points(self.operators, self.aside)
        self.points = _between_kernels(points, self.graph.groups)
        self.pieces = self._pieces(self.points)

    @cached_property
    def group_of(self) -> dict[str, str]:
        """The group of each operator that belongs to one."""
        return {op.name: group.name for group in self.graph.groups for op in group.operators}

    def channel_unit(self, operator: Operator, lanes: int) -> int:
        """Shares of its channels are multiples of this: whole vectors, whole groups of readers."""
        blocks = [UNITS] if is_block_product(operator.kind) else []
        return lcm(lanes, *blocks, *self._group_widths(operator))

    def reads(self, group: Group) -> tuple[str, ...]:
        """The inputs and kernels whose results the group reads, without constants."""
        return tuple(name for name in group.reads if name in self._known)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.graph.inputs) | {group.name for group in self.graph.groups}

    def _pieces(self, points: MeetingPoints) -> tuple[Piece, ...]:
        """A piece for each segment, with its kernels and those between it and the next segment.

        Operators that are set aside belong to the first piece.
        """
        segment_of = {name: i for i, s in enumerate(points.segments) for name in s.operators}
        members: list[list[Group]] = [[] for _ in range(max(1, len(points.segments)))]
        current = 0
        for group in self.graph.groups:
            if group.name in self.aside:
                members[0].append(group)
                continue
            current = max(current, segment_of.get(group.name, current))
            members[current].append(group)
        pieces: list[Piece] = []
        needed = tuple(name for name in self.graph.outputs if name in self._known)
        for index in reversed(range(len(members))):
            groups = tuple(members[index])
            inside = {group.name for group in groups}
            reads = [name for group in groups for name in self.reads(group)]
            entries = tuple(dict.fromkeys(n for n in (*reads, *needed) if n not in inside))
            ends = self._ends(points.segments[index], groups) if points.segments else ("", "")
            pieces.append(Piece(groups, entries, needed, *ends))
            needed = entries
        return tuple(reversed(pieces))

    def _ends(self, segment: Segment, groups: tuple[Group, ...]) -> tuple[str, str]:
        """Start and end of a segment that holds just the operators of these kernels."""
        own = {op.name for group in groups for op in group.operators}
        kernels = {name for name in segment.operators if name in self.group_of}
        return (segment.start.tensor, segment.end.tensor) if own == kernels else ("", "")

    def _group_widths(self, operator: Operator) -> list[int]:
        """Input channels of the groups of grouped convolutions that read the result."""
        widths, waiting = [], [operator.name]
        while waiting:
            for name in self.operators.readers[waiting.pop()]:
                reader = self.operators[name]
                if reader.kind in CONVOLUTIONS and reader.groups > 1:
                    widths.append(reader.arg_shapes[1][1])
                elif reader.kind in OF_ONE | OF_TWO and len(reader.inputs) == 1:
                    waiting.append(name)
        return widths


def _between_kernels(points: MeetingPoints, groups: Sequence[Group]) -> MeetingPoints:
    """The meeting points that no kernel computes on its way to another one.

    A normalisation after a residual is one kernel, and has such points inside.
    """
    segment_of = {name: i for i, s in enumerate(points.segments) for name in s.operators}
    inside: set[int] = set()  # segments whose last tensor is such a point
    for group in groups:
        own = [segment_of[op.name] for op in group.operators if op.name in segment_of]
        inside.update(range(min(own, default=0), max(own, default=0)))
    joined: list[Segment] = []
    for index, segment in enumerate(points.segments):
        before = joined.pop() if index - 1 in inside else None
        joined.append(segment if before is None else _joined(before, segment))
    return MeetingPoints(tuple(joined))


def _joined(one: Segment, other: Segment) -> Segment:
    return Segment(
        one.start,
        other.end,
        one.operators + other.operators,
        len(one.operators) + other.core,
        one.multiply_adds + other.multiply_adds,
    )
