"""Table lookups of 8-bit numbers on HVX.

    out[i] = table[x[i] + 128]

    first, second = shuffle(table[0:128]), shuffle(table[128:256])
    for 128 numbers:
      found = lookup(x, first, 0)          # for numbers from 0 to 31; others give 0
      found |= lookup(x, first, 1)  ..     # for each further 32 numbers

A lookup compares the three highest bits of each byte and selects by the others, among the even or
the odd bytes of a vector; a shuffled vector has its two halves there. Signed bytes are looked up as
unsigned ones, with the two halves of their table exchanged.

If TVM fused a table with neighbouring operators, LLVM would look up one number at a time and
compute the rest so too; therefore tables are not fused (`passes/mark_gathers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir.schedule import ScheduleError

from .fused import same_place
from .hvx import LANES, VECTOR, bytes_at, dense_axes, hvx, keep, keep_bytes, whole, word
from .loops import const, loop, unravelled, vectors, within

_RESULTS = 256
_OF_VECTOR = 4
"""Lookups that cover all bytes of a shuffled vector."""


@dataclass(frozen=True)
class Lookup:
    """``out[i] = table[data[i] - least]``, with equal indices."""

    data: tirx.Buffer
    table: tirx.Buffer
    out: tirx.Buffer


def lookup_of(func: tirx.PrimFunc) -> Lookup | None:
    """The lookup that a kernel of 8-bit numbers consists of; None for other kernels."""
    try:
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        found = [sch.get(b) for b in sch.get_child_blocks(sch.get_sblock("root"))]
    except (ScheduleError, TypeError):  # not a function of blocks
        return None
    body = found[0].body if len(found) == 1 else None
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, TensorLoad):
        return None
    table, data = body.value, _index_of(body.value)
    if data is None or [int(extent) for extent in table.source.shape] != [_RESULTS]:
        return None
    axes = [axis.var for axis in found[0].iter_vars]
    buffers = data.source, table.source, body.buffer
    is_bytes = all(str(buffer.dtype) in ("uint8", "int8") for buffer in buffers)
    in_order = same_place(data.indices, axes) and same_place(body.indices, axes)
    return Lookup(*buffers) if is_bytes and in_order else None


def _index_of(looked_up: TensorLoad) -> TensorLoad | None:
    """The number that selects a table's result, if the table begins with the least number."""
    index, *more = looked_up.indices
    least = 0
    if isinstance(index, tirx.Add | tirx.Sub) and isinstance(index.b, tirx.IntImm):
        least = int(index.b) if isinstance(index, tirx.Sub) else -int(index.b)
        index = index.a
    data = index.value if isinstance(index, tirx.Cast) else None
    if more or not isinstance(data, TensorLoad):
        return None
    return data if least == (-128 if str(data.source.dtype) == "int8" else 0) else None


def table_nest(func: tirx.PrimFunc) -> tirx.Stmt | None:
    """The loop nest of a lookup in tensors with contiguous vectors; None for other kernels."""
    found = lookup_of(func)
    if found is None:
        return None
    shape = [int(extent) for extent in found.out.shape]
    dense = min(dense_axes(buffer) for buffer in (found.data, found.out))
    outer, run = shape[: len(shape) - dense], prod(shape[len(shape) - dense :])
    if run < VECTOR:
        return None
    halves = vectors("table", 2, LANES, dtype="int32")
    order = halves if str(found.data.dtype) == "uint8" else halves[::-1]
    shuffled = [
        keep(half, hvx("vshuffb", bytes_at(found.table, number * VECTOR)))
        for number, half in enumerate(order)
    ]
    inside = [const(0)] * (dense - 1)

    def row(i: Expr) -> tirx.Stmt:
        def some(v: Expr) -> tirx.Stmt:
            # the last vector ends with the run, so some numbers are looked up twice
            at = tirx.min(v * VECTOR, const(run - VECTOR)) if run % VECTOR else v * VECTOR
            place = (*unravelled(i, outer), *inside, at)
            return keep_bytes(found.out, _looked_up(bytes_at(found.data, *place), halves), *place)

        return loop(-(-run // VECTOR), some, "v")

    return within(halves, [*shuffled, loop(prod(outer), row, "row")])


def _looked_up(numbers: Expr, halves: list[tirx.Buffer]) -> Expr:
    """The results for a vector of bytes."""
    found = hvx("vlutvvbi", numbers, whole(halves[0]), word(0))
    for part in range(1, 2 * _OF_VECTOR):
        half = whole(halves[part // _OF_VECTOR])
        found = hvx("vlutvvb.oracci", found, numbers, half, word(part))
    return found
