"""Products of weights of 4 bits with inputs that were rounded to 8 bits, a scale for each block.

    y = R.call_tir(words, (q, factor, weight, scale, zero))   # attrs: {"kind": "matmul.words"}

    for tile of outputs, tile of rows:
      for block of inputs:
        acc = 0                                  # int32, in registers
        for eight inputs:                        # a word of weights holds those of both halves
          acc += dot(word & 0x0f0f0f0f, q[k .. k + 3])
          acc += dot(word >> 4 & 0x0f0f0f0f, q[k + 4 .. k + 7])
        y += scale * factor * (acc - zero * sum(q of the block))

This is what `accuracy_level=4` of `MatMulNBits` allows. Sums of a block are exact. An instruction
adds four products for each output at once (`dots.py`); AVX2 and AVX-512 without VNNI add two to
int16 sums (``vpmaddubsw``), which cannot saturate: 16 products of at most 15 x 127 are below 2^15.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import WORDS
from tvm_stretch.network.codec import from_text
from tvm_stretch.network.steps import UNITS
from tvm_stretch.targets.kernels.accumulators import Accumulators, Sum
from tvm_stretch.targets.kernels.dots import DOTS, WORD, every, number
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    block,
    const,
    load,
    loop,
    scratch,
    store,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import writes

from .nibbles import (
    KERNELS,
    Nibbles,
    Shapes,
    Tensors,
    added,
    kinds_of,
    operands_of,
    product_call,
    runs,
    scale_of,
    shifted,
    summed,
    zero_of,
)

_HALVES = 2 * WORD
"""Inputs whose weights share a word: the blocks' sizes are multiples."""


def pack_words(values: np.ndarray) -> np.ndarray:
    """Weights of (outputs, inputs), each below 16, as the kernel reads them."""
    outputs, depth = values.shape
    padded = np.zeros((-(-outputs // UNITS) * UNITS, depth), "uint8")
    padded[:outputs] = values
    halves = padded.reshape(-1, UNITS, depth // _HALVES, 2, WORD)
    words = halves[:, :, :, 0] | halves[:, :, :, 1] << 4
    return words.transpose(0, 2, 1, 3).reshape(-1, depth // _HALVES, UNITS * WORD)


def words_call(
    bb: relax.BlockBuilder,
    q: relax.Expr,  # (rows, inputs) of int8
    factor: relax.Expr,  # (rows, blocks of inputs): the scales of q
    values: np.ndarray,  # the weights, (outputs, inputs), each below 16
    scale: np.ndarray,  # (outputs, blocks of inputs)
    zero: np.ndarray,  # the zero points, in the same shape
    size: int,  # inputs of a block: a multiple of 8 that divides the inputs
) -> relax.Call:
    """``(factor * q) @ (scale * (values - zero)).T``, by a kernel that is added to ``bb``."""
    rows, depth = (int(d) for d in q.ty.shape.values)
    own = Nibbles(rows, depth, len(values), size, *kinds_of(zero, scale))
    weights = operands_of(own, pack_words(values), scale, zero)
    return product_call(bb, "matmul.words", own, [q, factor, *weights])


def _kernel(own: Nibbles) -> tirx.PrimFunc:
    inputs: Shapes = {
        "q": ((own.rows, own.depth), "int8"),
        "factor": ((own.rows, own.blocks), "float32"),
        "weight": ((own.units, own.depth // _HALVES, UNITS * WORD), "uint8"),
    }

    def given(tensors: Tensors, row: Expr, part: Expr, k: Expr) -> Expr:
        return tensors["factor"][row, part] * tensors["q"][row, k].astype("float32")

    def bits(tensors: Tensors, unit: Expr, lane: Expr, k: Expr) -> Expr:
        both = tensors["weight"][unit, k // _HALVES, lane * WORD + k % WORD].astype("int32")
        return tirx.if_then_else(k % _HALVES < WORD, both & 15, both >> 4).astype("float32")

    return summed(own, WORDS, inputs, given, bits)


KERNELS["matmul.words"] = _kernel

# --- the loop nest --------------------------------------------------------------------------------

_ROWS = 12
"""Most rows of a tile."""

_VECTORS = 8
"""Vectors of sums of a tile of few rows: enough for the latency of the instruction."""

_PLAIN = 4
"""Lanes that are multiplied at once where no instruction does it."""

_EXACT = 32
"""Inputs whose products int16 sums hold."""


@writes(WORDS, "core", "dsp")
def write_words(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.Stmt:
    """The scheduled body of a PrimFunc of this file."""
    own = from_text(Nibbles, str(func.attrs[WORDS]))
    q, factor, weight, scale, *zero, y = func.params
    width = min(machine.plain.lanes, UNITS)
    middle = zero[0] if zero else None
    return _Nest(own, width, machine, q, factor, weight, scale, middle, y).written()


@dataclass(frozen=True)
class _Nest:
    """The loops; the names of tensors are those of `_kernel`."""

    own: Nibbles
    width: int  # lanes of a vector
    machine: VectorMachine
    q: tirx.Buffer
    factor: tirx.Buffer
    weight: tirx.Buffer
    scale: tirx.Buffer
    zero: tirx.Buffer | None
    y: tirx.Buffer

    def written(self) -> tirx.Stmt:
        """Tiles of outputs, which threads share, and of rows within them."""
        own, each = self.own, UNITS // self.width
        free = self.machine.registers - 8
        most = max(1, min(_ROWS, free // each))
        units = max(1, _VECTORS // (min(own.rows, most) * each))
        whole, rest = divmod(own.outputs, UNITS)
        sums = scratch("sums", own.rows, own.blocks)
        kind = PARALLEL if self.machine.threads > 1 else SERIAL
        parts, first = [self.input_sums(sums)], 0
        for count, width in runs(whole, units):

            def tile(i: Expr, width: int = width, first: int = first) -> tirx.Stmt:
                return self.rows(sums, (first + i * width, width), most, UNITS)

            parts.append(loop(count, tile, "tile", kind))
            first += count * width
        if rest:
            parts.append(self.rows(sums, (const(whole), 1), most, rest))
        return within([sums], parts)

    def rows(self, sums: tirx.Buffer, units: tuple[Expr, int], most: int, kept: int) -> tirx.Stmt:
        """All rows of some blocks of outputs; the last block has ``kept`` of them."""
        parts, start = [], 0
        for repeats, count in runs(self.own.rows, most):

            def run(i: Expr, start: int = start, count: int = count) -> tirx.Stmt:
                return self.tile(sums, units, (start + i * count, count), kept)

            parts.append(loop(repeats, run, "rows"))
            start += repeats * count
        return block(parts)

    def input_sums(self, sums: tirx.Buffer) -> tirx.Stmt:
        """``sums[row, part] = sum of the inputs of the part``."""
        one, total, size = self.own, scratch("total", 1, dtype="int32"), self.own.block

        def part(row: Expr, index: Expr) -> tirx.Stmt:
            def add(k: Expr) -> tirx.Stmt:
                read = load(self.q, row, index * size + k).astype("int32")
                return store(total, load(total, 0) + read, 0)

            begin = store(total, tirx.const(0, "int32"), 0)
            end = store(sums, load(total, 0).astype("float32"), row, index)
            return within([total], [begin, loop(size, add, "k"), end])

        return loop(one.rows, lambda r: loop(one.blocks, lambda i: part(r, i), "part"), "row")

    def tile(
        self,
        sums: tirx.Buffer,
        units: tuple[Expr, int],  # the first block of outputs, and how many
        rows: tuple[Expr, int],  # the first row, and how many
        kept: int,
    ) -> tirx.Stmt:
        """The sums of some blocks of outputs for some rows."""
        own, (start, count), each = self.own, rows, UNITS // self.width
        total = Accumulators(count, units[1] * each, self.width)

        def place(o: Expr, v: Expr) -> tuple[Expr, Expr]:
            return units[0] + o // each, o % each * self.width + v

        def part(number: Expr) -> tirx.Stmt:
            acc = Accumulators(count, units[1] * each, self.width, dtype="int32")

            def scaled(one: Sum, v: Expr) -> Expr:
                unit, lane = place(one.block, v)
                row = start + one.pixel
                middle = zero_of(own, self.zero, unit, number, lane)
                factor = scale_of(own, self.scale, unit, number, lane)
                value = one.value(v).astype("float32")
                value = shifted(own, factor, value, middle, load(sums, row, number))
                return load(self.factor, row, number) * value

            first = number * (own.block // _HALVES)
            steps = self.products(acc, first, lambda p: start + p, lambda o: place(o, const(0)))
            return within(acc.buffers, [*acc.start(), *steps, *added(total, acc, scaled)])

        def keep(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            unit, lane = place(o, v)
            stored = store(self.y, value, start + p, unit * UNITS + lane)
            return stored if kept == UNITS else tirx.IfThenElse(lane < kept, stored, None)

        steps = [*total.start(), loop(own.blocks, part, "part"), *total.each(keep)]
        return within(total.buffers, steps)

    def products(
        self,
        acc: Accumulators,
        first: Expr,  # the first word of the block
        row: Callable[[Expr], Expr],
        place: Callable[[Expr], tuple[Expr, Expr]],  # unit and first lane of a vector
    ) -> list[tirx.Stmt]:
        """Add the products of one block."""
        count = self.own.block // _HALVES
        if self.machine.dot.startswith("vpmaddwd"):
            size = _EXACT // _HALVES
            whole, rest = divmod(count, size)
            some = [loop(whole, lambda i: self.pairs(acc, first + i * size, size, row, place), "i")]
            left = [self.pairs(acc, first + whole * size, rest, row, place)] if rest else []
            return (some if whole else []) + left
        return [loop(count, lambda j: block(self.word(acc, first + j, row, place)), "word")]

    def word(
        self,
        acc: Accumulators,
        word: Expr,
        row: Callable[[Expr], Expr],
        place: Callable[[Expr], tuple[Expr, Expr]],
    ) -> list[tirx.Stmt]:
        """Add the products of one word of weights and eight inputs."""
        dot, width = DOTS[self.machine.dot], self.width
        is_one = bool(dot.intrinsic) and dot.parts == 1 and not dot.words and not dot.is_matrix

        def by_instruction(one: Sum, half: int) -> tirx.Stmt:
            lane = tirx.Ramp(const(0), const(1), width)
            bits = tirx.reinterpret(
                f"{dot.pixel}x{WORD * width}", self.half(one, word, place, half)
            )
            given = tirx.reinterpret(f"int8x{WORD * width}", self.inputs(one, word, row, half))
            return one.set(lane, dot.add(one.value(lane), bits, given, width))

        def plainly(one: Sum, half: int) -> tirx.Stmt:
            steps = []
            for first in range(0, width, _PLAIN):  # OpenCL has vectors of at most 16 bytes
                lane = tirx.Ramp(const(first), const(1), _PLAIN)
                value, words = one.value(lane), self.words(one, word, place, first, _PLAIN)
                for byte in range(WORD):
                    right = number(8 * byte + 4 * half, _PLAIN)
                    bits = tirx.bitwise_and(tirx.shift_right(words, right), number(15, _PLAIN))
                    k = word * _HALVES + half * WORD + byte
                    given = load(self.q, row(one.pixel), k).astype("int32")
                    value = value + bits * every(given, _PLAIN)
                steps.append(one.set(lane, value))
            return block(steps)

        step = by_instruction if is_one else plainly
        return [s for half in (0, 1) for s in acc.sums(partial(step, half=half))]

    def pairs(
        self,
        acc: Accumulators,
        first: Expr,
        count: int,
        row: Callable[[Expr], Expr],
        place: Callable[[Expr], tuple[Expr, Expr]],
    ) -> tirx.Stmt:
        """Add the products of a few words, two at a time in int16."""
        width, kind = self.width, f"int16x{2 * self.width}"
        wide = self.machine.dot.endswith("512")
        multiply = "llvm.x86.avx512.pmaddubs.w.512" if wide else "llvm.x86.avx2.pmadd.ub.sw"

        narrow = acc.like(2 * width, "int16")
        lane, wide_lane = (tirx.Ramp(const(0), const(1), n) for n in (width, 2 * width))
        ones = tirx.Broadcast(tirx.const(1, "int16"), 2 * width)

        def add(one: Sum, word: Expr, half: int) -> tirx.Stmt:
            bits, given = self.half(one, word, place, half), self.inputs(one, word, row, half)
            operands = [
                tirx.reinterpret(f"{name}x{WORD * width}", value)
                for name, value in (("uint8", bits), ("int8", given))
            ]
            product = tirx.call_llvm_pure_intrin(kind, multiply, *operands)
            return one.set(wide_lane, one.value(wide_lane) + product)

        def products(j: Expr) -> tirx.Stmt:
            halves = (partial(add, word=first + j, half=half) for half in (0, 1))
            return block([step for half in halves for step in narrow.sums(half)])

        def total(one: Sum) -> tirx.Stmt:
            dot = DOTS[self.machine.dot]
            other = acc.beside(one, narrow)
            return one.set(lane, dot.add(one.value(lane), other.value(wide_lane), ones, width))

        steps = [*narrow.start(), loop(count, products, "word"), *acc.sums(total)]
        return within(narrow.buffers, steps)

    def half(
        self, one: Sum, word: Expr, place: Callable[[Expr], tuple[Expr, Expr]], half: int
    ) -> Expr:
        """The weights of four inputs for each lane, as words."""
        both = self.words(one, word, place, 0, self.width)
        shifted = tirx.shift_right(both, number(4, self.width)) if half else both
        return tirx.bitwise_and(shifted, number(0x0F0F0F0F, self.width))

    def inputs(self, one: Sum, word: Expr, row: Callable[[Expr], Expr], half: int) -> Expr:
        """Four inputs, the same for each lane, as words."""
        index = tirx.Ramp(word * _HALVES + half * WORD, const(1), WORD)
        return every(tirx.reinterpret("int32", load(self.q, row(one.pixel), index)), self.width)

    def words(
        self,
        one: Sum,
        word: Expr,
        place: Callable[[Expr], tuple[Expr, Expr]],
        first: int,
        count: int,
    ) -> Expr:
        """The weights of eight inputs for ``count`` lanes from ``first`` on."""
        unit, start = place(one.block)
        index = tirx.Ramp((start + first) * WORD, const(1), WORD * count)
        return tirx.reinterpret(f"int32x{count}", load(self.weight, unit, word, index))
