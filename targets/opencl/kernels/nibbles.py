"""Products with weights of 4 or 8 bits on a GPU: read once as they are, floats in registers.

for each work-group:                             # 16 outputs, a few rows
  for run of bytes of one block of inputs, one for each item:
    words = 16 bytes at a time                   # a byte of each output
    low, high = scale * (byte & 15 - zero), scale * (byte >> 4 - zero)
    acc += x[2 * byte] * low + x[2 * byte + 1] * high   # for every row
  acc of all items are added in local memory, by halves

Scales are read once for a run. With inputs that were rounded to 8 or 16 bits, an item reads
the four bytes of a word of one output.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.steps import UNITS
from tvm_stretch.targets.cpu.kernels.nibble_dots import whole_input, word_size
from tvm_stretch.targets.cpu.kernels.nibble_words import Words
from tvm_stretch.targets.cpu.kernels.nibbles import Nibbles
from tvm_stretch.targets.kernels.dots import WORD, number
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.loops import (
    as_type,
    block,
    const,
    f32,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

from .groups import QUAD, barrier, element, launch, load_quad, load_words, quads, splat, when
from .machine import GpuMachine

_ROWS = 4
"""Most rows of a group."""

_ITEMS = 128
"""Work-items of a group that the device allows: enough to hide the memory's latency."""

_RUN = 4
"""Most times that an item reads 16 bytes for one scale of each output."""


class GroupNibbles(Nibbles):
    """A product of `cpu/kernels/nibbles.py` on a GPU."""

    template: ClassVar[str] = "group_nibbles"

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        x, weight, scale, *zero, y = fused.func.params
        assert machine.gpu is not None
        return _Bytes(self, machine.gpu, x, weight, scale, zero[0] if zero else None, y).written()


class GroupWords(Words):
    """A product of `cpu/kernels/nibble_words.py` on a GPU."""

    template: ClassVar[str] = "group_words"

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        q, factor, weight, scale, *zero, y = fused.func.params
        assert machine.gpu is not None
        rest = (q, weight, scale, zero[0] if zero else None, y)
        return _Words(self, machine.gpu, *rest, factor).written()


@dataclass(frozen=True)
class _Nest:
    """The loops; the names of tensors are those of `nibbles.py` and `nibble_words.py`."""

    own: Nibbles
    gpu: GpuMachine
    x: tirx.Buffer
    weight: tirx.Buffer
    scale: tirx.Buffer
    zero: tirx.Buffer | None
    y: tirx.Buffer

    across: ClassVar[int]  # items of a line, which compute different outputs
    sums: ClassVar[int]  # quads of sums that an item has of each row

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps to all inputs, which the lines share."""

    @abstractmethod
    def step(self, acc: tirx.Buffer, place: tuple[Expr, Expr, Expr], step: Expr) -> tirx.Stmt:
        """Add the products of a step; ``place``: block of outputs, column of items, first row."""

    @abstractmethod
    def outputs(self, sums: list[Expr]) -> list[tuple[int, Expr]]:
        """The outputs of an item of which ``sums`` are the quads: place, counted from its first."""

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return min(self.own.rows, _ROWS)

    @cached_property
    def lines(self) -> int:
        """Lines of items, a power of two; they share local memory."""
        most = min(_ITEMS, self.gpu.max_group_items) // self.across
        row_bytes = 4 * QUAD * self.sums * self.across
        most = min(most, self.gpu.local_bytes // (row_bytes * self.rows), self.steps)
        return 1 << (max(1, most).bit_length() - 1)

    def row(self, first: Expr, number: int) -> Expr:
        """A row of a group, which may not exist in the last one."""
        return tirx.min(first + number, const(self.own.rows - 1))

    def written(self) -> tirx.Stmt:
        """A group for each block of outputs and tile of rows."""
        tiles = -(-self.own.rows // self.rows)
        every = [(r, i) for r in range(self.rows) for i in range(self.sums)]
        acc = quads("acc", self.rows, self.sums)
        parts = quads("parts", self.rows, self.sums, self.lines, self.across, scope="shared")

        def body(group: Expr, item: Expr) -> tirx.Stmt:
            unit, tile = unravelled(group, (self.own.units, tiles))
            line, column = unravelled(item, (self.lines, self.across))
            place = unit, column, tile * self.rows
            turns, rest = divmod(self.steps, self.lines)
            stmts = [store(acc, splat(f32(0.0)), *at) for at in every]
            stmts.append(
                loop(turns, lambda turn: self.step(acc, place, line + turn * self.lines), "turn")
            )
            if rest:
                stmts.append(when(line < rest, self.step(acc, place, line + turns * self.lines)))
            stmts += [store(parts, load(acc, *at), *at, line, column) for at in every]
            stmts.append(barrier())
            half = self.lines // 2
            while half:
                added = [
                    load(parts, *at, line, column) + load(parts, *at, line + half, column)
                    for at in every
                ]
                stored = [
                    store(parts, value, *at, line, column)
                    for at, value in zip(every, added, strict=True)
                ]
                stmts += [when(line < half, block(*stored)), barrier()]
                half //= 2
            stmts.append(when(line < 1, block(*self.results(parts, place))))
            return within([acc, parts], *stmts)

        return launch(self.own.units * tiles, self.lines * self.across, body)

    def results(self, parts: tirx.Buffer, place: tuple[Expr, Expr, Expr]) -> list[tirx.Stmt]:
        """Store the sums of one item of the first line."""
        unit, column, first = place
        results = []
        for r in range(self.rows):
            sums = [load(parts, r, i, 0, column) for i in range(self.sums)]
            for i, value in self.outputs(sums):
                output = unit * UNITS + column * (UNITS // self.across) + i
                exists = tirx.all(first + r < self.own.rows, output < self.own.outputs)
                results.append(when(exists, store(self.y, value, first + r, output)))
        return results


@dataclass(frozen=True)
class _Bytes(_Nest):
    """An item computes all outputs of a block; quad ``i`` of them are outputs i, 4 + i, 8 + i .."""

    across, sums = 1, UNITS // QUAD

    @cached_property
    def run(self) -> int:
        """Bytes of each output that an item reads at once; one scale is theirs."""
        packed = self.own.packed
        return gcd(self.own.size // packed, self.own.depth // packed, _RUN)

    @property
    def steps(self) -> int:
        return self.own.depth // self.own.packed // self.run

    def step(self, acc: tirx.Buffer, place: tuple[Expr, Expr, Expr], step: Expr) -> tirx.Stmt:
        unit, _, first = place
        begin = step * self.run
        part = begin // (self.own.size // self.own.packed)
        words = quads("words", self.run, dtype="int32")
        scales, middles = quads("scales", self.sums), quads("middles", self.sums)
        quad = [tirx.Ramp(const(i * QUAD), const(1), QUAD) for i in range(self.sums)]
        stmts = [
            store(words, load_words(self.weight, unit, begin + j, 0), j) for j in range(self.run)
        ]
        stmts.append(
            _every_fourth(scales, [self.own.scale_of(self.scale, unit, part, q) for q in quad])
        )
        if self.zero is not None:
            zeros = [self.own.zero_of(self.zero, unit, part, q) for q in quad]
            stmts.append(_every_fourth(middles, zeros))
        for j in range(self.run):
            bits = load(words, j)
            stmts.append(
                self.byte(acc, bits, scales, middles, (first, (begin + j) * self.own.packed))
            )
        buffers = [words, scales, *([] if self.zero is None else [middles])]
        return within(buffers, *stmts)

    def byte(
        self,
        acc: tirx.Buffer,
        bits: Expr,  # a byte of each output
        scales: tirx.Buffer,
        middles: tirx.Buffer,  # the zero points, unless they are one
        place: tuple[Expr, Expr],  # the first row and the first of both inputs
    ) -> tirx.Stmt:
        """Add the products of the inputs of a byte with all outputs."""
        first, column = place
        count, mask = self.own.packed, (1 << self.own.bits) - 1
        inputs = scratch("inputs", count, self.rows, scope="local")
        each = quads("weights", count)
        stmts = [
            store(inputs, load(self.x, self.row(first, r), column + which), which, r)
            for which in range(count)
            for r in range(self.rows)
        ]
        for i in range(self.sums):
            middle = self.middle if self.zero is None else load(middles, i)
            for which in range(count):
                value = tirx.shift_right(bits, number(8 * i + 4 * which, QUAD))
                value = as_type(tirx.bitwise_and(value, number(mask, QUAD)), "float32")
                value = self.own.shifted(load(scales, i), value, middle)
                stmts.append(store(each, value, which))
            for r in range(self.rows):
                more = [splat(load(inputs, w, r)) * load(each, w) for w in range(count)]
                stmts.append(store(acc, load(acc, r, i) + sum(more[1:], more[0]), r, i))
        return within([inputs, each], *stmts)

    @property
    def middle(self) -> Expr:
        """The zero point of all weights."""
        return splat(self.own.zero_of(None))

    def outputs(self, sums: list[Expr]) -> list[tuple[int, Expr]]:
        places = [(i, lane) for i in range(self.sums) for lane in range(QUAD)]
        return [(lane * QUAD + i, element(sums[i], lane)) for i, lane in places]


def _every_fourth(target: tirx.Buffer, neighbours: list[Expr]) -> tirx.Stmt:
    """Quads of every fourth number, from quads of neighbours."""
    near = quads("near", QUAD)
    kept = [store(near, value, i) for i, value in enumerate(neighbours)]
    loaded = [load(near, i) for i in range(QUAD)]
    picked = [[i + QUAD * lane for lane in range(QUAD)] for i in range(QUAD)]
    turned = [store(target, tirx.Shuffle(loaded, lanes), i) for i, lanes in enumerate(picked)]
    return within([near], *kept, *turned)


@dataclass(frozen=True)
class _Words(_Nest):
    """An item computes one output, as sums of the products of each byte of its words."""

    factor: tirx.Buffer  # the scales of inputs that were rounded

    across, sums = UNITS, 1

    @property
    def steps(self) -> int:
        return self.own.depth // word_size(self.own)

    def step(self, acc: tirx.Buffer, place: tuple[Expr, Expr, Expr], step: Expr) -> tirx.Stmt:
        unit, column, first = place
        own = self.own
        part = step // (own.size // word_size(own))
        weights = quads("weights", own.packed)
        bits = as_type(load_quad(self.weight, unit, step, column * QUAD), "int32")
        digits = [bits]
        if own.bits == 4:
            right = tirx.shift_right(bits, number(4, QUAD))
            digits = [tirx.bitwise_and(bits, number(15, QUAD)), right]
        scale = splat(own.scale_of(self.scale, unit, part, column))
        middle = splat(own.zero_of(self.zero, unit, part, column))
        stmts = [
            store(weights, own.shifted(scale, as_type(value, "float32"), middle), i)
            for i, value in enumerate(digits)
        ]
        for r in range(self.rows):
            row = self.row(first, r)
            factor = splat(load(self.factor, row, part))
            more = [
                self.inputs(row, step * word_size(own) + i * WORD) * factor * load(weights, i)
                for i in range(own.packed)
            ]
            stmts.append(store(acc, load(acc, r, 0) + sum(more[1:], more[0]), r, 0))
        return within([weights], *stmts)

    def inputs(self, row: Expr, k: Expr) -> Expr:
        """Four rounded inputs as floats."""

        def part(number: int) -> Expr:
            return as_type(load_quad(self.x, row, k + number * self.own.depth), "float32")

        return whole_input(self.own, part)

    def outputs(self, sums: list[Expr]) -> list[tuple[int, Expr]]:
        a, b, c, d = (element(sums[0], lane) for lane in range(QUAD))
        return [(0, a + b + c + d)]
