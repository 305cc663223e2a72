"""Means of images, and table lookups, of 8-bit numbers on HVX.

    for four blocks of channels:
      for four pixels: halves of each block += their bytes     # even bytes, and odd bytes
      sums of each block = halves of the same channel, added as words
      out = rounded(sums)                                      # four blocks fill a vector

A half holds the sum of 257 unsigned bytes; signed bytes are taken 128 larger.

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
from typing import ClassVar

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.integers import Integer, meaning_of, rounding_of
from tvm_stretch.targets.hexagon.kernels.hvx import (
    LANES,
    VECTOR,
    bytes_at,
    dense_axes,
    every,
    every_byte,
    high,
    hvx,
    keep,
    keep_bytes,
    low,
    pair,
    whole,
    word,
)
from tvm_stretch.targets.kernels.fixed_point import FixedPoint, mantissas, narrowing_call
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel, blocks_of
from tvm_stretch.targets.kernels.loops import (
    block,
    const,
    lanes,
    load,
    loop,
    span,
    store,
    unravelled,
    vectors,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

_PIXELS = VECTOR // LANES
_TOGETHER = 4
"""Number of channel blocks whose results fill a vector."""

_MOST = 256
"""Number of vectors that are added in halves; one more still fits."""

_BOTH = tirx.Ramp(const(0), const(1), 2 * LANES)
_ONES = 0x01010101


@dataclass(frozen=True)
class HvxInteger(Template, Integer):
    """An integer mean or table; the other integer operators are no templates of their own."""

    template: ClassVar[str] = "integer"
    machines: ClassVar[tuple[str, ...]] = ("dsp",)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt | None:
        return _mean_nest(self, fused.func) or _table_nest(fused.func)


def _mean_nest(integer: Integer, func: tirx.PrimFunc) -> tirx.Stmt | None:
    """The loop nest of an integer mean of pixels in blocks of channels; None for other kernels."""
    mean = _mean_of(integer, func)
    if mean is None:
        return None
    nest = _Mean(*mean)
    images, blocks = (int(extent) for extent in nest.data.shape[:2])
    full, rest = divmod(blocks, _TOGETHER)

    def image(n: Expr) -> tirx.Stmt:
        parts = [span(0, full, lambda g: nest.blocks(n, g * _TOGETHER, _TOGETHER))] if full else []
        left = [nest.blocks(n, const(full * _TOGETHER), rest)] if rest else []
        return block(*parts, *left)

    return loop(images, image, "image")


def _mean_of(integer: Integer, func: tirx.PrimFunc) -> tuple[tirx.Buffer, Epilogue] | None:
    """The input of the mean, and the rounding of its sums."""
    blocks = blocks_of(func)
    if integer.kind != "mean" or len(blocks) != 2 or len(func.params) != 2:
        return None
    sums, rounded = blocks
    data, out = func.params
    axes = tuple(axis.var for axis in rounded.iter_vars)
    total, value = sums.writes[0].source, rounded.body.value
    numbers = mantissas(np.array(integer.factors, "float32"))
    if numbers is not None:
        zeros = integer.zeros[0] * int(data.shape[2]) * int(data.shape[3])
        fixed = FixedPoint(numbers[1], rounding_of(integer))
        value = narrowing_call(load(total, *axes) - word(zeros), word(int(numbers[0][0])), fixed)
    epilogue = Epilogue(total, out, axes, value)
    return (data, epilogue) if _is_image(data) else None


def _is_image(data: tirx.Buffer) -> bool:
    """Whether a buffer holds contiguous blocks of 32 8-bit channels, of four or more pixels."""
    shape = [int(extent) for extent in data.shape]
    is_bytes = str(data.dtype) in ("uint8", "int8")
    if dense_axes(data) < 3:
        return False  # a view of some columns
    return is_bytes and len(shape) == 5 and shape[4] == LANES and shape[2] * shape[3] >= _PIXELS


class _Mean:
    """Writes the sums of some blocks of channels, and their rounding."""

    def __init__(self, data: tirx.Buffer, epilogue: Epilogue) -> None:
        self.data, self.epilogue = data, epilogue
        self.pixels = int(data.shape[2]) * int(data.shape[3])
        self.more = 0 if str(data.dtype) == "uint8" else 128

    def blocks(self, n: Expr, first: Expr, count: int) -> tirx.Stmt:
        """``count`` consecutive blocks of channels."""
        sums = vectors("sum", count, LANES, dtype="int32")
        halves = vectors("halves", count, 2 * LANES, dtype="int32")
        places = [(n, first + k) for k in range(count)]
        steps = [keep(total, every(-self.more * self.pixels)) for total in sums]
        full, rest = divmod(self.pixels, _PIXELS)
        for start in range(0, full, _MOST):
            passes = min(_MOST, full - start)
            steps += [store(both, tirx.Broadcast(word(0), 2 * LANES), _BOTH) for both in halves]

            def some(v: Expr, start: int = start) -> tirx.Stmt:
                at = (v + start) * VECTOR
                return block(
                    *(_add(h, self._bytes(p, at)) for h, p in zip(halves, places, strict=True))
                )

            steps.append(loop(passes, some, "v"))
            if rest and start + passes == full:
                steps += [_add(h, self._last(p, rest)) for h, p in zip(halves, places, strict=True)]
            steps += [
                keep(total, whole(total) + _words(both))
                for total, both in zip(sums, halves, strict=True)
            ]
        steps += [self._rounded(p, total) for p, total in zip(places, sums, strict=True)]
        return within([*sums, *halves], *steps)

    def _bytes(self, place: tuple[Expr, Expr], at: Expr) -> Expr:
        """Four pixels as unsigned bytes."""
        pixels = bytes_at(self.data, *place, 0, 0, at)
        return tirx.bitwise_xor(pixels, every_byte(0x80)) if self.more else pixels

    def _last(self, place: tuple[Expr, Expr], count: int) -> Expr:
        """The last pixels, less than four."""
        pixels = self._bytes(place, const((self.pixels - _PIXELS) * LANES))
        lane = tirx.Ramp(word(0), word(1), LANES)
        return tirx.Select(lane >= every((_PIXELS - count) * LANES // 4), pixels, every(0))

    def _rounded(self, place: tuple[Expr, Expr], total: tirx.Buffer) -> tirx.Stmt:
        return lanes(
            LANES, lambda v: self.epilogue.store((*place, const(0), const(0), v), load(total, v))
        )


def _add(halves: tirx.Buffer, pixels: Expr) -> tirx.Stmt:
    """Add even bytes to the first vector's halves, and odd bytes to the second's."""
    return store(halves, pair("vmpybus.acc", load(halves, _BOTH), pixels, word(_ONES)), _BOTH)


def _words(halves: tirx.Buffer) -> Expr:
    """A sum for each of 32 channels, from four pixels whose channels are 8 words each."""
    even, odd = (part(load(halves, _BOTH)) for part in (low, high))
    first, second = (tirx.bitwise_and(part, every(0xFFFF)) for part in (even, odd))
    third, fourth = (hvx("vlsrw", part, word(16)) for part in (even, odd))
    return _joined(_joined(first, third), _joined(second, fourth))


def _joined(one: Expr, other: Expr) -> Expr:
    """Words of two vectors, interleaved: first halves plus second halves."""
    both = pair("vshuffvdd", other, one, word(-4))
    return low(both) + high(both)


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


def _table_nest(func: tirx.PrimFunc) -> tirx.Stmt | None:
    """The loop nest of a lookup in tensors with contiguous vectors; None for other kernels."""
    lookup = lookup_of(func)
    if lookup is None:
        return None
    shape = [int(extent) for extent in lookup.out.shape]
    dense = min(dense_axes(buffer) for buffer in (lookup.data, lookup.out))
    outer, run = shape[: len(shape) - dense], prod(shape[len(shape) - dense :])
    if run < VECTOR:
        return None
    halves = vectors("table", 2, LANES, dtype="int32")
    order = halves if str(lookup.data.dtype) == "uint8" else halves[::-1]
    shuffled = [
        keep(half, hvx("vshuffb", bytes_at(lookup.table, number * VECTOR)))
        for number, half in enumerate(order)
    ]
    inside = [const(0)] * (dense - 1)

    def row(i: Expr) -> tirx.Stmt:
        def some(v: Expr) -> tirx.Stmt:
            # the last vector ends with the run, so some numbers are looked up twice
            at = tirx.min(v * VECTOR, const(run - VECTOR)) if run % VECTOR else v * VECTOR
            place = (*unravelled(i, outer), *inside, at)
            values = _looked_up(bytes_at(lookup.data, *place), halves)
            return keep_bytes(lookup.out, values, *place)

        return loop(-(-run // VECTOR), some, "v")

    return within(halves, *shuffled, loop(prod(outer), row, "row"))


def _looked_up(numbers: Expr, halves: list[tirx.Buffer]) -> Expr:
    """The results for a vector of bytes."""
    results = hvx("vlutvvbi", numbers, whole(halves[0]), word(0))
    for part in range(1, 2 * _OF_VECTOR):
        half = whole(halves[part // _OF_VECTOR])
        results = hvx("vlutvvb.oracci", results, numbers, half, word(part))
    return results
