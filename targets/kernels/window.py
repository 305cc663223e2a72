"""Depthwise convolution and pooling in blocked layout (NCHW[c]), register-tiled.

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

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial, reduce
from math import inf, prod
from typing import Any, ClassVar, TypeAlias

from tvm import te, tirx, topi
from tvm.ir import Expr

from .fused import Epilogue
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
from .row_runs import MOST_RUNS, row_runs


@dataclass(frozen=True)
class WindowConfig:
    """A depthwise convolution or pooling.

    Attributes:
        kind: ``depthwise``, ``max`` or ``avg``.
        padding: top, left, bottom, right.
        out: output height and width if the operator rounds up (``ceil_mode``); otherwise derived.
        count_include_pad: the average divides by all pixels of the window, also those outside.
    """

    kind: str
    batch: int
    channels: int
    in_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    lanes: int
    out: tuple[int, int] | None = None
    count_include_pad: bool = False

    template: ClassVar[str] = "window"

    @property
    def spans(self) -> tuple[int, int]:
        """Height and width of the image under one window."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        if self.out is not None:
            return self.out
        top, left, bottom, right = self.padding
        return (
            (self.in_size[0] + top + bottom - self.spans[0]) // self.stride[0] + 1,
            (self.in_size[1] + left + right - self.spans[1]) // self.stride[1] + 1,
        )

    @property
    def blocks(self) -> int:
        """Vectors of channels, the last one perhaps partly empty."""
        return -(-self.channels // self.lanes)


def window_of(cfg: WindowConfig) -> dict[str, Any]:
    """The fields of a window, without those that subclasses add."""
    return {field.name: getattr(cfg, field.name) for field in fields(WindowConfig)}


# --- packing --------------------------------------------------------------------------------------


def pack_depthwise_weight(cfg: WindowConfig, weight: te.Tensor) -> te.Tensor:
    """(C, 1, kh, kw) -> [channel block][ky][kx][lane], zero for channels that do not exist."""

    def element(b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        channel = b * cfg.lanes + lane
        exists = channel < cfg.channels
        return tirx.if_then_else(exists, weight[channel, 0, y, x], tirx.const(0, weight.dtype))

    return te.compute((cfg.blocks, *cfg.kernel, cfg.lanes), element, name="pack_depthwise")


# --- meaning: plain loops for the stock VM, which the template recognises by their annotation -----


def window_compute(
    cfg: WindowConfig, data: te.Tensor, weight: te.Tensor | None, annotation: dict[str, str]
) -> te.Tensor:
    """The window reduction as plain tensor expressions; ``weight`` only for ``depthwise``."""
    ky, kx = (te.reduce_axis((0, k), n) for k, n in zip(cfg.kernel, ("ky", "kx"), strict=True))
    padded = _pad(cfg, data)
    last = cfg.kind != "avg"

    def element(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        row, column = (
            y * cfg.stride[0] + ky * cfg.dilation[0],
            x * cfg.stride[1] + kx * cfg.dilation[1],
        )
        pixel = padded[n, b, row, column, lane]
        if cfg.kind == "max":
            return _MAXIMUM(pixel, axis=[ky, kx])
        return te.sum(pixel if weight is None else pixel * weight[b, ky, kx, lane], axis=[ky, kx])

    shape = (cfg.batch, cfg.blocks, *cfg.out_size, cfg.lanes)
    name = "depthwise_conv2d" if cfg.kind == "depthwise" else f"{cfg.kind}_pool"
    total = te.compute(shape, element, name=name, attrs=annotation if last else {})
    if last:
        return total

    def average(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        return total[n, b, y, x, lane] / window_count(cfg, y, x, data.dtype)

    return te.compute(shape, average, name="avg_pool_divide", attrs=annotation)


def least(dtype: str) -> Expr:
    """The maximum of no numbers; for floats minus infinity, unlike `te.max`."""
    return tirx.const(-inf, dtype) if "float" in str(dtype) else tirx.min_value(dtype)


_MAXIMUM = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda t: least(str(t)), name="maximum")


def _pad(cfg: WindowConfig, data: te.Tensor) -> te.Tensor:
    """The image with all padding that windows reach, which `ceil_mode` may enlarge."""
    before = cfg.padding[:2]
    sizes = zip(cfg.out_size, cfg.stride, cfg.spans, cfg.in_size, before, strict=True)
    after = [max(0, (o - 1) * s + span - i - b) for o, s, span, i, b in sizes]
    if not any((*before, *after)):
        return data
    value = least(data.dtype) if cfg.kind == "max" else tirx.const(0, data.dtype)
    return topi.nn.pad(data, (0, 0, *before, 0), (0, 0, *after, 0), value)


def window_count(cfg: WindowConfig, y: Expr, x: Expr, dtype: str) -> Expr:
    """The divisor of the average at output pixel ``(y, x)``."""
    if cfg.count_include_pad:
        rows, columns = (_taps_padded(cfg, axis, place) for axis, place in enumerate((y, x)))
    else:
        rows, columns = (_taps_inside(cfg, axis, place)[1] for axis, place in enumerate((y, x)))
    return tirx.max(const(rows * columns), const(1)).astype(dtype)


def _taps_padded(cfg: WindowConfig, axis: int, place: Expr) -> Index:
    """Number of taps in the image or its padding, without the border that ``ceil_mode`` adds."""
    size = cfg.padding[axis] + cfg.in_size[axis] + cfg.padding[axis + 2]
    kernel, step, stride = cfg.kernel[axis], cfg.dilation[axis], cfg.stride[axis]
    if (cfg.out_size[axis] - 1) * stride + cfg.spans[axis] <= size:
        return kernel
    return tirx.min(const(kernel), tirx.floordiv(size - place * stride + (step - 1), step))


def _taps_inside(cfg: WindowConfig, axis: int, place: Expr) -> tuple[Index, Index]:
    """First tap inside the image for output row or column ``place``, and the number of taps."""
    kernel, size, step = cfg.kernel[axis], cfg.in_size[axis], cfg.dilation[axis]
    above = const(cfg.padding[axis]) - place * cfg.stride[axis]
    low = tirx.max(const(0), tirx.floordiv(above + (step - 1), step))
    end = tirx.min(const(kernel), tirx.floordiv(above + (size + step - 1), step))
    return low, tirx.max(const(0), end - low)


# --- the template ---------------------------------------------------------------------------------

WORTH_THREADS = 500_000  # multiply-adds that take about as long as waking another core


def write_window(
    cfg: WindowConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """The loop nest of one (fused) window reduction.

    ``operands`` are data, the weight if there is one, and operands of the epilogue.
    """
    machine = machine.summing(str(operands[0].dtype))
    nest = _Nest(
        cfg,
        tile_runs(cfg.out_size[1], _tile_pixels(cfg, machine), partial(reads_of_tile, cfg)),
        operands,
        epilogue,
        # by llvm-mca this makes borders faster; on x86 it does not, and doubles the compile time
        peel=machine.broadcast_operand and cfg.kind == "depthwise",
    )
    height, width = cfg.out_size

    def rows(n: Expr, b: Expr, first: Index, count: Index) -> tirx.Stmt:
        return span(first, count, lambda y: nest.row(n, b, y), "y")

    work = cfg.blocks * height * width * cfg.lanes * prod(cfg.kernel)
    if machine.threads == 1 or work < WORTH_THREADS:
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
    stride, dilation, left = cfg.stride[1], cfg.dilation[1], cfg.padding[1]
    taps: dict[int, list[tuple[int, int]]] = {}
    for p in range(width):
        for kx in range(cfg.kernel[1]):
            column = p * stride + kx * dilation
            if 0 <= start * stride - left + column < cfg.in_size[1]:
                taps.setdefault(column, []).append((p, kx))
    return tuple((column, tuple(taps[column])) for column in sorted(taps))


@dataclass(frozen=True)
class _Nest:
    """Writes the rows of one window reduction."""

    cfg: WindowConfig
    runs: list[TileRun[Reads]]
    operands: tuple[tirx.Buffer, ...]
    epilogue: Epilogue
    peel: bool

    def row(self, n: Expr, b: Expr, y: Expr) -> tirx.Stmt:
        """One output row; its kernel rows are unrolled if all of them lie in the image.

        With ``peel``, kernel rows at the border are unrolled too.
        """
        runs = row_runs(self.cfg)
        first = [run for run in runs if run.count == self.cfg.kernel[0] or self.peel]
        if not _unrolls_rows(self.cfg) or len(first) > MOST_RUNS:
            first = []

        def tiles(low: Index, count: Index) -> tirx.Stmt:
            return self._tiles((n, b, y), low, count)

        if len(first) == len(runs):
            last = first.pop(0)
            body = tiles(last.low, last.count)
        else:
            body = tiles(*_taps_inside(self.cfg, 0, y))
        for run in first:
            inside = tirx.all(y >= run.start, y < run.end)
            body = tirx.IfThenElse(inside, tiles(run.low, run.count), body)
        return body

    def _tiles(self, row: tuple[Expr, ...], low: Index, count: Index) -> tirx.Stmt:
        """All tiles of a row; unfenced, LLVM would mix them, spill, and store single numbers."""
        tiles = fenced_span if self.cfg.kind == "depthwise" else span

        def tile(t: Expr, run: TileRun[Reads]) -> tirx.Stmt:
            return self._tile(row, t * run.width + run.start, run, (low, count))

        return block([tiles(0, run.count, partial(tile, run=run), "tile") for run in self.runs])

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
