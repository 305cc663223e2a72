"""The loops of a block as axes of memory: merged where every access steps through them as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from .footprint import footprint

_LINE = 16  # elements of a cache line
_LINES_KEPT = 128  # cache lines with a large stride that are sure to stay in the first-level cache


@dataclass(frozen=True)
class Axis:
    """A loop over merged axes, with the step of each access; the store comes first."""

    loop: Any
    extent: int
    spatial: bool
    pinned: bool
    strides: tuple[int | None, ...]
    inner: tuple[int, ...] = ()
    """Numbers of steps after which the merged inner axes repeat, from inside."""

    @property
    def vectorizable(self) -> bool:
        """Whether stores are contiguous, and every load is contiguous or a broadcast."""
        contiguous = self.strides[0] == 1 and all(s in (0, 1) for s in self.strides)
        return self.spatial and not self.pinned and contiguous


def merge_loops(sch: s_tir.Schedule, name: str) -> list[Axis]:
    """Fuse neighbouring loops if every access advances through them as through one loop."""
    block = sch.get_sblock(name)
    statement = sch.get(block)
    memory = footprint(statement)
    extents = [int(axis.dom.extent) for axis in statement.iter_vars]
    kinds = [axis.iter_type for axis in statement.iter_vars]
    loops = sch.get_loops(block)
    if len(loops) != len(extents):
        raise ScheduleError("loops and axes differ")
    accesses = list(memory.accesses)

    def follows(before: int, axis: int) -> bool:
        return not {before, axis} & memory.pinned and all(
            a.strides[before] == (a.strides[axis] or 0) * extents[axis] for a in accesses
        )

    groups = [[0]]
    for axis in range(1, len(extents)):
        # loops of one iteration join any loop, because they do not affect how memory is traversed
        longer = [i for i in groups[-1] if extents[i] > 1]
        joins = extents[axis] == 1 or not longer or follows(longer[-1], axis)
        if joins and kinds[axis] == kinds[groups[-1][-1]]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    merged = []
    for group in groups:
        last = next((i for i in reversed(group) if extents[i] > 1), group[-1])
        merged.append(
            Axis(
                sch.fuse(*(loops[i] for i in group)),
                prod(extents[i] for i in group),
                kinds[group[0]] == tirx.IterVar.DataPar,
                last in memory.pinned,
                tuple(a.strides[last] for a in accesses),
                tuple(accumulate((extents[i] for i in group[:0:-1]), mul)),
            )
        )
    return merged


def fits_vectors(axis: Axis, lanes: int) -> bool:
    """Whether TVM recognises vectors of a loop as contiguous; LLVM vectorizes other loops.

    In (16 * i + lane) // 12608 and % 197, TVM simplifies the one and not the other: with axes of
    64 and 197 it would store every lane separately.
    """
    steps = [step for step in axis.inner if step < axis.extent]
    even = all(step % lanes == 0 or lanes % step == 0 for step in steps)
    return axis.extent % lanes == 0 and (even or all(step % 2 for step in steps))


def jumps(axis: Axis) -> list[int]:
    """Accesses that are not contiguous along ``axis``; the compiler shuffles for small strides."""
    return [
        i for i, stride in enumerate(axis.strides) if stride is not None and stride not in (0, 1)
    ]


def interleaved_block(axes: Sequence[Axis]) -> int:
    """Number of rows that are interleaved in memory, as channels in NCHW[c]; 0 if they are not."""
    for i in jumps(axes[-1]):
        stride = axes[-1].strides[i] or 0
        if len(axes) > 1 and axes[-2].strides[i] is None and axes[-2].extent % stride == 0:
            return stride if 1 < stride <= _LINE else 0
    return 0


def transposed_axis(axes: Sequence[Axis]) -> int | None:
    """The axis to tile with the innermost one, if one access is contiguous along each.

    Only if the innermost loop touches more cache lines than stay until they are used again.
    """
    if axes[-1].extent < _LINES_KEPT:
        return None
    for i, axis in enumerate(axes[:-1]):
        if (
            axis.extent > 1
            and not axis.pinned
            and any(
                axis.strides[j] == 1 and abs(axes[-1].strides[j] or 0) > _LINE
                for j in jumps(axes[-1])
            )
        ):
            return i
    return None
