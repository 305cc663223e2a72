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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from tvm import tirx
from tvm.ir import Expr

from .fused import Epilogue, FusedKernel
from .loops import (
    PARALLEL,
    Index,
    TileRun,
    block,
    const,
    each,
    fenced_span,
    lanes,
    load,
    loop,
    span,
    store,
    tile_runs,
    vectors,
    within,
)
from .machine import VectorMachine
from .nan import maximum
from .rectangle import Rectangle
from .window_taps import MOST_RUNS, least, runs_of, taps_inside, window_count

if TYPE_CHECKING:
    from .window import WindowConfig

_WORTH_THREADS = 500_000  # multiply-adds that take about as long as waking another core


def write_window(
    cfg: WindowConfig,
    machine: VectorMachine,
    fused: FusedKernel,
) -> tirx.Stmt:
    """The loop nest of one (fused) window reduction, of data and weights if there are any."""
    operands = fused.operands
    machine = machine.summing(str(operands[0].dtype))
    nest = _Nest(
        cfg,
        tile_runs(cfg.out_size[1], _tile_pixels(cfg, machine), partial(reads_of_tile, cfg)),
        operands,
        fused.epilogue,
        # by llvm-mca this makes borders faster; on x86 it does not, and doubles the compile time
        peel=machine.broadcast_operand and cfg.kind == "depthwise",
        part=fused.rectangle,
    )
    return each_row(cfg, machine, nest.row, fused.rectangle)


def each_row(
    cfg: WindowConfig,
    machine: VectorMachine,
    row: Callable[[Expr, Expr, Expr], tirx.Stmt],
    part: Rectangle | None = None,
) -> tirx.Stmt:
    """``row(image, block, y)`` for every output row, or those of a part, divided among threads."""
    height, width = cfg.out_size

    def rows(n: Expr, b: Expr, first: Index, count: Index) -> tirx.Stmt:
        if part is not None:
            first, count = part.rows(first, count)
        return span(first, count, lambda y: row(n, b, y), "y")

    work = cfg.blocks * height * width * cfg.lanes * prod(cfg.kernel)
    if machine.threads == 1 or work < _WORTH_THREADS:
        return loop(
            cfg.batch,
            lambda n: loop(cfg.blocks, lambda b: rows(n, b, 0, height), "block"),
            "image",
        )
    bands = min(height, -(-4 * machine.threads // cfg.blocks))
    band = -(-height // bands)

    def task(n: Expr, t: Expr) -> tirx.Stmt:
        first = t // cfg.blocks * band
        count = tirx.min(const(band), height - first) if height % band else band
        return rows(n, t % cfg.blocks, first, count)

    tasks = cfg.blocks * -(-height // band)
    return loop(cfg.batch, lambda n: loop(tasks, lambda t: task(n, t), "task", PARALLEL), "image")


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


Reads: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""The input columns of a tile, relative to its first window, each with the taps that use it as
pairs of output pixel and kernel column."""


def reads_of_tile(cfg: WindowConfig, start: int, width: int) -> Reads:
    """The input columns in the image that a tile reads, and their taps."""
    stride, dilation = cfg.stride[1], cfg.dilation[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for p in range(width):
        for kx in cfg.taps(1, start + p):
            taps.setdefault(p * stride + kx * dilation, []).append((p, kx))
    return tuple((column, tuple(taps[column])) for column in sorted(taps))


@dataclass(frozen=True)
class _Nest:
    """Writes the rows of one window reduction."""

    cfg: WindowConfig
    runs: list[TileRun[Reads]]
    operands: tuple[tirx.Buffer, ...]
    epilogue: Epilogue
    peel: bool
    part: Rectangle | None = None

    def row(self, n: Expr, b: Expr, y: Expr) -> tirx.Stmt:
        """One output row; its kernel rows are unrolled if all of them lie in the image.

        With ``peel``, kernel rows at the border are unrolled too.
        """
        runs = runs_of(self.cfg, 0)
        first = [run for run in runs if len(run.taps) == self.cfg.kernel[0] or self.peel]
        if not _unrolls_rows(self.cfg) or len(first) > MOST_RUNS:
            first = []

        def tiles(low: Index, count: Index) -> tirx.Stmt:
            return self._tiles((n, b, y), low, count)

        if len(first) == len(runs):
            last = first.pop(0)
            body = tiles(last.taps.start, len(last.taps))
        else:
            body = tiles(*taps_inside(self.cfg, 0, y))
        for run in first:
            inside = tirx.all(y >= run.start, y < run.end)
            body = tirx.IfThenElse(inside, tiles(run.taps.start, len(run.taps)), body)
        return body

    def _tiles(self, row: tuple[Expr, ...], low: Index, count: Index) -> tirx.Stmt:
        """All tiles of a row; unfenced, LLVM would mix them, spill, and store single numbers."""
        tiles = fenced_span if self.cfg.kind == "depthwise" else span

        def tile(t: Expr, run: TileRun[Reads]) -> tirx.Stmt:
            return self._tile(row, t * run.width + run.start, run, (low, count))

        def tiles_of(run: TileRun[Reads]) -> tirx.Stmt:
            if self.part is None:
                return tiles(0, run.count, partial(tile, run=run), "tile")
            return self.part.tiles(
                run, lambda count, place: tiles(0, count, lambda t: tile(place(t), run), "tile")
            )

        return block([tiles_of(run) for run in self.runs])

    def _tile(
        self, row: tuple[Expr, ...], x: Expr, run: TileRun[Reads], kernel_rows: tuple[Index, Index]
    ) -> tirx.Stmt:
        """Start the accumulators, reduce, pass the tile to the epilogue."""
        cfg = self.cfg
        n, b, y = row
        cells = run.width if cfg.kind == "depthwise" else len(run.work)
        acc = vectors("acc", cells, cfg.lanes, dtype=str(self.operands[0].dtype))
        low, count = kernel_rows
        started: set[int] = set()

        def kernel_row(ky: Expr) -> list[tirx.Stmt]:
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            left = x * cfg.stride[1] - cfg.padding[1]
            return [
                self._tap(acc, cell, (n, b, row, left + column), (b, ky, kx), started)
                for i, (column, taps) in enumerate(run.work)
                for cell, kx in (taps if cfg.kind == "depthwise" else [(i, 0)])
            ]

        def start(cell: int) -> tirx.Stmt:
            return lanes(cfg.lanes, lambda v: store(acc[cell], self._zero, v))

        if isinstance(count, int) and isinstance(low, int):
            # the first kernel row initialises the sums of all cells that it reaches
            rows = kernel_row(const(low)) if count else []
            if count > 1 and rows:
                rest = range(low + 1, low + count)
                rows.append(each(rest, lambda ky: block(kernel_row(ky))))
            reduction = rows + [start(i) for i in range(cells) if i not in started]
        else:
            started.update(range(cells))
            rows = [span(low, count, lambda ky: block(kernel_row(ky)), "ky")] if run.work else []
            reduction = [start(i) for i in range(cells)] + rows
        results = [self._finish(acc, p, (n, b, y, x + p), run) for p in range(run.width)]
        return within(acc, [*reduction, *results])

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
