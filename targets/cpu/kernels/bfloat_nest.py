"""Loop nests of layers in bfloat16: bands of rows, rounded once, through tile registers (AMX).

`bfloat.py` has the templates, and the nest in words.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.loops import (
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

ROWS, COLUMNS, DEPTH = 32, 32, 32
"""The rows and columns of the sums in registers, and products that an instruction adds to each."""
SIDE = 16  # rows of a tile register, and its float32 columns
LANES = 16


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
            return block(*step.configured(shape), some)

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
                self.round(*place, run.width, inputs),
                *parts,
                _call("tilerelease"),
            )

        kind = PARALLEL if threads > 1 else SERIAL
        return loop(batch * run.count * shares, task, "task", kind)

    def write(self, batch: int, threads: int) -> tirx.Stmt:
        """All bands."""
        runs = tile_runs(self.rows, ROWS, lambda *_: None)
        return block(*(self.bands(run, batch, threads) for run in runs))


@dataclass(frozen=True)
class DenseNest(_Nest):
    """Rows are those of a matrix."""

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
            parts = [loop(depth // LANES, lambda i: some(r, i * LANES, LANES))]
            if rest := depth % LANES:
                parts.append(some(r, const(depth - rest), rest))
            if rest := pitch - depth:
                parts.append(_rounded(inputs, r * pitch + depth, None, rest))
            return block(*parts[depth < LANES :])

        return loop(rows, of_row, "row")


@dataclass(frozen=True)
class ConvNest(_Nest):
    """Rows are pixels of the result, and hold all taps of all blocks of channels."""

    data: tirx.Buffer
    layer: ConvShape
    depth: int

    def place(self, batch: Expr, row: Expr, column: Expr, lane: Expr) -> tuple[Expr, ...]:
        width = self.layer.out_size[1]
        return batch, column // LANES, row // width, row % width, lane

    def round(self, batch: Expr, row: Expr, rows: int, inputs: tirx.Buffer) -> tirx.Stmt:
        cfg, pitch = self.layer, self.steps * DEPTH
        blocks, width = -(-cfg.in_channels // LANES), cfg.out_size[1]
        height, columns = cfg.in_size

        def tap(r: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
            y = (row + r) // width * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            x = (row + r) % width * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
            first = r * pitch + (ky * cfg.kernel[1] + kx) * (blocks * LANES)

            def of_block(b: Expr, is_inside: bool) -> tirx.Stmt:
                read = (lambda v: load(self.data, batch, b, y, x, v)) if is_inside else None
                return _rounded(inputs, first + b * LANES, read, LANES)

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
            rest = pitch - self.depth
            end = _rounded(inputs, r * pitch + self.depth, None, rest) if rest else None
            return block(*([taps] if end is None else [taps, end]))

        return loop(rows, pixel, "pixel")


def _rounded(
    inputs: tirx.Buffer, first: Expr, read: Callable[[Expr], Expr] | None, count: int
) -> tirx.Stmt:
    """Store numbers, or zeros, in bfloat16; one instruction rounds a vector."""
    if read is None or count < LANES:
        zero = tirx.const(0, "uint16")
        return lanes(
            count, lambda v: store(inputs, zero if read is None else rounded(read(v)), first + v)
        )
    lane = tirx.Ramp(const(0), const(1), LANES)
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    value = tirx.call_llvm_pure_intrin(f"bfloat16x{LANES}", name, read(lane))
    value = tirx.reinterpret(f"uint16x{LANES}", value)
    return store(inputs, value, tirx.Ramp(first, const(1), LANES))


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
        return [(i, min(SIDE, self.rows - SIDE * i)) for i in range(-(-self.rows // SIDE))]

    @property
    def wide(self) -> list[tuple[int, int]]:
        """The number and the columns of each tile from the left."""
        return [(j, min(SIDE, self.columns - SIDE * j)) for j in range(-(-self.columns // SIDE))]

    def configured(self, shape: tirx.Buffer) -> list[tirx.Stmt]:
        """Give the tile registers their rows and bytes of a row."""
        table = [1] + [0] * 63
        for i, rows in self.tall:
            table[48 + 4 + i], table[16 + 2 * (4 + i)] = rows, DEPTH * 2
            for j, columns in self.wide:
                table[48 + 2 * i + j], table[16 + 2 * (2 * i + j)] = rows, columns * 4
        for j, columns in self.wide:
            table[48 + 6 + j], table[16 + 2 * (6 + j)] = SIDE, columns * 4
        fill = [store(shape, tirx.const(byte, "uint8"), i) for i, byte in enumerate(table)]
        return [*fill, _call("ldtilecfg", tirx.address_of(load(shape, 0)))]

    def group(self, place: tuple[Expr, Expr], number: Expr) -> tirx.Stmt:
        """Clear the sums, add the products, pass the sums to the epilogue."""
        steps, tiles = self.nest.steps, [(i, j) for i, _ in self.tall for j, _ in self.wide]
        pitches = [const(size) for size in (steps * DEPTH * 2, SIDE * 4, COLUMNS * 4)]

        def step(k: Expr) -> tirx.Stmt:
            left = [load(self.inputs, k * DEPTH + i * SIDE * steps * DEPTH) for i, _ in self.tall]
            right = [load(self.nest.packed, number, k, j, 0, 0, 0) for j, _ in self.wide]
            return block(
                *_moved("tileloadd64", 4, left, pitches[0]),
                *_moved("tileloadd64", 6, right, pitches[1]),
                *(_call("tdpbf16ps", 2 * i + j, 4 + i, 6 + j) for i, j in tiles),
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

            return block(*(some(j * SIDE, count) for j, count in self.wide))

        places = [load(self.sums, i * SIDE * COLUMNS + j * SIDE) for i, j in tiles]
        return block(
            *(_call("tilezero", 2 * i + j) for i, j in tiles),
            loop(steps, step, "step"),
            *(
                _call("tilestored64", 2 * i + j, tirx.address_of(place), pitches[2])
                for (i, j), place in zip(tiles, places, strict=True)
            ),
            loop(self.rows, finish, "row"),
        )


def _moved(name: str, first: int, places: Sequence[Expr], pitch: Expr) -> list[tirx.Stmt]:
    """Load tile registers, from the first one on."""
    return [_call(name, first + i, tirx.address_of(p), pitch) for i, p in enumerate(places)]
