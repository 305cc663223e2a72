"""Products of weights of 4 or 8 bits with inputs that were rounded to 8 or 16 bits, by block.

    y = R.call_tir(words, (q, factor, weight, scale, zero))   # attrs: {"kind": "matmul.words"}

    for tile of outputs, tile of rows:
      for block of inputs:
        acc = 0                                  # int32, in registers
        for eight inputs:                        # a word of weights holds those of both halves
          acc += dot(word & 0x0f0f0f0f, q[k .. k + 3])
          acc += dot(word >> 4 & 0x0f0f0f0f, q[k + 4 .. k + 7])
        y += scale * factor * (acc - zero * sum(q of the block))

Sums of a block are exact (`nibble_dots.py`), and the sum that the zero point multiplies is that of
the rounded inputs: with the sum of the inputs, rounding errors of a block would not cancel. Inputs
of 16 bits are two of 8, ``128 high + low``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr

from tvm_stretch.network.steps import UNITS
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.dots import WORD, number
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    block,
    const,
    f32,
    lanes,
    load,
    loop,
    scratch,
    store,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

from .nibble_dots import BlockProducts, ProductNest, Tile, runs, whole_input, word_size
from .nibbles import (
    MINIMA,
    Nibbles,
    Shapes,
    Tensors,
    kinds_of,
    operands_of,
    product_call,
    summed,
)


@dataclass(frozen=True)
class Words(Nibbles):
    """One product with rounded inputs."""

    template: ClassVar[str] = "words"

    def kernel(self) -> tirx.PrimFunc:
        size = word_size(self)
        inputs: Shapes = {
            "q": ((self.rows, self.parts * self.depth), "int8"),
            "factor": ((self.rows, self.blocks), "float32"),
            "weight": ((self.units, self.depth // size, UNITS * WORD), "uint8"),
        }

        def given(tensors: Tensors, row: Expr, part: Expr, k: Expr) -> Expr:
            q = whole_input(self, lambda i: tensors["q"][row, i * self.depth + k].astype("float32"))
            return tensors["factor"][row, part] * q

        def bits(tensors: Tensors, unit: Expr, lane: Expr, k: Expr) -> Expr:
            both = tensors["weight"][unit, k // size, lane * WORD + k % WORD].astype("int32")
            if self.bits == 4:
                both = tirx.if_then_else(k % size < WORD, both & 15, both >> 4)
            return both.astype("float32")

        return summed(self, inputs, given, bits)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        q, factor, weight, scale, *zero, y = fused.func.params
        width = min(machine.plain.lanes, UNITS)
        middle = zero[0] if zero else None
        return _Nest(self, width, machine, q, weight, scale, middle, y, factor).written()


def pack_words(values: np.ndarray, bits: int = 4) -> np.ndarray:
    """Weights of (outputs, inputs), each of so few bits, as the kernel reads them."""
    outputs, depth = values.shape
    padded = np.zeros((-(-outputs // UNITS) * UNITS, depth), "uint8")
    padded[:outputs] = values
    count = depth * bits // (8 * WORD)
    words = padded.reshape(-1, UNITS, count, 8 // bits, WORD)
    packed = words[:, :, :, 0] if bits == 8 else words[:, :, :, 0] | words[:, :, :, 1] << 4
    return packed.transpose(0, 2, 1, 3).reshape(-1, count, UNITS * WORD)


def words_call(
    bb: relax.BlockBuilder,
    q: relax.Expr,  # (rows, parts x inputs) of int8, the high parts of all inputs first
    factor: relax.Expr,  # (rows, blocks of inputs): the scales of q
    values: np.ndarray,  # the weights, (outputs, inputs), of `bits`
    scale: np.ndarray,  # (outputs, blocks of inputs)
    zero: np.ndarray,  # the zero points, in the same shape
    size: int,  # inputs of a block: a multiple of 8 that divides the inputs
    bits: int = 4,
) -> relax.Call:
    """``(factor * q) @ (scale * (values - zero)).T``, by a kernel that is added to ``bb``."""
    (rows, wide), (outputs, depth) = (int(d) for d in q.ty.shape.values), values.shape
    own = Words(rows, depth, outputs, size, *kinds_of(zero, scale), bits, wide // depth)
    weights = operands_of(own, pack_words(values, bits), scale, zero)
    return product_call(bb, own, [q, factor, *weights])


# --- the loop nest --------------------------------------------------------------------------------

_ROWS = 12
"""Most rows of a tile; those of each part count."""

_MANY = 3
"""Tiles of rows from which on weights are unpacked for all of them."""

_VECTORS = 8
"""Vectors of sums of a tile of few rows: enough for the latency of the instruction."""


@dataclass(frozen=True)
class _Nest(ProductNest):
    """Products of integers."""

    factor: tirx.Buffer  # the scales of inputs that were rounded
    unit: Expr | None = None  # the block of outputs, if its weights were unpacked

    sums = "int32"

    @property
    def most(self) -> int:
        """Most rows of a tile."""
        free = self.machine.registers - 8
        return max(1, min(_ROWS, free // (UNITS // self.width)) // self.own.parts)

    def written(self) -> tirx.Stmt:
        """Tiles of outputs, which threads share, and of rows within them."""
        own, vectors = self.own, UNITS // self.width * self.own.parts
        unpacks = own.rows >= _MANY * self.most and own.bits == 4 and bool(self.machine.dot)
        units = 1 if unpacks else max(1, _VECTORS // (min(own.rows, self.most) * vectors))
        sums = scratch("sums", own.rows, own.blocks)
        rows = partial(self.unpacked if unpacks else self.rows, sums)
        return within([sums], self.input_sums(sums), *self.each_unit(units, rows))

    def unpacked(self, sums: tirx.Buffer, unit: Expr, _: int, kept: int) -> tirx.Stmt:
        """All rows of one block of outputs, whose weights become bytes once, in the cache."""
        own, width = self.own, self.width
        weight = scratch("bytes", 1, own.depth // WORD, UNITS * WORD, dtype="uint8")
        scale, least = (scratch(name, 1, own.blocks, UNITS) for name in ("scales", "minima"))
        mask = number(0x0F0F0F0F, width)

        def word(j: Expr) -> tirx.Stmt:
            steps = []
            for first in range(0, UNITS, width):
                lane = tirx.Ramp(const(first * WORD), const(1), WORD * width)
                both = tirx.reinterpret(f"int32x{width}", load(self.weight, unit, j, lane))
                for half, bits in enumerate((both, tirx.shift_right(both, number(4, width)))):
                    bits = tirx.reinterpret(f"uint8x{WORD * width}", tirx.bitwise_and(bits, mask))
                    steps.append(store(weight, bits, 0, own.packed * j + half, lane))
            return block(*steps)

        def constants(index: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                factor = own.scale_of(self.scale, unit, index, v)
                middle = own.zero_of(self.zero, unit, index, v)
                value = own.shifted(factor, f32(0.0), middle)
                return block(store(scale, factor, 0, index, v), store(least, value, 0, index, v))

            return lanes(UNITS, lane)

        floats = replace(own, bits=8, scales="float32", zeros=MINIMA, zero=None)
        nest = replace(self, own=floats, weight=weight, scale=scale, zero=least, unit=unit)
        words = loop(own.depth // word_size(own), word, "word")
        steps = [words, loop(own.blocks, constants, "part"), nest.rows(sums, const(0), 1, kept)]
        return within([weight, scale, least], *steps)

    def rows(self, sums: tirx.Buffer, unit: Expr, units: int, kept: int) -> tirx.Stmt:
        """All rows of some blocks of outputs."""

        def tile(row: Expr, rows: int) -> tirx.Stmt:
            return self.tile(sums, Tile(unit, units, row, rows, kept))

        return block(*runs(self.own.rows, self.most, tile, "rows"))

    def input_sums(self, sums: tirx.Buffer) -> tirx.Stmt:
        """``sums[row, part] = sum of the inputs of the part``."""
        one, total, size = self.own, scratch("total", 1, dtype="int32"), self.own.size

        def part(row: Expr, index: Expr) -> tirx.Stmt:
            def add(k: Expr) -> tirx.Stmt:
                place = index * size + k
                given = whole_input(
                    one, lambda i: load(self.x, row, i * one.depth + place).astype("int32")
                )
                return store(total, load(total, 0) + given, 0)

            begin = store(total, tirx.const(0, "int32"), 0)
            end = store(sums, load(total, 0).astype("float32"), row, index)
            return within([total], begin, loop(size, add, "k"), end)

        kind = PARALLEL if one.rows > 1 and self.machine.threads > 1 else SERIAL
        return loop(one.rows, lambda r: loop(one.blocks, lambda i: part(r, i), "part"), "row", kind)

    def products(self, acc: Accumulators, tile: Tile, part: Expr, inputs: int) -> list[tirx.Stmt]:
        own = self.own
        tensors = self.x, self.weight, own.bits == 4 or self.unit is not None, acc
        places = (lambda p: tile.row + p), (lambda o: self.place(tile, o, const(0)))
        products = BlockProducts(own, self.machine, self.width, *tensors, *places)
        return products.added(part * (own.size // word_size(own)))

    def rescaled(self, value: Expr, row: Expr, part: Expr) -> Expr:
        return load(self.factor, row, part) * value

    def keep(self, value: Expr, row: Expr, unit: Expr, lane: Expr, kept: int) -> tirx.Stmt:
        return super().keep(value, row, unit if self.unit is None else self.unit, lane, kept)
