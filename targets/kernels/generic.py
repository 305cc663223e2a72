"""Schedule any fused PrimFunc that no template knows.

Blocks are taken one by one, each on a copy of the schedule, so that a block no rule understands stays
as it was::

    elementwise chains     one block; loops that run through memory together become one:
                           for n, c, h, w  ->  for i: for lane (vectorized)
    sum, max, matmul, ...  accumulators in registers, reduction outside the vectorized axis:
                           for n, h, w, k  ->  for n, tile: acc = 0; for k: acc[tile] += ...
    reduced axis innermost several partial sums side by side, joined at the end (rfactor)

Floating-point sums may be reassociated, nothing else changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir.schedule import ScheduleError
from tvm.sym import detect_linear_equation

from .machine import VectorMachine

_WORTH_THREADS = 50_000  # elements that take about as long as waking another core
_CHEAP_CALLS = {"tirx.if_then_else", "tirx.likely"}


def schedule_generic(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """A faster PrimFunc with the same meaning; ``func`` itself where nothing can be done."""
    try:
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        sch.get_sblock("root")
    except (ScheduleError, TypeError):  # not a function of blocks: already scheduled, or extern
        return func
    _inline(sch)
    for name in _block_names(sch):
        trial = sch.copy()
        try:
            _schedule_block(trial, name, machine)
        except ScheduleError:
            continue
        sch = trial
    return sch.mod["main"]


def _block_names(sch: s_tir.Schedule) -> list[str]:
    return [sch.get(b).name_hint for b in sch.get_child_blocks(sch.get_sblock("root"))]


# --- inlining -------------------------------------------------------------------------------------


def _inline(sch: s_tir.Schedule) -> None:
    """Inline elementwise producers wherever that costs neither repeated work nor a vector loop."""
    for name in _block_names(sch):
        block = sch.get_sblock(name)
        producer = sch.get(block)
        consumers = [sch.get(c) for c in sch.get_consumers(block)]
        if consumers and _is_spatial(producer) and _worth_inlining(producer, consumers):
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue


def _worth_inlining(producer: Any, consumers: Sequence[Any]) -> bool:
    size = _points(producer)
    calls = _calls(producer.body)
    dear = bool(calls - _CHEAP_CALLS)
    again = len(consumers) > 1 or any(_points(c) > size for c in consumers)
    if dear and again:
        return False
    into_reduction = [c for c in consumers if not _is_spatial(c)]
    return not (into_reduction and (again or calls))


def _is_spatial(block: Any) -> bool:
    return all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)


def _points(block: Any) -> int:
    """How often the block runs."""
    return prod(int(axis.dom.extent) for axis in block.iter_vars)


def _calls(node: Any) -> set[str]:
    """Names of the intrinsics called below ``node``."""
    found: set[str] = set()
    tvm_ffi.structural_walk(
        node, (Call, lambda call: found.add(getattr(call.op, "name", "?"))), order="post"
    )
    return found


# --- what a block does with memory ----------------------------------------------------------------


@dataclass(frozen=True)
class _Access:
    """``strides[i]``: elements that one step of axis ``i`` moves in the buffer."""

    buffer: tirx.Buffer
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Footprint:
    """Every access of a block; axes in ``pinned`` are used in other ways than these strides."""

    store: _Access
    loads: tuple[_Access, ...]
    pinned: frozenset[int]

    @property
    def accesses(self) -> Iterator[_Access]:
        """The store, then the loads."""
        yield self.store
        yield from self.loads


def _footprint(block: Any) -> _Footprint:
    """Analyse a block of one store; raises ScheduleError for others."""
    body = block.body
    if not isinstance(body, tirx.BufferStore):
        raise ScheduleError("not a block of one store")
    axes = [axis.var for axis in block.iter_vars]
    pinned: set[int] = set()
    loads: list[_Access] = []

    def pin(node: Any) -> None:
        tvm_ffi.structural_walk(
            node,
            (tirx.Var, lambda v: pinned.update(i for i, a in enumerate(axes) if a.same_as(v))),
            order="post",
        )

    def access(buffer: tirx.Buffer, indices: Sequence[Expr]) -> _Access | None:
        strides = _strides(buffer, indices, axes)
        if strides is None:
            for index in indices:
                pin(index)
            return None
        return _Access(buffer, strides)

    def visit(node: TensorLoad) -> None:
        found = access(node.source, node.indices)
        if found is not None:
            loads.append(found)

    tvm_ffi.structural_walk(body.value, (TensorLoad, visit), order="post")
    zero = (TensorLoad, lambda node: tirx.const(0, node.ty))
    pin(tvm_ffi.structural_map(body.value, zero))
    stored = access(body.buffer, body.indices)
    if stored is None:
        raise ScheduleError("the store is not affine")
    return _Footprint(stored, tuple(loads), frozenset(pinned))


def _strides(
    buffer: tirx.Buffer, indices: Sequence[Expr], axes: Sequence[tirx.Var]
) -> tuple[int, ...] | None:
    """Strides of a compact buffer's access along each axis; None if it is not affine."""
    flat: Expr = tirx.const(0, axes[0].ty) if axes else tirx.const(0, "int64")
    for index, extent in zip(indices, buffer.shape, strict=True):
        flat = flat * extent + index
    found = detect_linear_equation(flat, list(axes))
    if not found or not all(isinstance(c, tirx.IntImm) for c in found[: len(axes)]):
        return None
    return tuple(int(c) for c in found[: len(axes)])


# --- schedules ------------------------------------------------------------------------------------


def _schedule_block(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    block = sch.get_sblock(name)
    if not sch.get(block).iter_vars:
        return
    if _is_spatial(sch.get(block)):
        _schedule_spatial(sch, name, machine)
    else:
        _schedule_reduction(sch, name, machine)


def _schedule_spatial(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    """Merge loops that run through memory together, vectorize the innermost, share the outermost."""
    block = sch.get_sblock(name)
    statement = sch.get(block)
    footprint = _footprint(statement)
    extents = [int(axis.dom.extent) for axis in statement.iter_vars]
    groups = _merge_groups(footprint, extents)
    loops = sch.get_loops(block)
    if len(loops) != len(extents):
        raise ScheduleError("loops and axes differ")
    loops = [sch.fuse(*(loops[i] for i in group)) for group in groups]
    sizes = [prod(extents[i] for i in group) for group in groups]
    lanes = _vector_lanes(statement, machine)
    if sizes[-1] % lanes == 0 and footprint.store.strides[groups[-1][-1]] == 1:
        outer, inner = sch.split(loops[-1], [None, lanes])
        sch.vectorize(inner)
        loops[-1:] = [outer]
        sizes[-1] //= lanes
    _parallelize(sch, loops, sizes, _points(statement), machine)


def _merge_groups(footprint: _Footprint, extents: Sequence[int]) -> list[list[int]]:
    """Runs of neighbouring axes that every access walks through as through one."""
    groups = [[0]]
    for axis in range(1, len(extents)):
        before = groups[-1][-1]
        together = not {before, axis} & footprint.pinned and all(
            a.strides[before] == a.strides[axis] * extents[axis] for a in footprint.accesses
        )
        if together or extents[before] == 1 or extents[axis] == 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _vector_lanes(block: Any, machine: VectorMachine) -> int:
    """Elements of one vector of what the block stores."""
    bits = tvm.DataType(str(block.writes[0].source.dtype)).bits
    return machine.lanes * 32 // max(8, min(32, bits))


def _parallelize(
    sch: s_tir.Schedule,
    loops: Sequence[Any],
    sizes: Sequence[int],
    points: int,
    machine: VectorMachine,
) -> None:
    """Share the outermost loops among the threads, as many loops as it needs to balance them."""
    if machine.threads == 1 or points < _WORTH_THREADS:
        return
    count = 1
    while count < len(loops) and prod(sizes[:count]) < 4 * machine.threads:
        count += 1
    sch.parallel(sch.fuse(*loops[:count]))


def _schedule_reduction(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    raise ScheduleError("left as it is")
