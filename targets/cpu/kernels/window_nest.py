"""The loop nest of depthwise convolutions and poolings in blocked layout, register-tiled.

Every output pixel reduces a window of its own channel block; a row is cut into tiles of pixels
whose accumulators stay in registers::

    for channel block, band of rows:             # parallel
      for y, tile of the row:                    # rows are cut into balanced tiles: 14 -> 7 + 7
        acc[pixels] = 0
        for ky in the rows that exist:           # 3x3: unrolled; on x86 only inside the image
          for input pixel of the tile:           # unrolled; each is loaded once ...
            for the taps that read it:           # ... and used for all output pixels around it
              acc[pixel] += input * weight
        out = epilogue(acc)

Pooling needs no weights, so its accumulators are the columns of the input, which neighbouring
windows share; the columns of each window are combined at the end.

Padding is free: taps outside the image are omitted, so that the maximum and the average over
existing pixels need no mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    Index,
    TileRun,
    block,
    const,
    fenced_span,
    lanes,
    load,
    loop,
    span,
    store,
    tile_runs,
    unroll,
    vectors,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.nan import maximum
from tvm_stretch.targets.kernels.window_taps import (
    MOST_RUNS,
    Reads,
    each_read,
    least,
    reads_of_tile,
    runs_of,
    taps_inside,
    window_count,
)

if TYPE_CHECKING:
    from .window import WindowConfig

Rows = TypeVar("Rows")

_WORTH_THREADS = 500_000  # multiply-adds that take about as long as waking another core


def write_window(
    cfg: WindowConfig,
    machine: VectorMachine,
    fused: FusedKernel,
) -> tirx.Stmt:
    """The loop nest of one (fused) window reduction, of data and weights if there are any."""
    return _Nest(cfg, machine.summing(str(fused.operands[0].dtype)), fused).write()


def _unrolls_rows(cfg: WindowConfig) -> bool:
    """Whether kernel rows are unrolled: faster for 3x3, too much code for larger kernels."""
    return prod(cfg.kernel) <= 9


def _tile_pixels(cfg: WindowConfig, machine: VectorMachine) -> int:
    """Output pixels whose accumulators fit into the registers, beside the operands of taps."""
    if cfg.kind != "depthwise":
        columns = machine.registers - 1 - cfg.spans[1]
        return max(1, columns // cfg.stride[1] + 1)
    if _unrolls_rows(cfg):
        return min(8, machine.registers // 2)  # more pixels triple the code, and are slower
    return max(2, min(16, machine.registers - cfg.kernel[1] - 1))


class RowNest(ABC, Generic[Rows]):
    """The rows of windows on a core, tile by tile.

    Floats and integers differ inside a tile, and in the cases of kernel rows that they write
    separately; ``Rows`` is such a case.
    """

    is_fenced = False  # whether LLVM may not mix neighbouring tiles

    def __init__(
        self, cfg: WindowConfig, machine: VectorMachine, fused: FusedKernel, pixels: int
    ) -> None:
        self.cfg, self.machine, self.fused = cfg, machine, fused
        self.epilogue, self.part = fused.epilogue, fused.rectangle
        self.runs = tile_runs(cfg.out_size[1], pixels, partial(reads_of_tile, cfg))

    def write(self) -> tirx.Stmt:
        """All rows, or those of a part, divided among threads."""
        cfg, threads = self.cfg, self.machine.threads
        height, width = cfg.out_size

        def rows(n: Expr, b: Expr, first: Index, count: Index) -> tirx.Stmt:
            if self.part is not None:
                first, count = self.part.rows(first, count)
            return span(first, count, lambda y: self.row(n, b, y), "y")

        work = cfg.blocks * height * width * cfg.lanes * prod(cfg.kernel)
        if threads == 1 or work < _WORTH_THREADS:
            return loop(
                cfg.batch,
                lambda n: loop(cfg.blocks, lambda b: rows(n, b, 0, height), "block"),
                "image",
            )
        bands = min(height, -(-4 * threads // cfg.blocks))
        band = -(-height // bands)

        def task(n: Expr, t: Expr) -> tirx.Stmt:
            first = t // cfg.blocks * band
            count = tirx.min(const(band), height - first) if height % band else band
            return rows(n, t % cfg.blocks, first, count)

        tasks = cfg.blocks * -(-height // band)
        return loop(
            cfg.batch, lambda n: loop(tasks, lambda t: task(n, t), "task", PARALLEL), "image"
        )

    def row(self, n: Expr, b: Expr, y: Expr) -> tirx.Stmt:
        """One output row."""
        own, others = self.cases(y)
        body = self._tiles((n, b, y), others)
        for start, end, rows in own:
            inside = tirx.all(y >= start, y < end)
            body = tirx.IfThenElse(inside, self._tiles((n, b, y), rows), body)
        return body

    @abstractmethod
    def cases(self, y: Expr) -> tuple[list[tuple[int, int, Rows]], Rows]:
        """Output rows, as start and end, with code of their own; and the case of all others."""

    @abstractmethod
    def tile(self, row: tuple[Expr, ...], x: Expr, run: TileRun[Reads], rows: Rows) -> tirx.Stmt:
        """The windows of one tile, from their accumulators to the epilogue."""

    def _tiles(self, row: tuple[Expr, ...], rows: Rows) -> tirx.Stmt:
        tiles = fenced_span if self.is_fenced else span

        def tile(t: Expr, run: TileRun[Reads]) -> tirx.Stmt:
            return self.tile(row, t * run.width + run.start, run, rows)

        def tiles_of(run: TileRun[Reads]) -> tirx.Stmt:
            if self.part is None:
                return tiles(0, run.count, partial(tile, run=run), "tile")
            return self.part.tiles(
                run, lambda count, place: tiles(0, count, lambda t: tile(place(t), run), "tile")
            )

        return block(*(tiles_of(run) for run in self.runs))


class _Nest(RowNest[tuple[Index, Index]]):
    """Windows of floats, and poolings; a case is the first kernel row and their number."""

    def __init__(self, cfg: WindowConfig, machine: VectorMachine, fused: FusedKernel) -> None:
        super().__init__(cfg, machine, fused, _tile_pixels(cfg, machine))
        self.operands = fused.operands
        self.is_fenced = cfg.kind == "depthwise"  # else LLVM spills, and stores single numbers

    def cases(
        self, y: Expr
    ) -> tuple[list[tuple[int, int, tuple[Index, Index]]], tuple[Index, Index]]:
        """Kernel rows are unrolled if all of them lie in the image; on phones, at the border too.

        By llvm-mca that makes borders faster; on x86 it does not, and doubles the compile time.
        """
        cfg = self.cfg
        runs = runs_of(cfg, 0)
        peel = self.machine.broadcast_operand and cfg.kind == "depthwise"
        own = [run for run in runs if len(run.taps) == cfg.kernel[0] or peel]
        if not _unrolls_rows(cfg) or len(own) > MOST_RUNS:
            own = []
        cases: list[tuple[int, int, tuple[Index, Index]]] = [
            (run.start, run.end, (run.taps.start, len(run.taps))) for run in own
        ]
        if len(own) < len(runs):
            return cases, taps_inside(cfg, 0, y)
        return cases[1:], cases[0][2]

    def tile(
        self, row: tuple[Expr, ...], x: Expr, run: TileRun[Reads], rows: tuple[Index, Index]
    ) -> tirx.Stmt:
        cfg = self.cfg
        n, b, y = row
        cells = run.width if cfg.kind == "depthwise" else len(run.work)
        acc = vectors("acc", cells, cfg.lanes, dtype=str(self.operands[0].dtype))
        low, count = rows
        started: set[int] = set()

        def kernel_row(ky: Expr) -> list[tirx.Stmt]:
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            left = x * cfg.stride[1] - cfg.padding[1]
            columns = [left + column for column, _ in run.work]

            def use(i: int, cell: int, kx: int) -> list[tirx.Stmt]:
                place = (n, b, row, columns[i])
                return [self._tap(acc, cell, place, (b, ky, kx), started)]

            reads = run.work
            if cfg.kind != "depthwise":
                reads = tuple((column, ((i, 0),)) for i, (column, _) in enumerate(reads))
            return each_read(reads, use)

        def start(cell: int) -> tirx.Stmt:
            return lanes(cfg.lanes, lambda v: store(acc[cell], self._zero, v))

        if isinstance(count, int) and isinstance(low, int):
            # the first kernel row initialises the sums of all cells that it reaches
            steps = kernel_row(const(low)) if count else []
            if count > 1 and steps:
                rest = range(low + 1, low + count)
                steps.append(unroll(rest, lambda ky: block(*kernel_row(ky))))
            reduction = steps + [start(i) for i in range(cells) if i not in started]
        else:
            started.update(range(cells))
            steps = [span(low, count, lambda ky: block(*kernel_row(ky)), "ky")] if run.work else []
            reduction = [start(i) for i in range(cells)] + steps
        results = [self._finish(acc, p, (n, b, y, x + p), run) for p in range(run.width)]
        return within(acc, *reduction, *results)

    @property
    def _zero(self) -> Expr:
        dtype = str(self.operands[0].dtype)
        return least(dtype) if self.cfg.kind == "max" else tirx.const(0, dtype)

    def _join(self, old: Expr, new: Expr) -> Expr:
        return maximum(old, new) if self.cfg.kind == "max" else old + new

    def _tap(
        self,
        acc: Sequence[tirx.Buffer],
        cell: int,
        place: tuple[Expr, ...],
        tap: tuple[Expr, Expr, int],
        started: set[int],
    ) -> tirx.Stmt:
        """Accumulate one input pixel."""
        first = cell not in started
        started.add(cell)

        def update(v: Expr) -> tirx.Stmt:
            value = load(self.operands[0], *place, v)
            if self.cfg.kind == "depthwise":
                value = value * load(self.operands[1], *tap, v)
            old = acc[cell]
            return store(old, value if first else self._join(load(old, v), value), v)

        return lanes(self.cfg.lanes, update)

    def _finish(
        self, acc: Sequence[tirx.Buffer], p: int, place: tuple[Expr, ...], run: TileRun[Reads]
    ) -> tirx.Stmt:
        """Store output pixel ``p`` of the tile."""
        cfg = self.cfg
        window = [i for i, (_, taps) in enumerate(run.work) if p in dict(taps)]
        cells = [p] if cfg.kind == "depthwise" else window
        dtype = str(self.operands[0].dtype)

        def value(v: Expr) -> Expr:
            parts = [load(acc[i], v) for i in cells] or [self._zero]
            total = reduce(self._join, parts)
            return (
                total / window_count(cfg, place[2], place[3], dtype) if cfg.kind == "avg" else total
            )

        return lanes(cfg.lanes, lambda v: self.epilogue.store((*place, v), value(v)))
