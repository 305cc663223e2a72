"""Products with weights of 4 or 8 bits in blocks: the kernel makes floats of them in registers.

    y = R.call_tir(nibbles, (x, weight, scale, zero))       # attrs: {"kind": "matmul.nibbles"}

    for tile of outputs, tile of rows:
      for block of inputs:                       # 32 or 128 inputs that share a scale per output
        acc = 0                                  # vectors of outputs, in registers
        for pair of inputs:                      # a byte holds both weights of an output
          acc += x[k] * float(byte & 15);  acc += x[k + 1] * float(byte >> 4)
        y += scale * (acc - zero * sum(x of the block))

A decoder reads each weight once for each token, so its time is that of reading the weights: 4 bits
are an eighth of float32. With many rows, products take the time, so the weights of one block of
outputs become floats once, in the cache, and all rows are multiplied with them. Zero points are
bytes, or a constant of the kernel if all weights have the same one. Zero points of llama.cpp's
blocks are minima, ``scale * value + minimum``, in float16. Weights lie as the kernel reads them, in
blocks of `UNITS` outputs, padded with zeros.

The PrimFunc consists of plain loops, which stock TVM can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.operators import operands
from tvm_stretch.network.steps import UNITS, steps_call
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.halves import HALVES, are_halves, float_of, half_bits
from tvm_stretch.targets.kernels.loops import (
    as_type,
    block,
    const,
    lanes,
    load,
    loop,
    scratch,
    store,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, read_template

from .nibble_dots import ProductNest, Tile, runs

MINIMA = "minima"
"""Says that zero points are minima of float32."""


@dataclass(frozen=True)
class Nibbles(Template):
    """One product: its rows, inputs and outputs, and how many inputs share a scale."""

    template: ClassVar[str] = "nibbles"
    takes_epilogue: ClassVar[bool] = False

    rows: int
    depth: int  # even for 4 bits
    outputs: int
    size: int
    zero: int | None = None  # the zero point of all weights; None if the kernel reads them
    zeros: str = "uint8"  # otherwise their type; `HALVES` and `MINIMA` are minima
    scales: str = "float32"  # their type; `HALVES` if that is exact
    bits: int = 4
    parts: int = 1  # of 8 bits that a rounded input has (`nibble_words.py`)

    @property
    def packed(self) -> int:
        """Weights of a byte."""
        return 8 // self.bits

    @property
    def blocks(self) -> int:
        """Blocks of inputs; the last one may be shorter."""
        return -(-self.depth // self.size)

    @property
    def units(self) -> int:
        """Blocks of outputs."""
        return -(-self.outputs // UNITS)

    def zero_of(self, zero: tirx.Buffer | None, *place: Expr) -> Expr:
        """The zero point or minimum of one output's block, or of several, as floats."""
        if zero is None:
            return tirx.const(self.zero, "float32")
        value = load(zero, *place)
        return float_of(value) if self.zeros == HALVES else as_type(value, "float32")

    def scale_of(self, scale: tirx.Buffer, *place: Expr) -> Expr:
        """The scale of one output's block, or of several, as floats."""
        value = load(scale, *place)
        return float_of(value) if self.scales == HALVES else value

    def shifted(
        self,
        factor: Expr,
        value: Expr,  # a weight's bits, or a sum of products with them
        middle: Expr,
        inputs: Expr | None = None,  # their sum, for a sum of products
    ) -> Expr:
        """A weight, or products with weights, by their scale and what `zero_of` gives."""
        middle = middle if inputs is None else middle * inputs
        is_least = self.zeros in (HALVES, MINIMA)
        return factor * value + middle if is_least else factor * (value - middle)

    def number_of(self, byte: Expr, which: int) -> Expr:
        """One of the weights of a byte, or of several, as floats."""
        word = byte.astype("int32")
        if self.bits == 4:
            word = word >> 4 if which else word & 15
        return word.astype("float32")

    def kernel(self) -> tirx.PrimFunc:
        """The product in plain loops."""
        inputs: Shapes = {
            "x": ((self.rows, self.depth), "float32"),
            "weight": ((self.units, self.depth // self.packed, UNITS), "uint8"),
        }

        def bits(tensors: Tensors, unit: Expr, lane: Expr, k: Expr) -> Expr:
            pair = tensors["weight"][unit, k // self.packed, lane].astype("int32")
            if self.bits == 8:
                return pair.astype("float32")
            return tirx.if_then_else(k % 2 == 0, pair & 15, pair >> 4).astype("float32")

        return summed(self, inputs, lambda tensors, row, _, k: tensors["x"][row, k], bits)

    def on(self, machine: VectorMachine) -> Template | None:
        if machine.kind != "gpu":
            return self
        return read_template(f"group_{self.template} {to_text(self)}")

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        x, weight, scale, *zero, y = fused.func.params
        width = min(machine.plain.lanes, UNITS)
        return _Nest(self, width, machine, x, weight, scale, zero[0] if zero else None, y).written()


def pack(values: np.ndarray, bits: int = 4) -> np.ndarray:
    """Weights of (outputs, inputs), each of so few bits, as the kernel reads them."""
    outputs, depth = values.shape
    padded = np.zeros((-(-outputs // UNITS) * UNITS, depth), "uint8")
    padded[:outputs] = values
    packed = padded[:, 0::2] | padded[:, 1::2] << 4 if bits == 4 else padded
    return packed.reshape(-1, UNITS, depth * bits // 8).transpose(0, 2, 1)


def by_unit(values: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Scales or zero points of (outputs, blocks of inputs) as the kernel reads them."""
    outputs, blocks = values.shape
    padded = np.zeros((-(-outputs // UNITS) * UNITS, blocks), dtype)
    padded[:outputs] = values
    return padded.reshape(-1, UNITS, blocks).transpose(0, 2, 1)


def nibbles_call(
    bb: relax.BlockBuilder,
    x: relax.Expr,  # (rows, inputs) of float32
    values: np.ndarray,  # the weights, (outputs, inputs), of `bits`
    scale: np.ndarray,  # (outputs, blocks of inputs)
    zero: np.ndarray,  # the zero points, in the same shape
    size: int,  # inputs of a block
    bits: int = 4,
) -> relax.Call:
    """``x @ (scale * (values - zero)).T``, by a kernel that is added to ``bb``."""
    rows, depth = (int(d) for d in x.ty.shape.values)
    own = Nibbles(rows, depth, len(values), size, *kinds_of(zero, scale), bits)
    weights = operands_of(own, pack(values, bits), scale, zero)
    return product_call(bb, own, [x, *weights])


def product_call(bb: relax.BlockBuilder, own: Nibbles, given: Sequence[relax.Expr]) -> relax.Call:
    """The call of a product, which knows its `Nibbles`."""
    result = relax.TensorType((own.rows, own.outputs), "float32")
    return steps_call(bb, f"matmul.{own.template}", own.kernel(), given, result, **own.annotation)


def product_like(
    bb: relax.BlockBuilder,
    call: relax.Call,
    data: Sequence[relax.Expr],  # what takes the place of the operands that are no weights
    outputs: slice = slice(None),  # beginning at a multiple of `UNITS`
) -> relax.Call:
    """A product with the same weights, of other rows or for some of its outputs."""
    own = read_template(str(call.attrs[ANNOTATION]))
    assert isinstance(own, Nibbles)
    begin, end, _ = outputs.indices(own.outputs)
    units = slice(begin // UNITS, -(-end // UNITS))
    weights = [one for one in operands(call) if isinstance(one, GenericConst)]
    if (begin, end) != (0, own.outputs):
        weights = [constant(one.value.numpy()[units]) for one in weights]
    own = replace(own, rows=shape_of(data[0])[0], outputs=end - begin)
    return product_call(bb, own, [*data, *weights])


def kinds_of(zero: np.ndarray, scale: np.ndarray) -> tuple[int | None, str, str]:
    """The zero point of all weights, or None; the types that hold zero points and scales."""
    whole = bool((zero == np.clip(np.round(zero), 0, 255)).all())
    is_one = whole and zero.size > 0 and bool((zero == zero.flat[0]).all())
    scales = HALVES if are_halves(scale) else "float32"
    kind = "uint8" if whole else HALVES if _minima(scale, zero) is not None else "float32"
    return (int(zero.flat[0]) if is_one else None), kind, scales


def _minima(scale: np.ndarray, zero: np.ndarray) -> np.ndarray | None:
    """The summands of ``scale * value``, if float16 has it but for the rounding of zero points."""
    wanted = -scale * zero
    with np.errstate(over="ignore"):
        near = wanted.astype("float16").astype("float32")
    is_near = bool((np.abs(near - wanted) <= np.abs(wanted) * _ROUNDING).all())
    return near if is_near and are_halves(near) else None


_ROUNDING = 2.0**-22
"""The error of a quotient and a product of float32."""


def long(*values: int) -> list[Expr]:
    """Sizes of tensors, of 64 bits."""
    return [tirx.const(value, "int64") for value in values]


def operands_of(
    own: Nibbles, packed: np.ndarray, scale: np.ndarray, zero: np.ndarray
) -> list[relax.Expr]:
    """The constants that a kernel reads: weights, scales, and zero points if they differ."""
    scales = half_bits(scale) if own.scales == HALVES else scale
    arrays = [packed, by_unit(scales, own.scales)]
    if own.zeros == HALVES:
        minima = _minima(scale, zero)
        assert minima is not None
        zero = half_bits(minima)
    arrays += [by_unit(zero, own.zeros)] if own.zero is None else []
    return [constant(array) for array in arrays]


Tensors = Mapping[str, tirx.Buffer]
Shapes = Mapping[str, tuple[tuple[int, ...], str]]


def summed(
    own: Nibbles,
    inputs: Shapes,  # the tensors before the scales; the last one holds the weights
    given: Callable[[Tensors, Expr, Expr, Expr], Expr],  # the input of a row, a block and a number
    bits: Callable[[Tensors, Expr, Expr, Expr], Expr],  # the weight of a unit, a lane and a number
) -> tirx.PrimFunc:
    """The product as one sum over all inputs."""
    blocks = (own.units, own.blocks, UNITS)
    shapes = {**inputs, "scale": (blocks, own.scales), "zero": (blocks, own.zeros)}
    if own.zero is not None:
        del shapes["zero"]
    shapes["y"] = ((own.rows, own.outputs), "float32")
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        tensors = {
            name: T.arg(name, tirx.decl_buffer(long(*shape), dtype, name))
            for name, (shape, dtype) in shapes.items()
        }
        y = tensors["y"]
        with T.grid(*long(own.rows, own.outputs, own.depth)) as axes, T.sblock("product"):
            T.sblock_attr(own.annotation)
            row, n, k = T.axis.remap("SSR", list(axes))
            with T.init():
                T.buffer_store(y, tirx.const(0, "float32"), [row, n])
            unit, lane, part = n // UNITS, n % UNITS, k // own.size
            middle = own.zero_of(tensors.get("zero"), unit, part, lane)
            factor = own.scale_of(tensors["scale"], unit, part, lane)
            weight = own.shifted(factor, bits(tensors, unit, lane, k), middle)
            T.buffer_store(y, y[row, n] + given(tensors, row, part, k) * weight, [row, n])
    return builder.get()


# --- the loop nest --------------------------------------------------------------------------------

_ROWS = 4
"""Most rows that are multiplied as the weights become floats."""

_SHARING = 6
"""Rows of a tile whose weights are floats: with two vectors of outputs they fill 16 registers."""

_VECTORS = 8
"""Vectors of sums of a tile: enough for the latency of multiply-adds, few enough for registers."""


@dataclass(frozen=True)
class _Nest(ProductNest):
    """Products of floats."""

    sums = "float32"

    def written(self) -> tirx.Stmt:
        """Few rows by blocks of inputs, many rows by blocks of outputs."""
        own = self.own
        if own.rows > _ROWS:
            return block(*self.each_unit(1, self.unit))
        sums, most = scratch("sums", own.rows, own.blocks), _VECTORS * self.width // UNITS

        def tile(unit: Expr, units: int, kept: int) -> tirx.Stmt:
            return self.tile(sums, Tile(unit, units, 0, own.rows, kept))

        tiles = self.each_unit(max(1, most // own.rows), tile)
        return within([sums], self.input_sums(sums), block(*tiles))

    def unit(self, unit: Expr, _: int, kept: int) -> tirx.Stmt:
        """One block of outputs of all rows."""
        own, vectors = self.own, UNITS // self.width
        floats = scratch("floats", own.depth, UNITS)

        def both(pair: Expr) -> tirx.Stmt:
            part = pair // (own.size // own.packed)

            def vector(o: Expr, which: int) -> tirx.Stmt:
                def lane(v: Expr) -> tirx.Stmt:
                    place = o * self.width + v
                    number = own.number_of(load(self.weight, unit, pair, place), which)
                    factor = own.scale_of(self.scale, unit, part, place)
                    middle = own.zero_of(self.zero, unit, part, place)
                    value = own.shifted(factor, number, middle)
                    return store(floats, value, own.packed * pair + which, place)

                return lanes(self.width, lane)

            def all_of(o: Expr) -> tirx.Stmt:
                return block(*(vector(o, which) for which in range(own.packed)))

            return loop(vectors, all_of, "vector")

        def tile(start: Expr, count: int) -> tirx.Stmt:
            acc = Accumulators(count, vectors, self.width)
            products = acc.add_products(
                range(count),
                lambda p, k: load(self.x, start + p, k),
                lambda k, o, v: load(floats, k, o * self.width + v),
                own.depth,
                self.machine.broadcast_operand,
            )
            stores = acc.for_each(
                lambda p, o, v, y: self.keep(y, start + p, unit, o * self.width + v, kept)
            )
            return within(acc.buffers, *acc.start(), products, *stores)

        most = _SHARING if self.width < UNITS else 2 * _SHARING
        rows = runs(own.rows, most, tile, "rows")
        return within([floats], loop(own.depth // own.packed, both, "pair"), *rows)

    def input_sums(self, sums: tirx.Buffer) -> tirx.Stmt:
        """``sums[row, part] = sum of the inputs of the part``."""

        def part(row: Expr, index: Expr | int, count: int) -> tirx.Stmt:
            place = [row, const(index)]
            begin = store(sums, tirx.const(0, "float32"), *place)

            def add(k: Expr) -> tirx.Stmt:
                read = load(self.x, row, const(index) * self.own.size + k)
                return store(sums, load(sums, *place) + read, *place)

            return block(begin, loop(count, add, "k"))

        whole, rest = divmod(self.own.depth, self.own.size)

        def row(r: Expr) -> tirx.Stmt:
            parts = [loop(whole, lambda i: part(r, i, self.own.size), "part")] if whole else []
            return block(*(parts + ([part(r, whole, rest)] if rest else [])))

        return loop(self.own.rows, row, "row")

    def products(self, acc: Accumulators, tile: Tile, part: Expr, inputs: int) -> list[tirx.Stmt]:
        own = self.own

        def pair(j: Expr) -> tirx.Stmt:
            k = part * own.size + own.packed * j

            def product(p: Expr, o: Expr, v: Expr, which: int) -> Expr:
                unit, lane = self.place(tile, o, v)
                byte = load(self.weight, unit, part * (own.size // own.packed) + j, lane)
                return load(self.x, tile.row + p, k + which) * own.number_of(byte, which)

            each = (partial(product, which=which) for which in range(own.packed))
            return block(*(step for one in each for step in acc.add(one)))

        return [loop(inputs // own.packed, pair, "pair")]
