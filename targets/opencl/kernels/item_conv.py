"""Convolution on a GPU without local memory of its own: every work-item computes a tile alone.

for item in work-items:                          # neighbours in a row are neighbours here
  acc[pixels][lanes] = 0                         # pixels of one row, one block of channels
  for ic_block, ky, kx:
    d[pixels][lanes] = data, or 0 outside the image
    acc += d * weight                            # all items of a group read the same weights
  out = epilogue(acc)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.cycles import Step
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.layers import taken
from tvm_stretch.targets.kernels.loops import (
    UNROLLED,
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
from tvm_stretch.targets.kernels.machine import VectorMachine

from .base import GpuConvConfig
from .groups import chosen, launch, when
from .machine import GpuMachine

_ITEM_PIXELS = (4, 2, 8, 1)  # 4 are enough to use weights more than once
_ITEMS = (1.0, 0.5, 2.0)  # of a group, in those of a group that shares nothing


@dataclass(frozen=True, kw_only=True)
class ItemConvConfig(GpuConvConfig):
    """A convolution whose work-items share nothing; ``pixels`` and ``oc_blocks`` are an item's."""

    group_items: int = 64  # work-items of a group

    template: ClassVar[str] = "item_conv"

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        """Cycles of the same tiles on a core."""
        return ConvConfig.cycles(self, machine, step)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return _Nest(self, fused.operands, fused.epilogue).launch()


class _Nest:
    """The kernel of a convolution; an item computes the pixels of a tile, which begins at a place.

    A place is the image, the group of output channels, the row, and the first column.
    """

    def __init__(
        self, cfg: ItemConvConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
    ) -> None:
        self.cfg, self.epilogue, (self.data, self.weight) = cfg, epilogue, operands[:2]
        self.sums, self.overhangs = str(epilogue.anchor.dtype), cfg.out_size[1] % cfg.pixels != 0
        kept = {"scope": "local", "dtype": self.sums}
        self.acc = Accumulators(cfg.pixels, cfg.oc_blocks, cfg.lanes, **kept)
        self.values = scratch("d", cfg.pixels * cfg.data_block, **kept)

    def launch(self) -> tirx.Stmt:
        """The kernel."""
        cfg = self.cfg
        height, width = cfg.out_size
        extents = (cfg.batch, cfg.out_groups, height, -(-width // cfg.pixels))
        total = prod(extents)
        items = min(cfg.group_items, total)

        def one(group: Expr, number: Expr) -> tirx.Stmt:
            place = group * items + number
            fits = None if total % items == 0 else place < total
            return when(fits, self._item(*unravelled(place, extents)))

        return launch(-(-total // items), items, one)

    def _item(self, n: Expr, g: Expr, y: Expr, tile: Expr) -> tirx.Stmt:
        cfg, place = self.cfg, (n, g, y, tile * self.cfg.pixels)

        def taps(ic: Expr) -> tirx.Stmt:
            return loop(
                cfg.kernel[0],
                lambda ky: loop(cfg.kernel[1], lambda kx: self._reduce(place, ic, ky, kx), "kx"),
                "ky",
            )

        nest = loop(cfg.reduce_blocks, taps, "ic")
        pixels = (self._finish(place, p) for p in range(cfg.pixels))
        return within([*self.acc.buffers, self.values], *self.acc.start(), nest, *pixels)

    def _reduce(self, place: tuple[Expr, ...], ic: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
        """Add the products of a tap of a block of input channels."""
        cfg, acc, values, group = self.cfg, self.acc, self.values, place[1]

        def multiply(ii: Expr) -> tirx.Stmt:
            def product(p: int, o: int, v: Expr) -> Expr:
                factor = load(self.weight, group, ic, ky, kx, ii, v + o * cfg.lanes)
                return load(values, ii + p * cfg.data_block) * as_type(factor, self.sums)

            return block(*acc.add(product))

        reads = (self._read(place, ic, ky, kx, p) for p in range(cfg.pixels))
        return block(*reads, loop(cfg.data_block, multiply, "ii", UNROLLED))

    def _read(self, place: tuple[Expr, ...], ic: Expr, ky: Expr, kx: Expr, p: int) -> tirx.Stmt:
        """Read the channels of a pixel, zeros outside the image."""
        cfg, (n, g, y, first) = self.cfg, place
        # A last merged group that is partly empty meets zero weights; it must not read past.
        channel = const(cfg.first_block(g * cfg.oc_blocks)) + ic
        if cfg.groups > cfg.merged_groups and cfg.in_blocks % cfg.reduce_blocks:
            channel = tirx.min(channel, const(cfg.in_blocks - 1))
        row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
        column = (first + p) * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
        inside = _inside(cfg, row, column, self.overhangs)

        def value(v: Expr) -> Expr:
            lane = (v,) if cfg.data_block > 1 else ()
            pixel = as_type(load(self.data, n, channel, row, column, *lane), self.sums)
            return chosen(inside, pixel, tirx.const(0, self.sums))

        return lanes(cfg.data_block, lambda v: store(self.values, value(v), v + p * cfg.data_block))

    def _finish(self, place: tuple[Expr, ...], p: int) -> tirx.Stmt:
        cfg, (n, g, y, first) = self.cfg, place

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            return self.epilogue.store((n, g * cfg.oc_blocks + o, y, first + p, v), value)

        inside = first + p < cfg.out_size[1] if self.overhangs else None
        return when(inside, block(*self.acc.for_each(finish, [p])))


def _inside(cfg: ConvConfig, row: Expr, column: Expr, may_overhang: bool = False) -> Expr | None:
    """Whether a pixel lies in the image; None where every pixel does."""
    top, left, bottom, right = cfg.padding
    tests = []
    if top or bottom:
        tests += [row >= 0, row < cfg.in_size[0]]
    if left or right or may_overhang:
        tests += [column >= 0, column < cfg.in_size[1]]
    return tirx.all(*tests) if tests else None


def item_conv_candidates(layer: ConvConfig, gpu: GpuMachine) -> list[ItemConvConfig]:
    """Tiles of items that share nothing, the usual one first."""
    width = layer.out_size[1]
    tiles = dict.fromkeys(min(pixels, width) for pixels in _ITEM_PIXELS)
    groups = dict.fromkeys(
        min(max(1, int(gpu.plain_items * part)), gpu.max_group_items) for part in _ITEMS
    )
    return [
        taken(ItemConvConfig, layer, pixels=pixels, group_items=items)
        for items in groups
        for pixels in tiles
    ]
