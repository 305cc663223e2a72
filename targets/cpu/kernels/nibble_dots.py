"""Loop nests of products with weights in blocks: tiles, and integer products of a block.

    for eight inputs:                            # a word holds those of both halves
      acc += dot(word & 0x0f0f0f0f, q[k .. k + 3])
      acc += dot(word >> 4 & 0x0f0f0f0f, q[k + 4 .. k + 7])

An instruction adds four products for each output at once (`dots.py`). AVX2 and AVX-512 without VNNI
add two to int16 sums (``vpmaddubsw``), which cannot saturate if a weight has 4 bits: 16 products of
at most 15 x 127 are below 2^15. Weights of 8 bits are ``16 high + low`` there and where bytes would
be signed. Inputs of 16 bits are ``128 high + low``, and both parts use a weight that was unpacked
once. Digits have sums of their own, which are added to those of the block by what they are worth.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.steps import UNITS
from tvm_stretch.targets.kernels.accumulators import Accumulators, Sum
from tvm_stretch.targets.kernels.dots import DOTS, WORD, Dot, every, number
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    as_type,
    balanced,
    block,
    const,
    fenced_span,
    lanes,
    load,
    loop,
    span,
    store,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

if TYPE_CHECKING:
    from .nibbles import Nibbles


class Tile(NamedTuple):
    """Outputs that are computed together."""

    unit: Expr  # the first block of outputs
    units: int
    row: Expr | int  # the first row
    rows: int
    kept: int  # outputs of the last block that there are


@dataclass(frozen=True)
class ProductNest(ABC):
    """The loops over outputs and rows; the names of tensors are those of the kernels."""

    own: Nibbles
    width: int  # lanes of a vector
    machine: VectorMachine
    x: tirx.Buffer
    weight: tirx.Buffer
    scale: tirx.Buffer
    zero: tirx.Buffer | None
    y: tirx.Buffer

    sums: ClassVar[str]  # the type of the sums of a block of inputs

    @abstractmethod
    def products(self, acc: Accumulators, tile: Tile, part: Expr, inputs: int) -> list[tirx.Stmt]:
        """Add the products of some inputs of a block to the sums of a tile."""

    def rescaled(self, value: Expr, row: Expr, part: Expr) -> Expr:
        """The sum of a block of inputs of a row, in the scale of the result."""
        return value

    def each_unit(self, most: int, body: Callable[[Expr, int, int], tirx.Stmt]) -> list[tirx.Stmt]:
        """Up to ``most`` blocks of outputs at a time, which threads share.

        ``body`` gets the first block, how many there are, and how many outputs the last one has.
        """
        whole, rest = divmod(self.own.outputs, UNITS)
        kind = PARALLEL if self.machine.threads > 1 else SERIAL
        parts = runs(whole, most, lambda unit, count: body(unit, count, UNITS), "tile", kind)
        return [*parts, body(const(whole), 1, rest)] if rest else parts

    def tile(self, sums: tirx.Buffer, tile: Tile) -> tirx.Stmt:
        """The outputs of a tile; ``sums`` are those of the inputs of each row and block."""
        own, shape = self.own, (tile.rows, tile.units * (UNITS // self.width), self.width)
        total = Accumulators(*shape)

        def part(number: Expr, inputs: int) -> tirx.Stmt:
            acc = Accumulators(*shape, dtype=self.sums)

            def scaled(one: Sum, v: Expr) -> Expr:
                unit, lane = self.place(tile, one.block, v)
                row = tile.row + one.pixel
                middle = own.zero_of(self.zero, unit, number, lane)
                factor = own.scale_of(self.scale, unit, number, lane)
                value = as_type(one.value(v), "float32")
                value = own.shifted(factor, value, middle, load(sums, row, number))
                return self.rescaled(value, row, number)

            steps = self.products(acc, tile, number, inputs)
            return within(acc.buffers, *acc.start(), *steps, *_added(total, acc, scaled))

        def keep(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            return self.keep(value, tile.row + p, *self.place(tile, o, v), tile.kept)

        whole, rest = divmod(own.depth, own.size)
        parts = [loop(whole, lambda i: part(i, own.size), "part")] if whole else []
        parts += [part(const(whole), rest)] if rest else []
        return within(total.buffers, *total.start(), *parts, *total.for_each(keep))

    def place(self, tile: Tile, o: Expr, v: Expr) -> tuple[Expr, Expr]:
        """The block of outputs, and the output in it, of a lane of a tile's vector."""
        each = UNITS // self.width
        return tile.unit + o // each, o % each * self.width + v

    def keep(self, value: Expr, row: Expr, unit: Expr, lane: Expr, kept: int) -> tirx.Stmt:
        """Store one output, unless it is one of those that fill the last block."""
        stored = store(self.y, value, row, unit * UNITS + lane)
        return stored if kept == UNITS else tirx.IfThenElse(lane < kept, stored, None)


def runs(
    total: int,
    most: int,
    body: Callable[[Expr, int], tirx.Stmt],
    name: str,
    kind: int = SERIAL,
) -> list[tirx.Stmt]:
    """``body(first, count)`` for all units, at most ``most`` at a time: equal ones in a loop."""
    parts, first = [], 0
    for count, run in itertools.groupby(balanced(total, most) if total else []):
        repeats = len(list(run))

        def tile(i: Expr, first: int = first, count: int = count) -> tirx.Stmt:
            return body(first + i * count, count)

        parts.append(loop(repeats, tile, name, kind))
        first += repeats * count
    return parts


def _added(
    total: Accumulators, acc: Accumulators, value: Callable[[Sum, Expr], Expr]
) -> list[tirx.Stmt]:
    """Add a function of each sum of one tile to the same sum of another tile of its shape."""

    def add(one: Sum) -> tirx.Stmt:
        other = acc.beside(one, total)
        return lanes(acc.count, lambda v: other.set(v, other.value(v) + value(one, v)))

    return acc.sums(add)


# --- integer products of a block of inputs --------------------------------------------------------

PART = 128
"""What the high part of an input of 16 bits is worth; a part is at most 127."""

_PLAIN = 4
"""Lanes that are multiplied at once where no instruction does it."""

_EXACT = 32
"""Inputs whose products int16 sums hold."""


def word_size(own: Nibbles) -> int:
    """Inputs whose weights share a word; blocks have a multiple of them."""
    return WORD * own.packed


def whole_input(own: Nibbles, part: Callable[[int], Expr]) -> Expr:
    """An input of its parts, the high one first."""
    first = part(0)
    return first if own.parts == 1 else first * tirx.const(PART, first.ty.dtype) + part(1)


@dataclass(frozen=True)
class _Digit:
    """Four bits or a byte of each weight of a word."""

    right: int  # how far to shift the word
    first: int  # the input of the first weight, counted from that of the word
    bits: int = 4


Pass = tuple[int, list[_Digit]]
"""Digits that share sums, and what they are worth."""


@dataclass(frozen=True)
class BlockProducts:
    """Adds products to the sums of a tile; the names of tensors are those of `nibble_words.py`."""

    own: Nibbles
    machine: VectorMachine
    width: int  # lanes of a vector
    q: tirx.Buffer
    weight: tirx.Buffer
    is_small: bool  # whether weights are below 16
    acc: Accumulators
    row: Callable[[Expr], Expr]
    place: Callable[[Expr], tuple[Expr, Expr]]  # unit and first lane of a vector

    @property
    def dot(self) -> Dot:
        """How the machine adds products."""
        return DOTS[self.machine.dot]

    @property
    def is_narrow(self) -> bool:
        """Whether products are added to int16 sums."""
        return self.machine.dot.startswith("vpmaddwd")

    def added(self, first: Expr) -> list[tirx.Stmt]:
        """Add the products of the words from ``first`` on."""
        dot, count = self.dot, self.own.size // word_size(self.own)
        adds_words = dot.intrinsic and dot.parts == 1 and not dot.words and not dot.is_matrix
        if not adds_words and not self.is_narrow:
            return [loop(count, lambda j: self.plainly(first + j), "word")]
        return [step for one in self.passes() for step in self.one_pass(first, count, *one)]

    def passes(self) -> list[Pass]:
        """The digits of the weights."""
        if self.is_small or (not self.is_narrow and self.dot.pixel == "uint8"):
            return [(1, self.digits())]
        return [(1, [_Digit(0, 0)]), (16, [_Digit(4, 0)])]

    def digits(self) -> list[_Digit]:
        """The weights of a word, as they are."""
        both = [_Digit(0, 0), _Digit(4, WORD)]
        return both if self.own.bits == 4 else [_Digit(0, 0, 8)]

    def one_pass(
        self, first: Expr, count: int, worth: int, digits: list[_Digit]
    ) -> list[tirx.Stmt]:
        """Add the products of some digits."""
        if self.own.parts == worth == 1 and not self.is_narrow:
            return [loop(count, lambda j: block(*self.word([self.acc], first + j, digits)), "word")]
        size = _EXACT // word_size(self.own) if self.is_narrow else count
        whole, rest = divmod(count, size)

        def few_words(start: Expr, words: int) -> tirx.Stmt:
            return self.apart(start, words, worth, digits)

        steps = [loop(whole, lambda i: few_words(first + i * size, size), "i")] if whole else []
        return steps + ([few_words(first + whole * size, rest)] if rest else [])

    def apart(self, first: Expr, count: int, worth: int, digits: list[_Digit]) -> tirx.Stmt:
        """Add the products of a few words to sums of each part, and these to those of the block."""
        lanes, kind = (2 * self.width, "int16") if self.is_narrow else (self.width, "int32")
        sums = [self.acc.like(lanes, kind) for _ in range(self.own.parts)]
        steps = [step for one in sums for step in one.start()]
        # LLVM would unroll the loop, add products of several words first, and spill weights
        repeated = fenced_span if self.is_narrow else span
        steps.append(
            repeated(0, count, lambda j: block(*self.word(sums, first + j, digits)), "word")
        )
        for left, one in enumerate(reversed(sums)):
            steps += self.acc.sums(partial(self.joined, part=one, worth=worth * PART**left))
        return within([buffer for one in sums for buffer in one.buffers], *steps)

    def joined(self, one: Sum, part: Accumulators, worth: int) -> tirx.Stmt:
        """Add the sum of a part to that of the block."""
        other, lane = self.acc.beside(one, part), tirx.Ramp(const(0), const(1), self.width)
        if not self.is_narrow:
            value = other.value(lane) * number(worth, self.width)
            return one.set(lane, one.value(lane) + value)
        pairs = other.value(tirx.Ramp(const(0), const(1), 2 * self.width))
        factor = tirx.Broadcast(tirx.const(worth, "int16"), 2 * self.width)
        return one.set(lane, self.dot.add(one.value(lane), pairs, factor, self.width))

    def word(
        self, sums: Sequence[Accumulators], word: Expr, digits: list[_Digit]
    ) -> list[tirx.Stmt]:
        """Add the products of one word and each part of its inputs."""
        return [
            step
            for digit in digits
            for part, acc in enumerate(sums)
            for step in acc.sums(partial(self.product, word=word, digit=digit, part=part))
        ]

    def product(self, one: Sum, word: Expr, digit: _Digit, part: int) -> tirx.Stmt:
        """Add four products for each lane."""
        bits = self.words(one, word, 0, self.width)
        if digit.right:
            bits = tirx.shift_right(bits, number(digit.right, self.width))
        if digit.bits == 4:
            bits = tirx.bitwise_and(bits, number(0x0F0F0F0F, self.width))
        k = part * self.own.depth + word * word_size(self.own) + digit.first
        inputs = load(self.q, self.row(one.pixel), tirx.Ramp(k, const(1), WORD))
        repeated = every(tirx.reinterpret("int32", inputs), self.width)
        kinds = ("uint8", "int8") if self.is_narrow else (self.dot.pixel, "int8")
        left, right = (
            tirx.reinterpret(f"{kind}x{WORD * self.width}", value)
            for kind, value in zip(kinds, (bits, repeated), strict=True)
        )
        if not self.is_narrow:
            lane = tirx.Ramp(const(0), const(1), self.width)
            return one.set(lane, self.dot.add(one.value(lane), left, right, self.width))
        lane, kind = tirx.Ramp(const(0), const(1), 2 * self.width), f"int16x{2 * self.width}"
        wide = self.machine.dot.endswith("512")
        multiply = "llvm.x86.avx512.pmaddubs.w.512" if wide else "llvm.x86.avx2.pmadd.ub.sw"
        pairs = tirx.call_llvm_pure_intrin(kind, multiply, left, right)
        return one.set(lane, one.value(lane) + pairs)

    def plainly(self, word: Expr) -> tirx.Stmt:
        """Add the products of one word in plain arithmetic."""

        def product(one: Sum, digit: _Digit) -> tirx.Stmt:
            steps = []
            for first in range(0, self.width, _PLAIN):  # OpenCL has vectors of at most 16 bytes
                lane = tirx.Ramp(const(first), const(1), _PLAIN)
                value, words = one.value(lane), self.words(one, word, first, _PLAIN)
                for byte in range(WORD):
                    right = number(8 * byte + digit.right, _PLAIN)
                    mask = number((1 << digit.bits) - 1, _PLAIN)
                    bits = tirx.bitwise_and(tirx.shift_right(words, right), mask)
                    k = word * word_size(self.own) + digit.first + byte
                    value = value + bits * every(self.input(self.row(one.pixel), k), _PLAIN)
                steps.append(one.set(lane, value))
            return block(*steps)

        each = (partial(product, digit=digit) for digit in self.digits())
        return block(*(step for one in each for step in self.acc.sums(one)))

    def input(self, row: Expr, k: Expr) -> Expr:
        """One input as int32."""
        depth = self.own.depth
        return whole_input(
            self.own, lambda part: load(self.q, row, part * depth + k).astype("int32")
        )

    def words(self, one: Sum, word: Expr, first: int, count: int) -> Expr:
        """The weights of a word for ``count`` lanes from ``first`` on."""
        unit, start = self.place(one.block)
        index = tirx.Ramp((start + first) * WORD, const(1), WORD * count)
        return tirx.reinterpret(f"int32x{count}", load(self.weight, unit, word, index))
