"""Convolution on a GPU without local memory of its own: every work-item computes a tile alone.

for item in work-items:                          # neighbours in a row are neighbours here
  acc[pixels][lanes] = 0                         # pixels of one row, one block of channels
  for ic_block, ky, kx:
    d[pixels][lanes] = data, or 0 outside the image
    acc += d * weight                            # all items of a group read the same weights
  out = epilogue(acc)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.cycles import Step
from tvm_stretch.targets.kernels.accumulators import Accumulators
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
from .groups import launch, when
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
        return write_item_conv(self, fused.operands, fused.epilogue)


def write_item_conv(
    cfg: ItemConvConfig, operands: tuple[tirx.Buffer, ...], epilogue: Epilogue
) -> tirx.Stmt:
    """The kernel of a convolution."""
    data, weight = operands[:2]
    height, width = cfg.out_size
    tiles = -(-width // cfg.pixels)

    def item(indices: Sequence[Expr]) -> tirx.Stmt:
        n, g, y, tile = indices
        first_column = tile * cfg.pixels
        sums = str(epilogue.anchor.dtype)
        acc = Accumulators(cfg.pixels, cfg.oc_blocks, cfg.lanes, scope="local", dtype=sums)
        values = scratch("d", cfg.pixels * cfg.data_block, scope="local", dtype=sums)
        first_block = const(cfg.first_block(g * cfg.oc_blocks))

        def reduce(ic: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
            # A last merged group that is partly empty meets zero weights; it must not read past.
            channel = first_block + ic
            if cfg.groups > cfg.merged_groups and cfg.in_blocks % cfg.reduce_blocks:
                channel = tirx.min(channel, const(cfg.in_blocks - 1))
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]

            def read(p: int) -> tirx.Stmt:
                column = (first_column + p) * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
                inside = _inside(cfg, row, column, width % cfg.pixels != 0)

                def value(v: Expr) -> Expr:
                    place = (n, channel, row, column)
                    pixel = load(data, *place, v) if cfg.data_block > 1 else load(data, *place)
                    pixel = as_type(pixel, sums)
                    zero = tirx.const(0, sums)
                    return pixel if inside is None else tirx.if_then_else(inside, pixel, zero)

                return lanes(
                    cfg.data_block, lambda v: store(values, value(v), v + p * cfg.data_block)
                )

            def multiply(ii: Expr) -> tirx.Stmt:
                return block(
                    acc.add(
                        lambda p, o, v: (
                            load(values, ii + p * cfg.data_block)
                            * as_type(load(weight, g, ic, ky, kx, ii, v + o * cfg.lanes), sums)
                        )
                    )
                )

            return block(
                [
                    *(read(p) for p in range(cfg.pixels)),
                    loop(cfg.data_block, multiply, "ii", UNROLLED),
                ]
            )

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            place = (n, g * cfg.oc_blocks + o, y, first_column + p, v)
            return epilogue.store(place, value)

        def finish_pixel(p: int) -> tirx.Stmt:
            stores = block(acc.each(finish, [p]))
            if width % cfg.pixels == 0:
                return stores
            return tirx.IfThenElse(first_column + p < width, stores, None)

        nest = loop(
            cfg.reduce_blocks,
            lambda ic: loop(
                cfg.kernel[0],
                lambda ky: loop(cfg.kernel[1], lambda kx: reduce(ic, ky, kx), "kx"),
                "ky",
            ),
            "ic",
        )
        return within(
            [*acc.buffers, values],
            [
                *acc.start(),
                nest,
                *(finish_pixel(p) for p in range(cfg.pixels)),
            ],
        )

    extents = (cfg.batch, cfg.out_groups, height, tiles)
    total = prod(extents)
    items = min(cfg.group_items, total)

    def one(group: Expr, number: Expr) -> tirx.Stmt:
        place = group * items + number
        return when(None if total % items == 0 else place < total, item(unravelled(place, extents)))

    return launch(-(-total // items), items, one)


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
