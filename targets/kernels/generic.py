"""Schedule fused PrimFuncs that no template covers.

Blocks are scheduled one by one, each on a copy of the schedule, so that a block that no rule
covers stays as it was::

    elementwise chains     one block; loops that advance through memory together are fused:
                           for n, c, h, w  ->  for i: for lane (vectorized)
    sum, max, matmul, ...  accumulators in registers, reduction outside the vectorized axis:
                           for n, h, w, k  ->  for n, tile: acc = 0; for k: acc[tile] += ...
    reduced axis innermost several partial sums in a vector, joined at the end (rfactor)

Floating-point sums may be reassociated; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.targets.kernels.flat import across_pixels

from .flat import rows_of_chain, through_memory
from .inlining import (
    CHEAP,
    FENCE,
    block_names,
    chooses,
    inline,
    intrinsics_of,
    is_spatial,
    points_of,
)
from .loop_axes import (
    Axis,
    fits_vectors,
    footprint,
    interleaved_block,
    jumps,
    merge_loops,
    transposed_axis,
)
from .loops import STACK_BYTES
from .machine import VectorMachine
from .nan import with_known_reducers
from .reduced import reduced_rows
from .squares import in_squares

_WORTH_THREADS = 50_000  # elements that take about as long as waking another core
_ROUND = "tirx.nearbyint"
"""TVM calls it for each lane of a vector; LLVM makes vectors of a plain loop with it."""


def schedule_generic(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """A faster PrimFunc with the same meaning, or ``func`` itself."""
    try:
        sch = s_tir.Schedule(tvm.IRModule({"main": with_known_reducers(func)}))
        sch.get_sblock("root")
    except (ScheduleError, TypeError):  # not a function of blocks: already scheduled, or extern
        return func
    inline(sch)
    if machine.kind == "dsp" and (flat := _flat(func, sch, machine)) is not None:
        return flat
    if machine.kind == "core":
        for rule in (_in_squares, _in_rows):
            if (whole := rule(func, sch, machine)) is not None:
                return whole
    if (chain := _by_rows(sch, machine)) is not None:
        return chain.mod["main"]
    for name in block_names(sch):
        trial = sch.copy()
        try:
            _schedule_block(trial, name, machine)
        except (ScheduleError, tvm.error.InternalError):  # rfactor fails on equal statements
            continue
        sch = trial
    return sch.mod["main"]


def _flat(func: tirx.PrimFunc, sch: s_tir.Schedule, machine: VectorMachine) -> tirx.PrimFunc | None:
    """One elementwise block whose single rows fill no vectors, although several rows do."""
    names, trial = block_names(sch), sch.copy()
    if len(names) != 1 or not is_spatial(statement := sch.get(sch.get_sblock(names[0]))):
        return None
    regions = (*statement.reads, *statement.writes)
    if any(len(region.source.strides) for region in regions):
        return None  # rows of a view have other data between them
    try:
        axis, *more = merge_loops(trial, names[0])
    except (ScheduleError, ValueError):
        return None
    lanes = _vector_lanes(statement, machine)
    if more:
        return across_pixels(func, statement, lanes)
    if not axis.vectorizable or axis.extent < lanes or fits_vectors(axis, lanes):
        return None
    return through_memory(func, statement, axis.extent, lanes)


def _in_squares(
    func: tirx.PrimFunc, sch: s_tir.Schedule, machine: VectorMachine
) -> tirx.PrimFunc | None:
    """One elementwise block that reads an operand along another axis than it writes."""
    names, trial = block_names(sch), sch.copy()
    if len(names) != 1 or not is_spatial(statement := sch.get(sch.get_sblock(names[0]))):
        return None
    if not isinstance(statement.body, tirx.BufferStore):
        return None
    if ({*CHEAP, _ROUND} - {FENCE}) & intrinsics_of(statement.body):
        return None
    try:
        axes = merge_loops(trial, names[0])
    except (ScheduleError, ValueError):
        return None
    if footprint(statement).pinned:
        return None
    threads = machine.threads > 1 and points_of(statement) >= _WORTH_THREADS
    return in_squares(func, statement, axes, machine.plain.lanes, threads)


def _in_rows(
    func: tirx.PrimFunc, sch: s_tir.Schedule, machine: VectorMachine
) -> tirx.PrimFunc | None:
    """One reduction of contiguous rows."""
    names, trial = block_names(sch), sch.copy()
    if len(names) != 1 or is_spatial(statement := sch.get(sch.get_sblock(names[0]))):
        return None
    try:
        axes = merge_loops(trial, names[0])
    except (ScheduleError, ValueError):
        return None
    threads = machine.threads > 1 and points_of(statement) >= _WORTH_THREADS
    return reduced_rows(func, statement, axes, machine.plain.lanes, threads)


def _by_rows(sch: s_tir.Schedule, machine: VectorMachine) -> s_tir.Schedule | None:
    """A chain of steps that fits the stack row by row, but not as a whole."""
    names, trial = block_names(sch), sch.copy()
    try:
        rows = rows_of_chain(trial, names)
    except ScheduleError:
        return None
    if not rows:
        return None
    sizes = [int(trial.get(loop).extent) for loop in rows]
    points = sum(points_of(sch.get(sch.get_sblock(name))) for name in names)
    for name in names:
        _vectorize_fenced(trial, name, len(rows), machine)
    _parallelize(trial, rows, sizes, points, machine)
    return trial


def _vectorize_fenced(sch: s_tir.Schedule, name: str, rows: int, machine: VectorMachine) -> None:
    """Make vectors of a step around a fence, because LLVM does not.

    Steps share the loops over ``rows``: a vector of such a loop would need a place for each lane in
    what the steps pass on.
    """
    block = sch.get_sblock(name)
    own = sch.get_loops(block)[rows:]
    if not own:
        return
    loop = own[-1]
    lanes, calls = _vector_lanes(sch.get(block), machine), intrinsics_of(sch.get(block).body)
    if FENCE not in calls or _ROUND in calls or chooses(sch.get(block)):
        return
    if int(sch.get(loop).extent) % lanes == 0 and _moves_along_the_last(sch.get(block)):
        sch.vectorize(sch.split(loop, [None, lanes])[1])


def _moves_along_the_last(block: Any) -> bool:
    """Whether the last axis is the last index of all that the block reads and writes, or none."""
    last = block.iter_vars[-1].var
    for access in (*block.reads, *block.writes):
        places = [place.min for place in access.region]
        if places and places[-1].same_as(last):
            places.pop()
        if any(last.same_as(var) for place in places for var in nodes_of(place, tirx.Var)):
            return False
    return True


# --- schedules ------------------------------------------------------------------------------------


def _schedule_block(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    block = sch.get_sblock(name)
    if not sch.get(block).iter_vars:
        return
    if is_spatial(sch.get(block)):
        _schedule_spatial(sch, name, machine)
    else:
        _schedule_reduction(sch, name, machine)


def _schedule_spatial(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    """Merge loops, vectorize the innermost, parallelize the outermost."""
    axes = merge_loops(sch, name)
    statement = sch.get(sch.get_sblock(name))
    loops, sizes = [a.loop for a in axes], [a.extent for a in axes]
    lanes = _vector_lanes(statement, machine)
    calls = intrinsics_of(statement.body)
    # vectors along the loads, whose numbers are stored one by one
    is_costly = bool(calls - CHEAP) and _ROUND not in calls and not chooses(statement)
    is_costly = is_costly and machine.kind == "core"
    across = transposed_axis(axes, is_costly)
    if across is not None:
        inner = []
        for i in (across, len(loops) - 1):
            side = _divisor(sizes[i], 2 * lanes, lanes)
            loops[i], part = sch.split(loops[i], [None, side])
            sizes[i] //= side
            inner.append(part)
        sch.reorder(*loops, *(reversed(inner) if is_costly else inner))
        if is_costly:
            sch.vectorize(inner[0])
    elif block := interleaved_block(axes):
        # all rows that lie in one cache line of the load are stored together
        loops[-2], part = sch.split(loops[-2], [None, block])
        sizes[-2] //= block
        sch.reorder(*loops, part)
        (sch.vectorize if is_costly else sch.unroll)(part)
    elif _ROUND not in calls and (
        _is_vector(axes[-1], lanes) or (FENCE in calls and _is_contiguous(axes[-1], lanes))
    ):
        loops[-1], inner = sch.split(loops[-1], [None, lanes])
        sch.vectorize(inner)
        sizes[-1] = -(-sizes[-1] // lanes)
    _parallelize(sch, loops, sizes, points_of(statement), machine)


def _is_contiguous(axis: Axis, lanes: int) -> bool:
    """Whether the axis is made of vectors in one piece of memory, and a part of one at its end."""
    return axis.vectorizable and axis.extent > lanes and axis.strides[0] == 1 and not jumps(axis)


def _is_vector(axis: Axis, lanes: int) -> bool:
    """Whether the axis is made of vectors that lie in one piece of memory."""
    return fits_vectors(axis, lanes) and axis.strides[0] == 1 and not jumps(axis)


def _vector_lanes(block: Any, machine: VectorMachine) -> int:
    """Elements of one vector of the block's result."""
    bits = tvm.DataType(str(block.writes[0].source.dtype)).bits
    return machine.lanes * 32 // max(8, min(32, bits))


def _parallelize(
    sch: s_tir.Schedule,
    loops: Sequence[Any],
    sizes: Sequence[int],
    points: int,
    machine: VectorMachine,
) -> None:
    """Parallelize the outermost loops, as many as are needed to balance the threads."""
    if machine.threads == 1 or points < _WORTH_THREADS or not loops:
        return
    count = 1
    while count < len(loops) and prod(sizes[:count]) < 4 * machine.threads:
        count += 1
    sch.parallel(sch.fuse(*loops[:count]))


def _schedule_reduction(sch: s_tir.Schedule, name: str, machine: VectorMachine) -> None:
    """Vectorize over a spatial axis or, if there is none, over parts of the reduced axis."""
    points = points_of(sch.get(sch.get_sblock(name)))
    axes = merge_loops(sch, name)
    vector = next((a for a in axes if a.vectorizable and a.extent >= machine.lanes // 2), None)
    if vector is not None:
        _tile(sch, name, axes, vector, points, machine)
    else:
        _reduce_in_parts(sch, name, axes, points, machine)


def _tile(
    sch: s_tir.Schedule,
    name: str,
    axes: Sequence[Axis],
    vector: Axis,
    points: int,
    machine: VectorMachine,
) -> None:
    """Accumulate a tile of vectors in registers over the whole reduction."""
    block = sch.get_sblock(name)
    others = [a for a in axes if a.spatial and a is not vector]
    reduced = [a.loop for a in axes if not a.spatial]
    width = _divisor(vector.extent, 2 * machine.lanes, machine.lanes)
    steps = [step for step in vector.inner if step < vector.extent]
    if not all(step % width == 0 or width % step == 0 for step in steps):  # not a box of the axes
        width = _divisor(gcd(vector.extent, *steps), 2 * machine.lanes, machine.lanes)
    if not _fills(width, machine.lanes):
        # no width divides the axis; as the innermost loop the compiler vectorizes it with a tail
        sch.reorder(*(a.loop for a in others), *reduced, vector.loop)
        _parallelize(sch, [a.loop for a in others], [a.extent for a in others], points, machine)
        sch.decompose_reduction(block, reduced[0])
        return
    vectors = -(-width // machine.lanes)
    # rows that share the vector operand come first, so that a load serves several accumulators
    rows = sorted(
        (a for a in others if not a.pinned), key=lambda a: (0 not in a.strides[1:], -a.extent)
    )[:1]
    step, lane = sch.split(vector.loop, [None, width])
    outer = [a.loop for a in others if a not in rows]
    sizes = [a.extent for a in others if a not in rows]
    outer.append(step)
    sizes.append(vector.extent // width)
    inner = []
    item = tvm.DataType(str(sch.get(block).writes[0].source.dtype)).itemsize
    most = min((machine.registers - 3) // vectors, STACK_BYTES // (width * item))
    for row in rows:
        count = _divisor(row.extent, max(1, most), 1)
        tile, within = sch.split(row.loop, [None, count])
        outer.append(tile)
        inner.append(within)
        sizes.append(row.extent // count)
    sch.reorder(*outer, *reduced, *inner, lane)
    result = sch.cache_write(block, 0, "global")
    sch.reverse_compute_at(result, outer[-1])
    copied = [sch.get(loop).extent for loop in sch.get_loops(result)[len(outer) :]]
    if not all(isinstance(e, tirx.IntImm) for e in copied) or (
        prod(map(int, copied)) != width * prod(int(sch.get(loop).extent) for loop in inner)
    ):
        # the bounding box of a tile of merged axes contains elements that the tile does not compute
        raise ScheduleError("the tile is not a box of the result")
    *written, last = sch.get_loops(result)[len(outer) :]
    for row in (*inner, *written):  # sums are registers only if their indices are constants
        sch.unroll(row)
    sch.vectorize(lane)
    sch.vectorize(last)
    _parallelize(sch, outer, sizes, points, machine)  # not possible on a decomposed reduction
    start = sch.get_loops(sch.decompose_reduction(block, reduced[0]))
    *cleared, last = start[-1 - len(inner) :]
    for row in cleared:
        sch.unroll(row)
    sch.vectorize(last)


def _divisor(extent: int, largest: int, lanes: int) -> int:
    """The divisor of ``extent`` that fills vectors of ``lanes`` best; the larger of equal ones.

    Either part of a vector or whole vectors, because the compiler handles one and a half badly.

    >>> _divisor(196, 16, 8), _divisor(56, 16, 8)
    (7, 8)
    """
    divisors = [
        d
        for d in range(1, min(largest, extent) + 1)
        if extent % d == 0 and (d < lanes or d % lanes == 0)
    ]
    return max(divisors, key=lambda d: (d / (-(-d // lanes) * lanes), d))


def _fills(width: int, lanes: int) -> bool:
    """Whether vectors of ``width`` elements use most of their lanes."""
    return width >= 0.6 * -(-width // lanes) * lanes


def _reduce_in_parts(
    sch: s_tir.Schedule, name: str, axes: Sequence[Axis], points: int, machine: VectorMachine
) -> None:
    """Compute several partial results in a vector and join them at the end."""
    block = sch.get_sblock(name)
    last = axes[-1]
    if last.spatial or last.pinned or any(s not in (0, 1) for s in last.strides):
        raise ScheduleError("the reduced axis is not innermost")
    most = max(1, min(4, last.extent // (8 * machine.lanes))) * machine.lanes
    width = _divisor(last.extent, most, machine.lanes)
    if not _fills(width, machine.lanes) or width == last.extent:
        raise ScheduleError("no vector width divides the axis")
    spatial = [a for a in axes if a.spatial]
    parts = sch.rfactor(
        sch.split(last.loop, [None, width])[1], len(sch.get(block).writes[0].region)
    )
    outer = sch.get_loops(block)[: len(spatial)]
    if outer:
        sch.compute_at(parts, outer[-1])
        lane, *reduced = sch.get_loops(parts)[len(outer) :]
    else:
        *reduced, lane = sch.get_loops(parts)
    sch.reorder(*reduced, lane)
    sch.vectorize(lane)
    _parallelize(sch, outer, [a.extent for a in spatial], points, machine)
    start = sch.get_loops(sch.decompose_reduction(parts, reduced[0]))
    sch.vectorize(start[-1])
