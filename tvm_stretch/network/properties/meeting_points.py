"""Find the tensors of a network where all paths from its input to its output join.

    x -> conv -> relu -> conv -> add -> relu -> y        points: x, first relu, y
                    `------------^

A tensor is a meeting point if everything computed later depends on it alone. Bias and activation
belong to the layer before them, so that no point separates operators that one kernel computes.
Between two neighbouring points lies a segment: work that several processors may share.

A network may have inputs that all layers read, such as the mask of an attention. They and results
of them alone are set aside: a tensor then is a meeting point if everything computed later
depends on it and on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import tvm
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.expressions import RESHAPES, axes_of
from tvm_stretch.network.operators import POINTWISE, Operator, Operators

DEFAULT_ALPHA = 0.1

SHUFFLE = [0, 2, 1, 3, 4]
"""Axes of images with channels in groups, in the order that exchanges groups and channels."""

# Operators that belong to the layer before; batch normalisations occur only in trainable networks.
_FOLLOWING = POINTWISE | RESHAPES | {"nn.batch_norm", "TupleGetItem"}


@dataclass(frozen=True)
class MeetingPoint:
    """A tensor where all paths join."""

    tensor: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Segment:
    """The operators between two meeting points."""

    start: MeetingPoint  # the tensor that they read
    end: MeetingPoint  # the tensor that they compute
    operators: tuple[str, ...]  # names in program order; the last one computes ``end``
    core: int  # the number of operators before the trailing pointwise ones
    multiply_adds: int  # of all operators together

    def __str__(self) -> str:
        return (
            f"{self.start.tensor} -> {self.end.tensor}: {len(self.operators)} operators, "
            f"{self.multiply_adds / 1e6:.1f} M multiply-adds, "
            f"{self.end.bytes / 1024:.0f} KiB at the end"
        )


@dataclass(frozen=True)
class MeetingPoints:
    """The chain of segments of a network; empty if several inputs never meet."""

    segments: tuple[Segment, ...]

    @property
    def points(self) -> tuple[MeetingPoint, ...]:
        """All points, from the first segment's start to the last one's end."""
        if not self.segments:
            return ()
        return (self.segments[0].start, *(segment.end for segment in self.segments))

    def __str__(self) -> str:
        return "\n".join(str(segment) for segment in self.segments)


def detect_meeting_points(
    mod: tvm.IRModule | relax.Function | Operators, aside: Collection[str] = ()
) -> MeetingPoints:
    """The meeting points of canonical ``main``; ``aside``: tensors that do not count."""
    operators = as_operators(mod)
    cores = list(_merge_pointwise(operators, list(_articulations(operators, aside))))
    segments = []
    for (start, _, _), (end, members, core) in pairwise(cores):
        segments.append(
            Segment(
                start=_point(operators, start),
                end=_point(operators, end),
                operators=tuple(member.name for member in members),
                core=core,
                multiply_adds=sum(member.multiply_adds for member in members),
            )
        )
    return MeetingPoints(tuple(segments))


def set_aside(operators: Operators) -> frozenset[str]:
    """The inputs, and the operators that read only them, without which there are the most points.

    Nothing is set aside where the network has as many points with them.
    """
    choices = [frozenset[str]()]
    if len(operators.params) > 1:
        below = {param: operators.below(param) for param in operators.params}
        every = frozenset().union(*below.values())
        choices += [
            every - names for names in below.values() if names.issuperset(operators.outputs)
        ]
    return max(choices, key=lambda aside: sum(1 for _ in _articulations(operators, aside)))


def as_operators(mod: tvm.IRModule | relax.Function | Operators) -> Operators:
    """The operators of ``main`` or of a function; `Operators` are returned as given."""
    if isinstance(mod, Operators):
        return mod
    return Operators(mod["main"] if isinstance(mod, tvm.IRModule) else mod)


def _point(operators: Operators, tensor: str) -> MeetingPoint:
    return MeetingPoint(tensor, operators.shape(tensor), operators.bytes(tensor))


def _articulations(
    operators: Operators, aside: Collection[str]
) -> Iterator[tuple[str, list[Operator]]]:
    """Tensors that alone are alive after their operator, each with the operators up to it.

    In program order everything before a meeting point leads to it, and everything after it depends
    on it, so no other tensor is still to be read there.
    """
    waiting = {name: len(readers) for name, readers in operators.readers.items()}
    for name in operators.outputs:
        waiting[name] += 1
    alive = {name for name in operators.params if waiting[name] and name not in aside}
    if len(alive) == 1 and operators.shape(next(iter(alive))):
        yield next(iter(alive)), []
    members = []
    for operator in operators:
        if operator.name in aside:
            continue
        members.append(operator)
        for name in operator.inputs:
            waiting[name] -= 1
            if not waiting[name]:
                alive.discard(name)
        if waiting[operator.name] and operator.inputs:
            alive.add(operator.name)
        if alive == {operator.name} and operator.shape:
            yield operator.name, members
            members = []


def _merge_pointwise(
    operators: Operators, articulations: Sequence[tuple[str, list[Operator]]]
) -> Iterator[tuple[str, list[Operator], int]]:
    """Join pointwise operators with the layer before them; also yields the number of the others."""
    pending: tuple[str, list[Operator], int] | None = None
    for name, members in articulations:
        follows = all(_belongs_to_layer(member) for member in members)
        if pending is not None and pending[1] and follows:
            pending = (name, pending[1] + members, pending[2])
            continue
        if pending is not None:
            yield pending
        pending = (name, members, len(members))
    if pending is not None:
        yield pending


def _belongs_to_layer(operator: Operator) -> bool:
    """Whether an operator belongs to the layer before it, as a channel shuffle also does."""
    if operator.kind == "permute_dims":
        return axes_of(operator.call) == SHUFFLE
    return operator.kind in _FOLLOWING


def amortise(
    found: MeetingPoints,  # all points of the network
    latency_ns: Mapping[str, int],  # of each operator; operators that are not listed cost nothing
    transfer_ns: Callable[[int], int],  # time to exchange a tensor of the given number of bytes
    alpha: float = DEFAULT_ALPHA,  # the greatest ratio of communication to computation
) -> tuple[MeetingPoint, ...]:
    """The largest set of points whose communication is worth its segment (NN-Stretch, equation 4).

    Between two chosen points the operators take at least ``1 / alpha`` times as long as bringing
    the tensor at their end to the other processors. Among the largest sets, the one with the least
    communication is chosen. It always contains the first and the last point.
    """
    if not alpha > 0:
        raise InputError(f"expected a positive number for alpha, got {alpha}; the papers use 0.1")
    points = found.points
    if not points:
        return ()
    elapsed = [0]
    for segment in found.segments:
        own = sum(latency_ns.get(name, 0) for name in segment.operators)
        elapsed.append(elapsed[-1] + own)
    costs = [transfer_ns(point.bytes) for point in points]
    # best[j]: number of segments up to point j, its communication negated, and the point before j
    best: list[tuple[int, int, int] | None] = [(0, 0, -1)]
    for j in range(1, len(points)):
        choices = [
            (before[0] + 1, before[1] - costs[j], i)
            for i, before in enumerate(best)
            if before is not None and costs[j] <= alpha * (elapsed[j] - elapsed[i])
        ]
        best.append(max(choices, default=None))
    chosen = [len(points) - 1]
    while chosen[-1] > 0:
        step = best[chosen[-1]]
        chosen.append(step[2] if step is not None else 0)
    return tuple(points[index] for index in reversed(chosen))
