"""Layers in bfloat16 with float32 sums, on CPUs with tiles of matrices (AMX).

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

A convolution is a product whose rows are pixels of the result: a band gathers all of their taps.
Weights are packed as the instruction reads them, two neighbouring ``k`` in a word, and padded with
zeros.  They have half of float32's bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from .conv import gathers_pixels
from .fused import FusedKernel
from .kernel_call import kernel_call
from .layers import ConvShape, Layer, taken
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

        def element(k: Expr, n: Expr) -> Expr:
            inside = tirx.all(k < self.depth, n < self.columns)
            value = weight[tirx.min(k, self.depth - 1), tirx.min(n, self.columns - 1)]
            return tirx.Select(inside, rounded(value), tirx.const(0, "uint16"))

        return _packed(self.columns, self.steps, element)

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The product as a plain reduction of rounded numbers."""
        data, packed = operands
        k = te.reduce_axis((0, self.depth), "k")

        def element(m: Expr, n: Expr) -> Expr:
            weight = packed[_place(k.var, n)]
            return te.sum(widened(rounded(data[m, k.var])) * widened(weight), axis=k)

        return te.compute((self.rows, self.columns), element, name="bfloat", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, packed = fused.operands
        nest = _DenseNest(
            fused, packed, self.rows, self.columns, self.steps, data=data, depth=self.depth
        )
        return nest.write(1, machine.threads)


@dataclass(frozen=True, kw_only=True)
class BfloatConvConfig(Template, ConvShape):
    """A convolution of blocks of channels; its rows are pixels with all taps."""

    template: ClassVar[str] = "bfloat_conv"
    layers: ClassVar[tuple[type[Layer], ...]] = (ConvShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)

    @property
    def in_blocks(self) -> int:
        """Blocks of input channels."""
        return -(-self.in_channels // _LANES)

    @property
    def depth(self) -> int:
        """Numbers of a row."""
        return prod(self.kernel) * self.in_blocks * _LANES

    @property
    def steps(self) -> int:
        """Instructions for each sum."""
        return -(-self.depth // DEPTH)

    @property
    def columns(self) -> int:
        """Output channels of whole blocks."""
        return -(-self.out_channels // _LANES) * _LANES

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.batch, self.columns // _LANES, *self.out_size, _LANES

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> Iterable[Template]:
        fits = machine.bfloat and block == _LANES and layer.groups == 1
        shape = layer.gathered() if gathers_pixels(layer, machine) else layer
        return [taken(cls, shape)] if fits and not (layer.exact or layer.is_dense) else []

    def cycles(self, machine: VectorMachine) -> float:
        bands = self.batch * -(-prod(self.out_size) // ROWS)
        groups = -(-self.columns // COLUMNS)
        return bands * (groups * (self.steps * 4 * _SIDE + 200) + self.depth * ROWS / 4)

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        data, weight = operands
        return [data, bb.emit(kernel_call(bb, "pack_bfloat", self, self.pack, weight))]

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """The weights of OIHW, as `BfloatConfig.pack` has them; the channels of a tap together."""
        channels, width = self.in_blocks * _LANES, self.kernel[1]

        def element(k: Expr, n: Expr) -> Expr:
            tap, channel = k // channels, k % channels
            exists = tirx.all(k < self.depth, channel < self.in_channels, n < self.out_channels)
            place = (
                tirx.min(n, self.out_channels - 1),
                tirx.min(channel, self.in_channels - 1),
                tirx.min(tap // width, self.kernel[0] - 1),
                tap % width,
            )
            return tirx.Select(exists, rounded(weight[place]), tirx.const(0, "uint16"))

        return _packed(self.columns, self.steps, element)

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The convolution as a plain reduction of rounded numbers."""
        data, packed = operands
        before, after = ([0, 0, *self.padding[i : i + 2], 0] for i in (0, 2))
        padded = topi.nn.pad(data, before, after, 0.0) if any(self.padding) else data
        sizes = (self.in_blocks, *self.kernel, _LANES)
        names = ("ic", "ky", "kx", "ii")
        axes = [te.reduce_axis((0, size), name) for size, name in zip(sizes, names, strict=True)]
        b, ky, kx, inner = (axis.var for axis in axes)

        def element(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            row, column = (
                place * step + tap * apart
                for place, step, tap, apart in zip(
                    (y, x), self.stride, (ky, kx), self.dilation, strict=True
                )
            )
            k = ((ky * self.kernel[1] + kx) * self.in_blocks + b) * _LANES + inner
            weight = packed[_place(k, o * _LANES + lane)]
            value = widened(rounded(padded[n, b, row, column, inner]))
            return te.sum(value * widened(weight), axis=axes)

        return te.compute(self.out_shape, element, name="bfloat_conv", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, packed = fused.operands
        pixels = prod(self.out_size)
        nest = _ConvNest(fused, packed, pixels, self.columns, self.steps, data=data, cfg=self)
        return nest.write(self.batch, machine.threads)


def _packed(columns: int, steps: int, element: Callable[[Expr, Expr], Expr]) -> te.Tensor:
    """Weights of a group, a step and a tile: pairs of ``k`` for each column."""

    def packed(*axes: Expr) -> Expr:
        group, step, tile, pair, column, one = axes
        return element(step * DEPTH + pair * 2 + one, (group * 2 + tile) * _SIDE + column)

    shape = (-(-columns // COLUMNS), steps, 2, _SIDE, _SIDE, 2)
    return te.compute(shape, packed, name="pack_bfloat")


def _place(k: Expr, n: Expr) -> tuple[Expr, ...]:
    """Where the packed weight of an input and an output stands."""
    pair = k % DEPTH
    return n // COLUMNS, k // DEPTH, n % COLUMNS // _SIDE, pair // 2, n % _SIDE, pair % 2


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
    """Rows of numbers that are rounded, packed weights, and the results of their products."""

    fused: FusedKernel
    packed: tirx.Buffer
    rows: int
    columns: int
    steps: int

    @abstractmethod
    def round(self, batch: Expr, row: Expr, rows: int, inputs: tirx.Buffer) -> tirx.Stmt:
        """Round the inputs of a band; the rest of a row is zero."""

    @abstractmethod
    def place(self, batch: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
        """Where the result of a lane of the vector at a row and a column stands."""

    def bands(self, run: TileRun[None], batch: int, threads: int) -> tirx.Stmt:
        """Some bands of as many rows; cores share the columns where there are too few bands."""
        # in one dimension, because TVM makes axes of buffers as short as loops need them
        inputs = scratch("rounded", ROWS * self.steps * DEPTH, dtype="uint16")
        sums = scratch("sums", ROWS * COLUMNS)
        shape = scratch("shape", 64, dtype="uint8")
        whole, rest = divmod(self.columns, COLUMNS)
        shares = max(1, min(threads, whole)) if batch * run.count < threads else 1

        def groups(place: tuple[Expr, Expr], first: Index, count: Index, columns: int) -> tirx.Stmt:
            step = _Step(self, run.width, columns, inputs, sums)
            some = loop(count, lambda g: step.group(place, first + g), "group")
            return block([*step.configured(shape), some])

        def task(t: Expr) -> tirx.Stmt:
            band, share = t // shares, t % shares
            place = band // run.count, band % run.count * run.width + run.start
            first, end = (number * whole // shares for number in (share, share + 1))
            parts = [groups(place, first, end - first, COLUMNS)] if whole else []
            if rest:
                last, is_mine = groups(place, whole, 1, rest), share == shares - 1
                parts.append(tirx.IfThenElse(is_mine, last, None) if shares > 1 else last)
            return within(
                [inputs, sums, shape],
                [self.round(*place, run.width, inputs), *parts, _call("tilerelease")],
            )

        kind = PARALLEL if threads > 1 else SERIAL
        return loop(batch * run.count * shares, task, "task", kind)

    def write(self, batch: int, threads: int) -> tirx.Stmt:
        """All bands."""
        runs = tile_runs(self.rows, ROWS, lambda *_: None)
        return block([self.bands(run, batch, threads) for run in runs])


@dataclass(frozen=True)
class _DenseNest(_Nest):
    data: tirx.Buffer
    depth: int

    def place(self, batch: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
        return row, column + lane

    def round(self, batch: Expr, row: Expr, rows: int, inputs: tirx.Buffer) -> tirx.Stmt:
        depth, pitch = self.depth, self.steps * DEPTH

        def some(r: Expr, first: Expr, count: int) -> tirx.Stmt:
            return _rounded(
                inputs, r * pitch + first, lambda v: load(self.data, row + r, first + v), count
            )

        def of_row(r: Expr) -> tirx.Stmt:
            parts = [loop(depth // _LANES, lambda i: some(r, i * _LANES, _LANES))]
            if rest := depth % _LANES:
                parts.append(some(r, const(depth - rest), rest))
            if rest := pitch - depth:
                parts.append(_rounded(inputs, r * pitch + depth, None, rest))
            return block(parts[depth < _LANES :])

        return loop(rows, of_row, "row")


@dataclass(frozen=True)
class _ConvNest(_Nest):
    """Rows are pixels of the result, and hold all taps of all blocks of channels."""

    data: tirx.Buffer
    cfg: BfloatConvConfig

    def place(self, batch: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
        width = self.cfg.out_size[1]
        return batch, column // _LANES, row // width, row % width, lane

    def round(self, batch: Expr, row: Expr, rows: int, inputs: tirx.Buffer) -> tirx.Stmt:
        cfg, pitch = self.cfg, self.steps * DEPTH
        blocks, width, (height, columns) = cfg.in_blocks, cfg.out_size[1], cfg.in_size

        def tap(r: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
            y = (row + r) // width * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            x = (row + r) % width * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
            first = r * pitch + (ky * cfg.kernel[1] + kx) * (blocks * _LANES)

            def of_block(b: Expr, is_inside: bool) -> tirx.Stmt:
                read = (lambda v: load(self.data, batch, b, y, x, v)) if is_inside else None
                return _rounded(inputs, first + b * _LANES, read, _LANES)

            inside = loop(blocks, lambda b: of_block(b, True), "block")
            if not any(cfg.padding):
                return inside
            outside = loop(blocks, lambda b: of_block(b, False), "block")
            exists = tirx.all(y >= 0, y < height, x >= 0, x < columns)
            return tirx.IfThenElse(exists, inside, outside)

        def pixel(r: Expr) -> tirx.Stmt:
            taps = loop(
                cfg.kernel[0],
                lambda ky: loop(cfg.kernel[1], lambda kx: tap(r, ky, kx), "kx"),
                "ky",
            )
            rest = pitch - cfg.depth
            end = _rounded(inputs, r * pitch + cfg.depth, None, rest) if rest else None
            return block([taps] if end is None else [taps, end])

        return loop(rows, pixel, "pixel")


def _rounded(
    inputs: tirx.Buffer, first: Expr, read: Callable[[Expr], Expr] | None, count: int
) -> tirx.Stmt:
    """Store numbers, or zeros, in bfloat16; one instruction rounds a vector."""
    if read is None or count < _LANES:
        zero = tirx.const(0, "uint16")
        return lanes(
            count, lambda v: store(inputs, zero if read is None else rounded(read(v)), first + v)
        )
    lane = tirx.Ramp(const(0), const(1), _LANES)
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    value = tirx.call_llvm_pure_intrin(f"bfloat16x{_LANES}", name, read(lane))
    value = tirx.reinterpret(f"uint16x{_LANES}", value)
    return store(inputs, value, tirx.Ramp(first, const(1), _LANES))


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

    def group(self, place: tuple[Expr, Expr], number: Expr) -> tirx.Stmt:
        """Clear the sums, add the products, pass the sums to the epilogue."""
        steps, tiles = self.nest.steps, [(i, j) for i, _ in self.tall for j, _ in self.wide]
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
            batch, row = place

            def some(first: int, count: int) -> tirx.Stmt:
                column = number * COLUMNS + first

                def one(v: Expr) -> tirx.Stmt:
                    value = load(self.sums, r * COLUMNS + first + v)
                    where = self.nest.place(batch, row + r, column, v)
                    return self.nest.fused.epilogue.store(where, value)

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
