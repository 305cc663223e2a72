"""The kernel of a depthwise convolution and the 1x1 convolution after it (`pair.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.targets.kernels.fused import FusedKernel, elementwise
from tvm_stretch.targets.kernels.loops import (
    as_type,
    block,
    const,
    lanes,
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
    element,
    finish_quad,
    launch,
    load_quad,
    quads,
    splat,
    store_quad,
    when,
    zeros,
)
from .window import Window

if TYPE_CHECKING:
    from .pair import GroupPairConfig


def inner_kernel(fused: FusedKernel) -> FusedKernel:
    """The depthwise convolution of a joined kernel, with its own epilogue."""
    first = next(i for i, one in enumerate(fused.blocks) if ANNOTATION in one.annotations)
    between = fused.blocks[first + 1 : -1]
    anchor = fused.blocks[first]
    epilogue = elementwise(between, anchor.writes[0].source)
    assert epilogue is not None  # `passes/join_depthwise.py` looked
    config, blocks = str(anchor.annotations[ANNOTATION]), fused.blocks[: first + 1]
    return FusedKernel(fused.func, config, fused.operands[:-1], blocks, epilogue)


class PairNest:
    """The launch that computes both convolutions."""

    def __init__(self, cfg: GroupPairConfig, inner: FusedKernel, fused: FusedKernel) -> None:
        self.cfg, self.inner, self.epilogue = cfg, inner.epilogue, fused.epilogue
        self.weight = fused.operands[-1]
        self.sums = str(fused.epilogue.anchor.dtype)
        self.window = Window(cfg.window.of_one_pixel(), inner.operands, inner.epilogue)
        self.tile = quads("tile", cfg.local_quads, dtype=self.sums, scope="shared")
        self.acc = quads("acc", cfg.pixels, dtype=self.sums)
        self.factors = quads("factors", QUAD, dtype=self.sums)
        self.pixel = quads("pixel", 1, dtype=self.sums)

    def launch(self) -> tirx.Stmt:
        """The work-groups: one for each tile of pixels and column of channels."""
        return launch(self.cfg.tiles * self.cfg.columns, self.cfg.group_items, self._group)

    def _group(self, group: Expr, item: Expr) -> tirx.Stmt:
        cfg = self.cfg
        column, tile = unravelled(group, (cfg.columns, cfg.tiles))
        down = cfg.group_pixels // cfg.pixels
        slice_, row, across = unravelled(item, (cfg.slices, down, cfg.column_quads))
        quad = column * cfg.column_quads + across
        first = row * cfg.pixels
        buffers = [self.tile, self.acc, self.factors, self.pixel]
        ends = (
            self._add_slices(tile, column, slice_, first, across, item)
            if cfg.slices > 1
            else self._finish(tile, quad, first)
        )
        return within(
            [*buffers, *self.window.buffers],
            self._turns(cfg.quads * cfg.group_pixels, item, lambda n: self._between(n, tile)),
            barrier(),
            *(store(self.acc, zeros(self.sums), i) for i in range(cfg.pixels)),
            self._multiply(slice_, first, quad),
            *ends,
        )

    def _turns(self, total: int, item: Expr, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body(number)`` for ``total`` numbers, which the items take in turns."""
        items = self.cfg.group_items

        def turn(number: Expr) -> tirx.Stmt:
            one = number * items + item
            return when(one < total if total % items else None, body(one))

        return loop(-(-total // items), turn, "turn")

    # --- the depthwise convolution ---

    def _between(self, number: Expr, tile: Expr) -> tirx.Stmt:
        """One quad of its result, of one pixel, into local memory."""
        cfg, window = self.cfg, self.cfg.window
        quad, place = unravelled(number, (cfg.quads, cfg.group_pixels))
        pixel = tile * cfg.group_pixels + place
        n, y, x = unravelled(pixel, (window.batch, *window.out_size))
        each = window.lanes // QUAD
        where = n, quad // each, quad % each * QUAD
        dtype = str(self.inner.out.dtype)
        done = scratch("between", QUAD, scope="local", dtype=dtype)
        sums = scratch("window_sums", QUAD, scope="local", dtype=dtype)

        def lane(v: Expr) -> tirx.Stmt:
            at = (where[0], where[1], y, x, where[2] + v)
            return store(done, self.inner.value_at(at, load(sums, v)), v)

        body = within(
            [sums, done],
            *self.window.sums(where, y, x),
            store_quad(sums, load(self.window.acc, 0, 0), 0),
            lanes(QUAD, lane),
            store(self.tile, as_type(load_quad(done, 0), self.sums), number),
        )
        return when(self._exists(pixel), body)

    def _exists(self, pixel: Expr) -> Expr | None:
        cfg = self.cfg
        overhangs = cfg.tiles * cfg.group_pixels > cfg.conv.all_pixels
        return pixel < cfg.conv.all_pixels if overhangs else None

    # --- the product ---

    def _multiply(self, slice_: Expr, first: Expr, quad: Expr) -> tirx.Stmt:
        """Add the products of a slice's quads to the sums."""
        cfg, width = self.cfg, self.cfg.conv.width // QUAD

        def step(number: Expr) -> tirx.Stmt:
            k = slice_ * cfg.steps + number
            statements = []
            for i in range(QUAD):
                place = cfg.conv.factor_at(quad // width, k * QUAD + i, quad % width * QUAD)
                statements.append(store(self.factors, load_quad(self.weight, *place), i))
            for p in range(cfg.pixels):
                value = load(self.tile, k * cfg.group_pixels + first + p)
                statements.append(store(self.pixel, value, 0))
                statements += [
                    store(
                        self.acc,
                        load(self.acc, p)
                        + splat(element(load(self.pixel, 0), i)) * load(self.factors, i),
                        p,
                    )
                    for i in range(QUAD)
                ]
            return block(*statements)

        ends = cfg.steps * cfg.slices > cfg.quads
        left = tirx.min(const(cfg.steps), const(cfg.quads) - slice_ * cfg.steps)
        return loop(left if ends else cfg.steps, step, "step")

    # --- results ---

    def _finish(self, tile: Expr, quad: Expr, first: Expr) -> list[tirx.Stmt]:
        """Store the sums of an item that has them all."""
        cfg = self.cfg
        return [
            self._out(tile * cfg.group_pixels + first + p, quad, load(self.acc, p), f"result{p}")
            for p in range(cfg.pixels)
        ]

    def _add_slices(
        self, tile: Expr, column: Expr, slice_: Expr, first: Expr, across: Expr, item: Expr
    ) -> list[tirx.Stmt]:
        """Add the sums of the slices, in the local memory of the depthwise result."""
        cfg = self.cfg
        shape = (cfg.slices, cfg.group_pixels, cfg.column_quads)
        part = cfg.group_pixels * cfg.column_quads

        def give(p: int) -> tirx.Stmt:
            place = (slice_ * shape[1] + first + p) * shape[2] + across
            return store(self.tile, load(self.acc, p), place)

        def take(number: Expr) -> tirx.Stmt:
            place, quad = unravelled(number, shape[1:])
            value = load(self.tile, number)
            for other in range(1, cfg.slices):
                value = value + load(self.tile, number + other * part)
            pixel = tile * cfg.group_pixels + place
            return self._out(pixel, column * cfg.column_quads + quad, value, "result")

        return [
            barrier(),
            *map(give, range(cfg.pixels)),
            barrier(),
            self._turns(part, item, take),
        ]

    def _out(self, pixel: Expr, quad: Expr, value: Expr, name: str) -> tirx.Stmt:
        place = self.cfg.conv.output(pixel, quad)
        return when(self._exists(pixel), block(*finish_quad(self.epilogue, place, value, name)))
