"""Depthwise convolution and pooling on a GPU: a work-item keeps a small tile in registers.

for item in work-items:                  # neighbours in a row are neighbours here
  acc[rows][columns] = 0                 # of one quad of channels
  for row of the image under the tile:
    pixels[..] = data, or what changes nothing outside the image      # each loaded once
    acc += pixels * weight               # for all the windows that it is in
  out = epilogue(acc)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, WindowShape, taken
from tvm_stretch.targets.kernels.loops import block, const, load, loop, store, unravelled, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.kernels.window_taps import each_read, least, reads_of_tile, window_count

from .base import Layer, TunedTemplate, in_images
from .groups import QUAD, chosen, every, finish_quad, launch, load_quad, quads, splat, when, zeros
from .machine import GpuMachine

_WRITTEN_OUT = 64
"""Taps of a tile; larger windows are loops of one pixel an item."""

_WINDOW_ITEMS = (128, 64, 256)
_WINDOW_TILES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
_WAVES_A_UNIT = 16  # of work-items that hide each other's waits


@dataclass(frozen=True, kw_only=True)
class GroupWindowConfig(TunedTemplate, WindowConfig):
    """A window and the tile that a work-item computes."""

    tile: tuple[int, int] = (1, 1)  # rows and columns of outputs
    group_items: int = 64  # work-items of a group
    images: int = 0  # operands that are read as images (`GpuMachine.images`)

    template: ClassVar[str] = "group_window"

    @property
    def image_operands(self) -> tuple[int, ...]:
        """Weights first; a pooling has none."""
        return tuple(place for place in (1, 0)[: self.images] if place < self.operands)

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        (height, width), (rows, columns) = self.out_size, self.tile
        return -(-height // rows), -(-width // columns)

    def of_one_pixel(self) -> GroupWindowConfig:
        """The same window for items of one output."""
        return replace(self, tile=(1, 1))

    @property
    def work_items(self) -> int:
        """How many work-items the kernel has."""
        return self.batch * self.blocks * (self.lanes // QUAD) * prod(self.tiles)

    @classmethod
    def configure(
        cls, layer: WindowShape | ConvShape, machine: VectorMachine, block: int
    ) -> list[WindowConfig]:
        """The best tile by the model of GPUs."""
        assert machine.gpu is not None
        plain = WindowConfig.configure(layer, machine, block)
        return [choose_group_window(window, machine.gpu) for window in plain]

    def bare(self) -> WindowConfig:
        return taken(WindowConfig, self)

    @classmethod
    def variants(cls, layer: Layer, gpu: GpuMachine, count: int) -> list[GroupWindowConfig]:
        """Tiles, and the first one with other operands in images."""
        if not isinstance(layer, WindowConfig):
            return []
        first, *others = group_window_candidates(layer, gpu)
        return [first, *in_images(first, gpu), *others]

    def on(self, machine: VectorMachine) -> Template | None:
        return self if machine.gpu is not None else taken(WindowConfig, self)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_group_window(self, fused.operands, fused.epilogue)


def write_group_window(
    cfg: GroupWindowConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
) -> tirx.Stmt:
    """The kernel of a window."""
    window = Window(cfg, operands, epilogue)
    items = min(cfg.group_items, cfg.work_items)

    def item(group: Expr, item: Expr) -> tirx.Stmt:
        number = group * items + item
        fits = cfg.work_items % items == 0
        return when(None if fits else number < cfg.work_items, window.write(number))

    return launch(-(-cfg.work_items // items), items, item)


class Window:
    """The loops of one work-item."""

    def __init__(
        self, cfg: GroupWindowConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
    ) -> None:
        self.cfg, self.operands, self.epilogue = cfg, operands, epilogue
        self.dtype = str(operands[0].dtype)
        self.acc = quads("window", *cfg.tile, dtype=self.dtype)
        self.columns = reads_of_tile(cfg, None, cfg.tile[1])
        self.pixels = quads("pixels", len(self.columns), dtype=self.dtype)
        self.nothing = splat(least(self.dtype)) if cfg.kind == "max" else zeros(self.dtype)

    def write(self, number: Expr) -> tirx.Stmt:
        """The item's statements."""
        cfg = self.cfg
        each = cfg.lanes // QUAD
        n, b, part, row, column = unravelled(number, (cfg.batch, cfg.blocks, each, *cfg.tiles))
        where, y, x = (n, b, part * QUAD), row * cfg.tile[0], column * cfg.tile[1]
        rows, columns = map(range, cfg.tile)
        finish = (s for r in rows for c in columns for s in self._finish(where, y, x, r, c))
        return within(self.buffers, *self.sums(where, y, x), *finish)

    @property
    def buffers(self) -> list[tirx.Buffer]:
        """The registers of an item."""
        return [self.acc, self.pixels]

    def sums(
        self,
        where: tuple[Expr, ...],  # image, block of channels and first lane of a quad
        y: Expr,  # the row
        x: Expr,  # the column
    ) -> list[tirx.Stmt]:
        """`acc` becomes the tile of outputs whose first one is at a row and column."""
        cfg = self.cfg
        rows, columns = map(range, cfg.tile)
        taps = self._loops if prod(cfg.tile) * prod(cfg.kernel) > _WRITTEN_OUT else self._taps
        first = (store(self.acc, self.nothing, r, c) for r in rows for c in columns)
        return [*first, *taps(where, y, x)]

    def _taps(self, where: tuple[Expr, ...], y: Expr, x: Expr) -> list[tirx.Stmt]:
        """Every row of the image under the tile, one after the other."""
        cfg = self.cfg
        top = y * cfg.stride[0] - cfg.padding[0]
        left = x * cfg.stride[1] - cfg.padding[1]

        def row(line: int, readers: tuple[tuple[int, int], ...]) -> list[tirx.Stmt]:
            def fetch(i: int, column: int) -> tirx.Stmt:
                return store(self.pixels, self._pixel(where, top + line, left + column), i)

            def use(i: int, c: int, kx: int) -> list[tirx.Stmt]:
                return [
                    self._add(where, load(self.pixels, i), const(ky), const(kx), r, c)
                    for r, ky in readers
                ]

            return each_read(self.columns, use, fetch)

        return [s for read in reads_of_tile(cfg, None, cfg.tile[0], 0) for s in row(*read)]

    def _loops(self, where: tuple[Expr, ...], y: Expr, x: Expr) -> list[tirx.Stmt]:
        """Every tap of every output, in loops."""
        cfg = self.cfg

        def tap(r: int, c: int, ky: Expr, kx: Expr) -> tirx.Stmt:
            row = (y + r) * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            column = (x + c) * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
            read = store(self.pixels, self._pixel(where, row, column), 0)
            return block(read, self._add(where, load(self.pixels, 0), ky, kx, r, c))

        def taps(r: int, c: int) -> tirx.Stmt:
            return loop(
                cfg.kernel[0],
                lambda ky: loop(cfg.kernel[1], lambda kx: tap(r, c, ky, kx), "kx"),
                "ky",
            )

        return [taps(r, c) for r in range(cfg.tile[0]) for c in range(cfg.tile[1])]

    def _pixel(self, where: tuple[Expr, ...], row: Expr, column: Expr) -> Expr:
        inside = every(self._inside(0, row), self._inside(1, column))
        n, b, lane = where
        return chosen(inside, load_quad(self.operands[0], n, b, row, column, lane), self.nothing)

    def _inside(self, axis: int, place: Expr) -> Expr | None:
        """Whether a row or column is one of the image; None where all are."""
        cfg = self.cfg
        before, size = cfg.padding[axis], cfg.in_size[axis]
        last = (cfg.tiles[axis] * cfg.tile[axis] - 1) * cfg.stride[axis] - before
        if before == 0 and last + cfg.spans[axis] <= size:
            return None
        return tirx.all(place >= 0, place < size)

    def _add(
        self, where: tuple[Expr, ...], pixel: Expr, ky: Expr, kx: Expr, r: int, c: int
    ) -> tirx.Stmt:
        acc = load(self.acc, r, c)
        if self.cfg.kind == "max":
            return store(self.acc, tirx.max(acc, pixel), r, c)
        if self.cfg.kind == "depthwise":
            _, b, lane = where
            pixel = pixel * load_quad(self.operands[1], b, ky, kx, lane)
        return store(self.acc, acc + pixel, r, c)

    def _finish(self, where: tuple[Expr, ...], y: Expr, x: Expr, r: int, c: int) -> list[tirx.Stmt]:
        cfg = self.cfg
        n, b, lane = where
        value = load(self.acc, r, c)
        if cfg.kind == "avg":
            value = value / splat(window_count(cfg, y + r, x + c, self.dtype))
        stores = block(
            *finish_quad(self.epilogue, (n, b, y + r, x + c, lane), value, f"result{r}_{c}")
        )
        rows = y + r < cfg.out_size[0] if cfg.out_size[0] % cfg.tile[0] else None
        columns = x + c < cfg.out_size[1] if cfg.out_size[1] % cfg.tile[1] else None
        return [when(every(rows, columns), stores)]


def choose_group_window(layer: WindowConfig, gpu: GpuMachine) -> GroupWindowConfig:
    """The configuration of a depthwise convolution or pooling: measured best, or of the model."""
    winner: GroupWindowConfig | None = gpu.winners.find(layer)
    return winner or group_window_candidates(layer, gpu)[0]


def group_window_candidates(layer: WindowConfig, gpu: GpuMachine) -> list[GroupWindowConfig]:
    """Tiles and groups to try.

    First the largest tile that leaves enough work-items: its pixels are read once for several
    windows.
    """
    items = [n for n in _WINDOW_ITEMS if n <= gpu.max_group_items] or [gpu.max_group_items]
    enough = gpu.units * gpu.wave * _WAVES_A_UNIT
    candidates = [
        taken(GroupWindowConfig, layer, tile=tile, group_items=each, images=gpu.images)
        for each in items
        for tile in _WINDOW_TILES
        if tile[0] <= max(2, layer.out_size[0]) and tile[1] <= layer.out_size[1]
    ]
    usual = candidates[:2]
    enough_items = [config for config in usual if config.work_items >= enough]
    first = enough_items[-1] if enough_items else usual[0]
    return [first, *(config for config in candidates if config != first)]
