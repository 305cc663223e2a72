"""Dense layers in bfloat16 with float32 sums, on CPUs with tiles of matrices (AMX).

    out[m, n] = sum of bfloat16(x[m, k]) * bfloat16(weight[k, n])

A tile register holds 16 rows of 64 bytes; one instruction adds the products of 16 x 32 by 32 x 16
numbers. A task is a band of rows, whose inputs are rounded once::

    for band of 32 rows, share of columns:     # parallel
      rounded[row, k] = bfloat16(x)            # in the second-level cache
      for group of 32 columns:
        sums[2][2] = 0                         # tile registers
        for 32 of k:
          sums += rounded * packed             # four instructions for four loads
        out = epilogue(sums)

Weights are packed as the instruction reads them, two neighbouring ``k`` in a word, and padded with
zeros.  They have half of float32's bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import relax, te, tirx
from tvm.ir import Expr

from .fused import FusedKernel
from .kernel_call import kernel_call
from .layers import Layer, taken
from .loops import (
    PARALLEL,
    SERIAL,
    Index,
    TileRun,
    block,
    const,
    lanes,
    load,
    loop,
    scratch,
    store,
    tile_runs,
    within,
)
from .machine import VectorMachine
from .template import Template

ROWS, COLUMNS, DEPTH = 32, 32, 32
"""The rows and columns of the sums in registers, and products that an instruction adds to each."""
_SIDE = 16  # rows of a tile register, and its float32 columns
_LANES = 16


@dataclass(frozen=True)
class BfloatShape(Layer):
    """A matrix of inputs and one of constant weights."""

    rows: int
    depth: int
    columns: int


@dataclass(frozen=True)
class BfloatConfig(Template, BfloatShape):
    """The kernel has no choices."""

    template: ClassVar[str] = "bfloat"
    layers: ClassVar[tuple[type[Layer], ...]] = (BfloatShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def steps(self) -> int:
        """Instructions for each sum."""
        return -(-self.depth // DEPTH)

    @property
    def groups(self) -> int:
        """Groups of columns."""
        return -(-self.columns // COLUMNS)

    @classmethod
    def configure(
        cls, layer: BfloatShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        return [taken(cls, layer)] if machine.bfloat and layer.rows * layer.depth else []

    def cycles(self, machine: VectorMachine) -> float:
        bands = -(-self.rows // ROWS)
        return bands * (self.groups * (self.steps * 4 * _SIDE + 200) + self.depth * ROWS / 4)

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        data, weight = operands
        return [data, bb.emit(kernel_call(bb, "pack_bfloat", self, self.pack, weight))]

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """The weights, rounded: of a group, a step and a tile, pairs of ``k`` for each column."""

        def element(*axes: Expr) -> Expr:
            group, step, tile, pair, column, one = axes
            k, n = step * DEPTH + pair * 2 + one, (group * 2 + tile) * _SIDE + column
            inside = tirx.all(k < self.depth, n < self.columns)
            value = weight[tirx.min(k, self.depth - 1), tirx.min(n, self.columns - 1)]
            return tirx.Select(inside, rounded(value), tirx.const(0, "uint16"))

        shape = (self.groups, self.steps, 2, _SIDE, _SIDE, 2)
        return te.compute(shape, element, name="pack_bfloat")

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The product as a plain reduction of rounded numbers."""
        data, packed = operands
        k = te.reduce_axis((0, self.depth), "k")

        def element(m: Expr, n: Expr) -> Expr:
            place = k.var % DEPTH
            weight = packed[
                n // COLUMNS, k.var // DEPTH, n % COLUMNS // _SIDE, place // 2, n % _SIDE, place % 2
            ]
            return te.sum(widened(rounded(data[m, k.var])) * widened(weight), axis=k)

        return te.compute((self.rows, self.columns), element, name="bfloat", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, packed = fused.operands
        nest = _Nest(self, data, packed, fused)
        runs = tile_runs(self.rows, ROWS, lambda *_: None)
        return block([nest.bands(run, machine.threads) for run in runs])


def rounded(value: Expr) -> Expr:
    """The upper 16 bits of a float32 number, rounded to nearest, halves to even."""
    bits = tirx.reinterpret("uint32", value)
    number = [tirx.const(n, "uint32") for n in (16, 1, 0x7FFF, 0x7FFFFFFF, 0x7F800000, 0x40)]
    half, one, most, positive, infinity, quiet = number
    upper = tirx.shift_right(bits, half)
    nearest = tirx.shift_right(bits + most + tirx.bitwise_and(upper, one), half)
    is_nan = tirx.bitwise_and(bits, positive) > infinity
    return tirx.Select(is_nan, tirx.bitwise_or(upper, quiet), nearest).astype("uint16")


def widened(bits: Expr) -> Expr:
    """The float32 number with these upper 16 bits."""
    wide = tirx.shift_left(bits.astype("uint32"), tirx.const(16, "uint32"))
    return tirx.reinterpret("float32", wide)


def _call(name: str, *args: int | Expr) -> tirx.Stmt:
    """An instruction; numbers are those of tile registers."""
    given = [tirx.const(arg, "int8") if isinstance(arg, int) else arg for arg in args]
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *given))


@dataclass(frozen=True)
class _Nest:
    cfg: BfloatConfig
    data: tirx.Buffer
    packed: tirx.Buffer
    fused: FusedKernel

    def bands(self, run: TileRun[None], threads: int) -> tirx.Stmt:
        """Some bands of as many rows; cores share the columns where there are too few bands."""
        cfg = self.cfg
        # in one dimension, because TVM makes axes of buffers as short as loops need them
        inputs = scratch("rounded", ROWS * cfg.steps * DEPTH, dtype="uint16")
        sums = scratch("sums", ROWS * COLUMNS)
        shape = scratch("shape", 64, dtype="uint8")
        whole, rest = divmod(cfg.columns, COLUMNS)
        shares = max(1, min(threads, whole)) if run.count < threads else 1

        def groups(row: Expr, first: Index, count: Index, columns: int) -> tirx.Stmt:
            step = _Step(self, run.width, columns, inputs, sums)
            some = loop(count, lambda g: step.group(row, first + g), "group")
            return block([*step.configured(shape), some])

        def task(t: Expr) -> tirx.Stmt:
            row, share = t // shares * run.width + run.start, t % shares
            first, end = (number * whole // shares for number in (share, share + 1))
            parts = [groups(row, first, end - first, COLUMNS)] if whole else []
            if rest:
                last = groups(row, whole, 1, rest)
                is_mine = share == shares - 1
                parts.append(tirx.IfThenElse(is_mine, last, None) if shares > 1 else last)
            return within(
                [inputs, sums, shape],
                [self.round(row, run.width, inputs), *parts, _call("tilerelease")],
            )

        return loop(run.count * shares, task, "task", PARALLEL if threads > 1 else SERIAL)

    def round(self, row: Expr, rows: int, inputs: tirx.Buffer) -> tirx.Stmt:
        """Round the inputs of a band; the rest of a row is zero."""
        depth, pitch = self.cfg.depth, self.cfg.steps * DEPTH
        zero = tirx.const(0, "uint16")

        def some(r: Expr, first: Expr, count: int) -> tirx.Stmt:
            def one(v: Expr) -> tirx.Stmt:
                value = rounded(load(self.data, row + r, first + v))
                return store(inputs, value, r * pitch + first + v)

            return lanes(count, one)

        def of_row(r: Expr) -> tirx.Stmt:
            parts = [loop(depth // _LANES, lambda i: some(r, i * _LANES, _LANES))]
            if rest := depth % _LANES:
                parts.append(some(r, const(depth - rest), rest))
            if rest := pitch - depth:
                end = r * pitch + depth
                parts.append(lanes(rest, lambda v: store(inputs, zero, end + v)))
            return block(parts[depth < _LANES :])

        return loop(rows, of_row, "row")


@dataclass(frozen=True)
class _Step:
    """The sums of a band of rows and a group of columns, in up to four tile registers."""

    nest: _Nest
    rows: int
    columns: int
    inputs: tirx.Buffer
    sums: tirx.Buffer

    @property
    def tall(self) -> list[tuple[int, int]]:
        """The number and the rows of each tile from above."""
        return [(i, min(_SIDE, self.rows - _SIDE * i)) for i in range(-(-self.rows // _SIDE))]

    @property
    def wide(self) -> list[tuple[int, int]]:
        """The number and the columns of each tile from the left."""
        return [(j, min(_SIDE, self.columns - _SIDE * j)) for j in range(-(-self.columns // _SIDE))]

    def configured(self, shape: tirx.Buffer) -> list[tirx.Stmt]:
        """Give the tile registers their rows and bytes of a row."""
        table = [1] + [0] * 63
        for i, rows in self.tall:
            table[48 + 4 + i], table[16 + 2 * (4 + i)] = rows, DEPTH * 2
            for j, columns in self.wide:
                table[48 + 2 * i + j], table[16 + 2 * (2 * i + j)] = rows, columns * 4
        for j, columns in self.wide:
            table[48 + 6 + j], table[16 + 2 * (6 + j)] = _SIDE, columns * 4
        fill = [store(shape, tirx.const(byte, "uint8"), i) for i, byte in enumerate(table)]
        return [*fill, _call("ldtilecfg", tirx.address_of(load(shape, 0)))]

    def group(self, row: Expr, number: Expr) -> tirx.Stmt:
        """Clear the sums, add the products, pass the sums to the epilogue."""
        steps, tiles = self.nest.cfg.steps, [(i, j) for i, _ in self.tall for j, _ in self.wide]
        pitches = [const(size) for size in (steps * DEPTH * 2, _SIDE * 4, COLUMNS * 4)]

        def step(k: Expr) -> tirx.Stmt:
            left = [load(self.inputs, k * DEPTH + i * _SIDE * steps * DEPTH) for i, _ in self.tall]
            right = [load(self.nest.packed, number, k, j, 0, 0, 0) for j, _ in self.wide]
            return block(
                [
                    *_moved("tileloadd64", 4, left, pitches[0]),
                    *_moved("tileloadd64", 6, right, pitches[1]),
                    *(_call("tdpbf16ps", 2 * i + j, 4 + i, 6 + j) for i, j in tiles),
                ]
            )

        def finish(r: Expr) -> tirx.Stmt:
            column = number * COLUMNS

            def some(first: int, count: int) -> tirx.Stmt:
                def one(v: Expr) -> tirx.Stmt:
                    value = load(self.sums, r * COLUMNS + first + v)
                    return self.nest.fused.epilogue.store((row + r, column + first + v), value)

                return lanes(count, one)

            return block([some(j * _SIDE, count) for j, count in self.wide])

        places = [load(self.sums, i * _SIDE * COLUMNS + j * _SIDE) for i, j in tiles]
        return block(
            [
                *(_call("tilezero", 2 * i + j) for i, j in tiles),
                loop(steps, step, "step"),
                *(
                    _call("tilestored64", 2 * i + j, tirx.address_of(place), pitches[2])
                    for (i, j), place in zip(tiles, places, strict=True)
                ),
                loop(self.rows, finish, "row"),
            ]
        )


def _moved(name: str, first: int, places: Sequence[Expr], pitch: Expr) -> list[tirx.Stmt]:
    """Load tile registers, from the first one on."""
    return [_call(name, first + i, tirx.address_of(p), pitch) for i, p in enumerate(places)]
