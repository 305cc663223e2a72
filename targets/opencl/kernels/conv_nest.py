"""The kernels of a convolution on a GPU: slabs in local memory, sums in registers (`conv.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import Epilogue
from tvm_stretch.targets.kernels.loops import (
    as_type,
    block,
    const,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)

from .groups import (
    QUAD,
    barrier,
    chosen,
    element,
    every,
    finish_quad,
    launch,
    load_quad,
    made_of,
    quads,
    shares,
    splat,
    store_quad,
    when,
    zeros,
)

if TYPE_CHECKING:
    from .conv import GroupConvConfig


def write_group_conv(
    cfg: GroupConvConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
) -> tirx.Stmt:
    """The kernels of a convolution: one launch, or two."""
    if cfg.splits == 1:
        return Products(cfg, operands, epilogue, None).launch()
    outputs = cfg.out_groups * cfg.width // QUAD
    sums = str(epilogue.anchor.dtype)
    parts = scratch("parts", cfg.splits, outputs, cfg.all_pixels, QUAD, dtype=sums)
    products = Products(cfg, operands, epilogue, parts).launch()
    return within([parts], products, _add_splits(cfg, epilogue, parts))


_ADDING_ITEMS = 64


def _add_splits(cfg: GroupConvConfig, epilogue: Epilogue, parts: tirx.Buffer) -> tirx.Stmt:
    total = cfg.out_blocks * (cfg.lanes // QUAD) * cfg.all_pixels

    def item(group: Expr, item: Expr) -> tirx.Stmt:
        number = group * _ADDING_ITEMS + item
        quad, pixel = unravelled(number, (total // cfg.all_pixels, cfg.all_pixels))
        value = load_quad(parts, 0, quad, pixel, 0)
        for split in range(1, cfg.splits):
            value = value + load_quad(parts, split, quad, pixel, 0)
        body = block(*finish_quad(epilogue, cfg.output(pixel, quad), value, "result"))
        return when(None if total % _ADDING_ITEMS == 0 else number < total, body)

    return launch(-(-total // _ADDING_ITEMS), _ADDING_ITEMS, item)


class Products:
    """The launch that multiplies; ``parts`` takes the sums if they are split."""

    def __init__(
        self,
        cfg: GroupConvConfig,
        operands: tuple[tirx.Buffer, ...],
        epilogue: Epilogue,
        parts: tirx.Buffer | None,
    ) -> None:
        self.cfg, self.epilogue, self.parts = cfg, epilogue, parts
        self.data, self.weight = operands[:2]
        self.sums = str(epilogue.anchor.dtype)
        items = cfg.group_items
        pixels, columns = cfg.slab * cfg.group_pixels, cfg.slab * cfg.width
        self.image = quads("image", 2, pixels, dtype=self.sums, scope="shared")
        self.factors = quads("factors", 2, columns, dtype=self.sums, scope="shared")
        self.next_image = quads("next_image", -(-pixels // items), dtype=self.sums)
        self.next_factors = quads("next_factors", -(-columns // items), dtype=self.sums)
        self.acc = quads("acc", cfg.pixels * cfg.item_quads, dtype=self.sums)
        self.a = quads("a", cfg.pixels, dtype=self.sums)
        self.b = quads("b", cfg.item_quads, dtype=self.sums)

    def launch(self) -> tirx.Stmt:
        """The whole kernel: a loop over work-groups, each with its items."""
        cfg = self.cfg
        return launch(cfg.splits * cfg.out_groups * cfg.tiles, cfg.group_items, self._group)

    def _group(self, group: Expr, item: Expr) -> tirx.Stmt:
        cfg = self.cfg
        split, column, tile = unravelled(group, (cfg.splits, cfg.out_groups, cfg.tiles))
        slice_, across, down = unravelled(item, (cfg.slices, cfg.items[1], cfg.items[0]))
        first = split * (cfg.slabs * cfg.slab)

        def step(number: Expr) -> tirx.Stmt:
            ahead = block(*self._fetch(item, column, tile, first + (number + 1) * cfg.slab, first))
            keep = block(*self._keep(item, (number + 1) % 2))
            more = number + 1 < cfg.slabs
            return block(
                when(more, ahead),
                self._multiply(number % 2, slice_, across, down),
                when(more, keep),
                barrier(),
            )

        buffers = [self.image, self.factors, self.next_image, self.next_factors]
        return within(
            [*buffers, self.acc, self.a, self.b],
            *(store(self.acc, zeros(self.sums), i) for i in range(int(self.acc.shape[0]))),
            *self._fetch(item, column, tile, first, first),
            *self._keep(item, const(0)),
            barrier(),
            loop(cfg.slabs, step, "slab"),
            self._finish(split, column, tile, slice_, across, down),
        )

    # --- from memory to registers ---

    def _fetch(
        self, item: Expr, column: Expr, tile: Expr, start: Expr, first: Expr
    ) -> list[tirx.Stmt]:
        """Registers take this item's share of the slab that starts at quad ``start``."""
        cfg = self.cfg
        ends = cfg.splits * cfg.slabs * cfg.slab * QUAD > cfg.rows
        whole = cfg.width // QUAD

        def pixels(turn: int, number: Expr) -> tirx.Stmt:
            quad, pixel = start + number // cfg.group_pixels, number % cfg.group_pixels
            return store(
                self.next_image,
                self._pixel(quad, tile * cfg.group_pixels + pixel, column, ends),
                turn,
            )

        def columns(turn: int, number: Expr) -> tirx.Stmt:
            row, place = start * QUAD + number // whole, number % whole
            value = load_quad(self.weight, *cfg.factor_at(column, row, place * QUAD))
            value = chosen(row < cfg.rows if ends else None, value, zeros(self.sums))
            return store(self.next_factors, value, turn)

        items = cfg.group_items
        return [
            *shares(cfg.slab * cfg.group_pixels, items, item, pixels),
            *shares(cfg.slab * cfg.width, items, item, columns),
        ]

    def _pixel(self, quad: Expr, pixel: Expr, column: Expr, ends: bool) -> Expr:
        """Four numbers of the image, or zeros outside it."""
        cfg = self.cfg
        overhangs = cfg.tiles * cfg.group_pixels > cfg.all_pixels
        exists = pixel < cfg.all_pixels if overhangs else None
        n, y, x = unravelled(pixel, (cfg.batch, *cfg.out_size))
        if cfg.data_block == 1:
            rows = [quad * QUAD + i for i in range(QUAD)]
            return made_of([self._number(row, exists, n, y, x, ends) for row in rows], self.sums)
        channel, ky, kx, part = unravelled(
            quad, (cfg.reduce_blocks, *cfg.kernel, cfg.data_block // QUAD)
        )
        in_rows = quad < cfg.rows // QUAD if ends else None
        channel = channel + const(cfg.first_block(column * cfg.oc_blocks))
        if cfg.groups > cfg.merged_groups and cfg.in_blocks % cfg.reduce_blocks:
            # A last merged group that is partly empty meets zero weights; nothing is read past it.
            channel = tirx.min(channel, const(cfg.in_blocks - 1))
        row, place, inside = self._place(y, x, ky, kx)
        at = cfg.read_at(n, channel, row, place, part * QUAD)
        value = as_type(load_quad(self.data, *at), self.sums)
        return chosen(every(in_rows, exists, inside), value, zeros(self.sums))

    def _number(
        self, row: Expr, exists: Expr | None, n: Expr, y: Expr, x: Expr, ends: bool
    ) -> Expr:
        """One number of a plain image."""
        cfg = self.cfg
        channel, ky, kx = unravelled(row, (cfg.reduce_blocks, *cfg.kernel))
        in_rows = row < cfg.rows if ends else None
        at, place, inside = self._place(y, x, ky, kx)
        value = as_type(load(self.data, n, channel, at, place), self.sums)
        return chosen(every(in_rows, exists, inside), value, tirx.const(0, self.sums))

    def _place(self, y: Expr, x: Expr, ky: Expr, kx: Expr) -> tuple[Expr, Expr, Expr | None]:
        """Row and column of the image under a tap, and whether they are in it."""
        cfg = self.cfg
        row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
        column = x * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
        top, left, bottom, right = cfg.padding
        rows = tirx.all(row >= 0, row < cfg.in_size[0]) if top or bottom else None
        columns = tirx.all(column >= 0, column < cfg.in_size[1]) if left or right else None
        return row, column, every(rows, columns)

    # --- local memory ---

    def _keep(self, item: Expr, half: Expr) -> list[tirx.Stmt]:
        """Registers of `_fetch` into one half of local memory."""
        cfg = self.cfg

        def into(buffer: tirx.Buffer, held: tirx.Buffer) -> Callable[[int, Expr], tirx.Stmt]:
            return lambda turn, number: store(buffer, load(held, turn), half, number)

        items = cfg.group_items
        return [
            *shares(cfg.slab * cfg.group_pixels, items, item, into(self.image, self.next_image)),
            *shares(cfg.slab * cfg.width, items, item, into(self.factors, self.next_factors)),
        ]

    def _multiply(self, half: Expr, slice_: Expr, across: Expr, down: Expr) -> tirx.Stmt:
        """Add the products of a slab to the sums."""
        cfg, wide = self.cfg, self.cfg.item_quads
        whole = cfg.width // QUAD

        def quad(step: Expr) -> tirx.Stmt:
            place = slice_ * cfg.depth + step
            pixels = [
                store(
                    self.a,
                    load(self.image, half, place * cfg.group_pixels + down + i * cfg.items[0]),
                    i,
                )
                for i in range(cfg.pixels)
            ]
            stmts = pixels
            for number in range(QUAD):
                row = (place * QUAD + number) * whole + across
                stmts += [
                    store(self.b, load(self.factors, half, row + j * cfg.items[1]), j)
                    for j in range(wide)
                ]
                stmts += [
                    store(
                        self.acc,
                        load(self.acc, i * wide + j)
                        + splat(element(load(self.a, i), number)) * load(self.b, j),
                        i * wide + j,
                    )
                    for i in range(cfg.pixels)
                    for j in range(wide)
                ]
            return block(*stmts)

        return loop(cfg.depth, quad, "step")

    # --- results ---

    def _finish(
        self, split: Expr, column: Expr, tile: Expr, slice_: Expr, across: Expr, down: Expr
    ) -> tirx.Stmt:
        cfg = self.cfg
        stores = block(
            *(
                s
                for i in range(cfg.pixels)
                for s in self._pixel_out(i, split, column, tile, across, down)
            )
        )
        if cfg.slices == 1:
            return stores
        tile_items = cfg.items[0] * cfg.items[1]
        sums = int(self.acc.shape[0])
        others = quads("others", cfg.slices - 1, sums, tile_items, dtype=self.sums, scope="shared")
        item = across * cfg.items[0] + down
        give = block(*(store(others, load(self.acc, i), slice_ - 1, i, item) for i in range(sums)))

        def take(other: int) -> list[tirx.Stmt]:
            return [
                store(self.acc, load(self.acc, i) + load(others, other, i, item), i)
                for i in range(sums)
            ]

        taken = [s for other in range(cfg.slices - 1) for s in take(other)]
        return within(
            [others], when(slice_ > 0, give), barrier(), when(slice_ < 1, block(*taken, stores))
        )

    def _pixel_out(
        self, i: int, split: Expr, column: Expr, tile: Expr, across: Expr, down: Expr
    ) -> list[tirx.Stmt]:
        """Store the sums of one pixel."""
        cfg, wide = self.cfg, self.cfg.item_quads
        pixel = tile * cfg.group_pixels + down + i * cfg.items[0]
        overhangs = cfg.tiles * cfg.group_pixels > cfg.all_pixels
        statements = []
        for j in range(wide):
            quad = column * (cfg.width // QUAD) + j * cfg.items[1] + across
            value = load(self.acc, i * wide + j)
            if self.parts is not None:
                statements.append(store_quad(self.parts, value, split, quad, pixel, 0))
                continue
            place = cfg.output(pixel, quad)
            stores = block(*finish_quad(self.epilogue, place, value, f"result{i}_{j}"))
            exists = (
                quad < cfg.out_blocks * (cfg.lanes // QUAD)
                if cfg.out_groups * cfg.oc_blocks > cfg.out_blocks
                else None
            )
            statements.append(when(exists, stores))
        return [when(pixel < cfg.all_pixels if overhangs else None, block(*statements))]
