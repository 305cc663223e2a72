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
compute the rest so too; therefore tables are not fused (`passes/mark_patterns.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import MEANING
from tvm_stretch.network.integers import meaning_of
from tvm_stretch.targets.kernels.fused import blocks_of
from tvm_stretch.targets.kernels.loops import const, loop, unravelled, vectors, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import writes

from .hvx import LANES, VECTOR, bytes_at, dense_axes, hvx, keep, keep_bytes, whole, word

_OF_VECTOR = 4
"""Lookups that cover all bytes of a shuffled vector."""


@dataclass(frozen=True)
class Lookup:
    """``out[i] = table[data[i] - least]``, with equal indices."""

    data: tirx.Buffer
    table: tirx.Buffer
    out: tirx.Buffer


def lookup_of(func: tirx.PrimFunc) -> Lookup | None:
    """The lookup that a kernel consists of; None if it computes anything else, perhaps as well."""
    integer = meaning_of(func)
    if integer is None or integer.kind != "table" or len(func.params) != 3:
        return None
    return Lookup(*func.params) if len(blocks_of(func)) == 1 else None


@writes(MEANING, "dsp")
def table_nest(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.Stmt | None:
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
