"""The loops of a block as axes of memory: merged where every access steps through them as one.

Analyse the memory accesses of a PrimFunc's block: how far each moves along each axis.

out[n, c, x] = data[n, c, 2 * x] * scale[c]
->  store (C*X, X, 1), loads (2*C*X, 2*X, 2) and (0, 1, 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir.schedule import ScheduleError
from tvm.sym import detect_linear_equation

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite


@dataclass(frozen=True)
class Access:
    """``strides[i]``: elements by which a step of axis ``i`` moves; None if that varies."""

    buffer: tirx.Buffer
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class Footprint:
    """Every access of a block; ``pinned`` axes are used for more than constant strides."""

    store: Access
    loads: tuple[Access, ...]
    pinned: frozenset[int]

    @property
    def accesses(self) -> Iterator[Access]:
        """The store, then the loads."""
        yield self.store
        yield from self.loads


def footprint(block: Any) -> Footprint:
    """Analyse a block of one store; raises ScheduleError for others."""
    body = block.body
    if not isinstance(body, tirx.BufferStore):
        raise ScheduleError("not a block of one store")
    axes = [axis.var for axis in block.iter_vars]
    pinned: set[int] = set()

    def access(buffer: tirx.Buffer, indices: Sequence[Expr]) -> Access:
        flat: Expr = tirx.const(0, axes[0].ty)
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * extent + index
        strides = tuple(_stride(flat, axis) for axis in axes)
        pinned.update(i for i, stride in enumerate(strides) if stride is None)
        return Access(buffer, strides)

    loads = tuple(access(load.source, load.indices) for load in nodes_of(body.value, TensorLoad))
    zero = (TensorLoad, lambda node: tirx.const(0, node.ty))
    seen = nodes_of(rewrite(body.value, zero), tirx.Var)
    pinned.update(i for i, a in enumerate(axes) if any(a.same_as(v) for v in seen))
    return Footprint(access(body.buffer, body.indices), loads, frozenset(pinned))


def _stride(place: Expr, axis: tirx.Var) -> int | None:
    """How far a step of ``axis`` moves; None if that is not constant."""
    coefficients = detect_linear_equation(place, [axis])
    return (
        int(coefficients[0]) if coefficients and isinstance(coefficients[0], tirx.IntImm) else None
    )


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


def transposed_axis(axes: Sequence[Axis], is_costly: bool) -> int | None:
    """The axis to tile with the innermost one, if one access is contiguous along each.

    Only if the innermost loop touches more cache lines than stay until they are used again, or if
    the computation is worth vectors along the other axis.
    """
    if axes[-1].extent < _LINES_KEPT and not is_costly:
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
