"""The kernels of a Winograd convolution on a GPU (`winograd.py`): transforms around products.

A work-item transforms the tiles of one channel, or, where a tile is small, of four: a tile of 6x6
quads would not fit into the registers of most GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.winograd_sums import INPUT, OUTPUT, combine
from tvm_stretch.targets.kernels.fused import Epilogue
from tvm_stretch.targets.kernels.loops import block, f32, load, scratch, store, unravelled, within

from .conv_nest import Products
from .groups import (
    QUAD,
    chosen,
    every,
    finish_quad,
    launch,
    load_quad,
    quads,
    splat,
    store_quad,
    when,
    zeros,
)

if TYPE_CHECKING:
    from .winograd import GroupWinogradConfig

_ITEMS = 64  # of a group that transforms


def write_group_winograd(
    cfg: GroupWinogradConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
) -> tirx.Stmt:
    """Three launches, and what they pass to each other in memory."""
    product = cfg.product
    tiles = product.all_pixels
    planes = scratch("planes", 1, product.in_blocks, tiles, 1, cfg.lanes)
    outputs = product.out_groups * product.width // QUAD
    sums = scratch("sums", cfg.splits, outputs, tiles, QUAD)
    transforms = _Transforms(cfg, operands[0], epilogue, planes, sums)
    products = Products(product, (planes, operands[1]), epilogue, sums)
    return within(
        [planes, sums], [transforms.of_input(), products.launch(), transforms.of_output()]
    )


class _Transforms:
    """The first and the last launch."""

    def __init__(
        self,
        cfg: GroupWinogradConfig,
        data: tirx.Buffer,
        epilogue: Epilogue,
        planes: tirx.Buffer,
        sums: tirx.Buffer,
    ) -> None:
        self.cfg, self.data, self.epilogue = cfg, data, epilogue
        self.planes, self.sums = planes, sums
        self.wide = QUAD if cfg.tile == 2 else 1  # channels of an item

    def _numbers(self, name: str, *shape: int) -> tirx.Buffer:
        """Registers for one number of each channel of an item."""
        if self.wide == QUAD:
            return quads(name, *shape)
        return scratch(name, *shape, scope="local")

    def _times(self, factor: float) -> Expr:
        return f32(factor) if self.wide == 1 else splat(f32(factor))

    def _load(self, buffer: tirx.Buffer, *place: Expr | int) -> Expr:
        return load(buffer, *place) if self.wide == 1 else load_quad(buffer, *place)

    def _launch(self, shape: Sequence[int], body: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """``body`` for each index of ``shape``; neighbours in the last axis are neighbours."""
        total = prod(shape)

        def item(group: Expr, item: Expr) -> tirx.Stmt:
            number = group * _ITEMS + item
            exists = None if total % _ITEMS == 0 else number < total
            return when(exists, body(*unravelled(number, shape)))

        return launch(-(-total // _ITEMS), _ITEMS, item)

    # --- the image ---

    def of_input(self) -> tirx.Stmt:
        """``B^T d B`` of every tile."""
        cfg = self.cfg
        rows, columns = cfg.tiles
        shape = (cfg.parts, cfg.in_blocks, cfg.batch, rows, columns, cfg.lanes // self.wide)
        return self._launch(shape, self._input_tile)

    def _input_tile(
        self, part: Expr, b: Expr, n: Expr, row: Expr, column: Expr, place: Expr
    ) -> tirx.Stmt:
        cfg, a, matrix = self.cfg, self.cfg.alpha, INPUT[self.cfg.tile]
        lane = place * self.wide
        read, half = self._numbers("read", a), self._numbers("half", a, a)
        channel = cfg.existing_block(part * cfg.in_blocks + b)
        top, left = row * cfg.tile - cfg.padding[0], column * cfg.tile - cfg.padding[1]
        steps: list[tirx.Stmt] = []
        for j in range(a):
            for i in range(a):
                steps.append(store(read, self._pixel(n, channel, top + i, left + j, lane), i))
            for r in range(a):
                value = combine(matrix[r], [load(read, i) for i in range(a)], self._times)
                steps.append(store(half, value, r, j))
        tile = (n * cfg.tiles[0] + row) * cfg.tiles[1] + column
        for r in range(a):
            for s in range(a):
                value = combine(matrix[s], [load(half, r, j) for j in range(a)], self._times)
                plane = (part * a**2 + (r * a + s)) * cfg.in_blocks + b
                steps.append(self._store(self.planes, value, 0, plane, tile, 0, lane))
        return within([read, half], steps)

    def _store(self, buffer: tirx.Buffer, value: Expr, *place: Expr | int) -> tirx.Stmt:
        return (store if self.wide == 1 else store_quad)(buffer, value, *place)

    def _pixel(self, n: Expr, channel: Expr, row: Expr, column: Expr, lane: Expr) -> Expr:
        """Pixels of the image; zeros outside it."""
        inside = every(self._inside(0, row), self._inside(1, column))
        nothing = f32(0.0) if self.wide == 1 else zeros("float32")
        return chosen(inside, self._load(self.data, n, channel, row, column, lane), nothing)

    def _inside(self, axis: int, place: Expr) -> Expr | None:
        """Whether a row or column is one of the image; None where all are."""
        cfg = self.cfg
        before, size = cfg.padding[axis], cfg.in_size[axis]
        if before == 0 and cfg.tiles[axis] * cfg.tile + 2 <= size:
            return None
        return tirx.all(place >= 0, place < size)

    # --- results ---

    def of_output(self) -> tirx.Stmt:
        """``A^T sums A`` of every tile, and the epilogue."""
        cfg = self.cfg
        rows, columns = cfg.tiles
        shape = (cfg.parts, cfg.out_blocks, cfg.batch, rows, columns, cfg.lanes // self.wide)
        return self._launch(shape, self._output_tile)

    def _output_tile(
        self, part: Expr, o: Expr, n: Expr, row: Expr, column: Expr, place: Expr
    ) -> tirx.Stmt:
        cfg, a, m, matrix = self.cfg, self.cfg.alpha, self.cfg.tile, OUTPUT[self.cfg.tile]
        lane = place * self.wide
        read, half = self._numbers("read", a), self._numbers("half", m, a)
        tile = (n * cfg.tiles[0] + row) * cfg.tiles[1] + column
        steps: list[tirx.Stmt] = []
        for s in range(a):
            for r in range(a):
                plane = part * a**2 + (r * a + s)
                quad = (plane * cfg.out_blocks + o) * (cfg.lanes // QUAD) + lane // QUAD
                steps.append(store(read, self._sum(quad, tile, lane % QUAD), r))
            for i in range(m):
                value = combine(matrix[i], [load(read, r) for r in range(a)], self._times)
                steps.append(store(half, value, i, s))
        channel = part * cfg.out_blocks + o
        for i in range(m):
            for j in range(m):
                value = combine(matrix[j], [load(half, i, s) for s in range(a)], self._times)
                y, x = row * m + i, column * m + j
                steps.append(self._finish((n, channel, y, x, lane), value, f"result{i}_{j}"))
        last_part = cfg.parts * cfg.out_blocks > cfg.blocks[1]
        return when(channel < cfg.blocks[1] if last_part else None, within([read, half], steps))

    def _sum(self, quad: Expr, tile: Expr, lane: Expr) -> Expr:
        """The products of a plane, of all parts of the sums."""
        value = self._load(self.sums, 0, quad, tile, lane)
        for split in range(1, self.cfg.splits):
            value = value + self._load(self.sums, split, quad, tile, lane)
        return value

    def _finish(self, place: tuple[Expr, ...], value: Expr, name: str) -> tirx.Stmt:
        """Store an output that lies in the image."""
        height, width = self.cfg.out_size
        _, _, y, x, _ = place
        rows = y < height if height % self.cfg.tile else None
        columns = x < width if width % self.cfg.tile else None
        if self.wide == 1:
            stores = self.epilogue.store(place, value)
        else:
            stores = block(finish_quad(self.epilogue, place, value, name))
        return when(every(rows, columns), stores)
