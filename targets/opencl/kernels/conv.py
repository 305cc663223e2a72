"""Convolution on a GPU: a product of matrices whose left side is read from the image as needed.

    pixels x (taps, input channels)   *   (taps, input channels) x output channels

    for each work-group:                        # pixels x output channels, a split of the sums
      for slab of quads of input channels:      # (channel block, tap) after (channel block, tap)
        registers <- image and weights of the next slab
        acc[pixels][channels] += local memory of this slab
        local memory of the next slab <- registers
      acc of the other slices are added         # slices: items with the same tile, other quads
      out = epilogue(acc), or scratch if sums are split among groups
    for each work-item:                         # a second launch, only of split sums
      out = epilogue(sum of the splits)

Taps outside the image are zeros in local memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.conv_features import ConvFeatures
from tvm_stretch.targets.kernels.cycles import Step
from tvm_stretch.targets.kernels.features import EpilogueWork
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.loops import unravelled
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .base import MANY, GpuConvConfig, Layer, image_counts, in_images
from .conv_nest import write_group_conv
from .dense import is_row, row_candidates
from .group_features import GroupConvFeatures
from .groups import QUAD
from .item_conv import item_conv_candidates
from .machine import GpuMachine
from .tiles import TILE_NUMBERS, Sizes, Tile, covers, fits, group_count, tile_cycles, tiles_of


@dataclass(frozen=True, kw_only=True)
class GroupConvConfig(GpuConvConfig):
    """A convolution and how a work-group computes it.

    ``pixels`` are those of one work-item, ``oc_blocks`` those of a group.
    """

    # work-items of a group side by side, over pixels and over output channels
    items: tuple[int, int] = (8, 8)
    depth: int = 4  # quads of input channels (at one tap) that a slice takes from each slab
    slices: int = 1  # sets of such items, each with a part of the sums
    splits: int = 1  # parts of the sums that different groups compute
    images: int = 0  # operands that are read as images (`GpuMachine.images`)

    template: ClassVar[str] = "group_conv"

    @property
    def width(self) -> int:
        """Output channels of a group."""
        return self.oc_blocks * self.lanes

    @property
    def group_pixels(self) -> int:
        """Pixels of a group."""
        return self.items[0] * self.pixels

    @property
    def group_items(self) -> int:
        """Work-items of a group."""
        return self.items[0] * self.items[1] * self.slices

    @property
    def item_quads(self) -> int:
        """Quads of output channels of a work-item."""
        return self.width // (QUAD * self.items[1])

    @property
    def all_pixels(self) -> int:
        """Pixels of all images."""
        return self.batch * self.out_size[0] * self.out_size[1]

    @property
    def tiles(self) -> int:
        """Groups over the pixels."""
        return -(-self.all_pixels // self.group_pixels)

    @property
    def rows(self) -> int:
        """Numbers that a sum adds up: rows of the packed weights."""
        return self.reduce_blocks * self.kernel[0] * self.kernel[1] * self.data_block

    @property
    def slab(self) -> int:
        """Quads of a slab."""
        return self.depth * self.slices

    @property
    def slabs(self) -> int:
        """Slabs of one split."""
        return -(-self.rows // (QUAD * self.slab * self.splits))

    @property
    def local_bytes(self) -> int:
        """What the items of a group share."""
        slab = 2 * self.slab * (self.group_pixels + self.width) * QUAD * 4
        exchanged = (self.slices - 1) * self.group_pixels * self.width * 4
        return slab + exchanged

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        """The best configuration of the templates for GPUs."""
        assert machine.gpu is not None
        if layer.is_depthwise:
            return []
        plain = ConvConfig.smallest(layer, machine, block, exact=False)
        chosen: Any = choose_group_conv(plain, machine.gpu)
        if not layer.exact:
            return [chosen]
        direct = isinstance(chosen, ConvConfig)  # and not Winograd, which is not exact
        configs = [chosen] if direct else [*group_conv_candidates(plain, machine.gpu, 1)]
        return [replace(config, exact=True) for config in configs]  # so are parts of the layer

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        if machine.gpu is None:
            return super().cycles(machine, step)
        return group_conv_cycles(self, machine.gpu) * machine.gpu.cores

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> ConvFeatures:
        """Features for cost models; cores that take over compute it in loops."""
        plain = super().work(epilogue, machine, item)
        if machine.gpu is None:
            return plain
        sizes, tile = Sizes.read(self), tile_of(self)
        cycles = tile_cycles(sizes, tile, machine.gpu)
        groups = group_count(sizes, tile)
        return GroupConvFeatures(
            **vars(plain), work_groups=groups, group_items=self.group_items, **cycles._asdict()
        )

    @property
    def image_operands(self) -> tuple[int, ...]:
        """Weights first; channels of a plain image are no pixels of four numbers."""
        return (1, 0)[: min(self.images, 1 if self.data_block == 1 else 2)]

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_group_conv(self, fused.operands, fused.epilogue)

    def read_at(
        self, n: Expr, channel: Expr, row: Expr, column: Expr, lane: Expr
    ) -> tuple[Expr, ...]:
        """Where a quad of a pixel of the input stands."""
        return n, channel, row, column, lane

    def factor_at(self, column: Expr, row: Expr, place: Expr) -> tuple[int | Expr, ...]:
        """Where a quad of a row of the packed weights stands."""
        return column, 0, 0, 0, row, place

    def output(self, pixel: Expr, quad: Expr) -> list[Expr]:
        """Where a quad of output channels of a pixel stands."""
        n, y, x = unravelled(pixel, (self.batch, *self.out_size))
        each = self.lanes // QUAD
        return [n, quad // each, y, x, quad % each * QUAD]

    @classmethod
    def variants(cls, layer: Layer, gpu: GpuMachine, count: int) -> list[ConvConfig]:
        """The best of each kind of tile, then others.

        The model errs more between kinds than within one: among 8 tiles of different kinds, one
        was within 10 % of the best of all in 99 of 100 measured layers (H100).
        """
        if cls is not GroupConvConfig or not isinstance(layer, ConvConfig):
            return []  # as above, matrices are none
        every = group_conv_candidates(layer, gpu, MANY)
        best = {_kind(config): config for config in reversed(every)}
        first, *others = sorted(best.values(), key=every.index)
        images = in_images(first, gpu) if isinstance(first, cls) else []
        return [first, *images, *others, *(one for one in every if one not in (first, *others))]

    def is_possible(self, gpu: GpuMachine) -> bool:
        tile, layer = tile_of(self), self.bare()
        return (
            all(number in numbers for number, numbers in zip(tile, TILE_NUMBERS, strict=True))
            and tiled(layer, tile, self.images) == self
            and self.images in image_counts(gpu)
            and covers(layer, Sizes.read(layer), tile.across * tile.quads, tile.down * tile.pixels)
            and fits(tile, gpu)
        )

    def in_rows(self) -> GroupMatrixConfig | None:
        """The same product of a plain matrix, if rows consist of whole quads."""
        widths = self.in_channels, self.out_channels
        is_matrix = (self.batch, *self.kernel, *self.stride, self.in_size[1]) == (1,) * 6
        several = self.in_size[0] > 1 and self.groups == 1 and not any(self.padding)
        whole = all(width % self.lanes == 0 for width in widths) and self.data_block == self.lanes
        return taken(GroupMatrixConfig, self) if is_matrix and several and whole else None


@dataclass(frozen=True, kw_only=True)
class GroupMatrixConfig(GroupConvConfig):
    """A dense layer of several rows that reads and writes plain matrices.

    Quads of channels lie side by side in a row of a matrix too, so that no blocks are needed.
    """

    template: ClassVar[str] = "group_matrix"

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        """None: see `GroupConvConfig.in_rows`."""
        return []

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.in_size[0], self.out_channels

    def on(self, machine: VectorMachine) -> Template | None:
        """The template itself; cores that take over need the generic schedule."""
        return self if machine.gpu is not None else None

    def meaning(self, *operands: te.Tensor, sums: str = "") -> te.Tensor:
        """The product as a plain reduction over packed weights."""
        data, weight = operands
        dtype = sums or str(data.dtype)
        k = te.reduce_axis((0, self.in_channels), "k")

        def element(row: Expr, channel: Expr) -> Expr:
            group, row_of = channel // self.width, k // self.data_block
            place = group, row_of, 0, 0, k % self.data_block, channel % self.width
            factor = weight[place]
            return te.sum(data[row, k].astype(dtype) * factor, axis=k)

        return te.compute(self.out_shape, element, name="dense", attrs=self.annotation)

    def read_at(
        self, n: Expr, channel: Expr, row: Expr, column: Expr, lane: Expr
    ) -> tuple[Expr, ...]:
        """Where a quad of a row stands."""
        return row, channel * self.data_block + lane

    def output(self, pixel: Expr, quad: Expr) -> list[Expr]:
        """Where a quad of the result stands."""
        return [pixel, quad * QUAD]


def _kind(config: ConvConfig) -> object:
    """What configurations of one kind have in common; others are kinds by themselves."""
    if not isinstance(config, GroupConvConfig):
        return config
    return config.pixels, config.item_quads, config.slices, config.splits > 1


def choose_group_conv(layer: ConvConfig, gpu: GpuMachine) -> ConvConfig:
    """The configuration of a convolution or dense layer: measured best, or best by the model."""
    winner: ConvConfig | None = gpu.winners.find(layer)
    return winner or group_conv_candidates(layer, gpu, 1)[0]


@lru_cache(maxsize=4096)
def group_conv_candidates(
    layer: ConvConfig, gpu: GpuMachine, count: int = 8
) -> tuple[ConvConfig, ...]:
    """Up to ``count`` configurations of all templates, the fastest by their models first."""
    candidates: list[ConvConfig] = []
    if gpu.local_on_chip and is_row(layer):
        candidates = row_candidates(layer, gpu)
    elif gpu.local_on_chip:
        candidates = [tiled(layer, tile, gpu.images) for tile in tiles_of(layer, gpu)[:count]]
    return tuple((candidates or item_conv_candidates(layer, gpu))[:count])


def group_conv_cycles(config: GroupConvConfig, gpu: GpuMachine) -> float:
    """Cycles by the model; what measured best is as good as the model's best."""
    sizes = Sizes.read(config)
    cycles = tile_cycles(sizes, tile_of(config), gpu).total
    layer = config.bare()
    if gpu.winners.find(layer) != config:
        return cycles
    usual = group_conv_candidates(layer, gpu, 1)[0]
    assert isinstance(usual, GroupConvConfig)
    return min(cycles, tile_cycles(sizes, tile_of(usual), gpu).total)


def tiled(layer: ConvConfig, tile: Tile, images: int = 0) -> GroupConvConfig:
    """A convolution with a tile."""
    return taken(
        GroupConvConfig,
        layer,
        oc_blocks=tile.across * tile.quads * QUAD // layer.lanes,
        pixels=tile.pixels,
        items=(tile.down, tile.across),
        depth=tile.depth,
        slices=tile.slices,
        splits=tile.splits,
        images=images,
    )


def tile_of(config: GroupConvConfig) -> Tile:
    """The tile of a configuration, as `tiled` takes it."""
    down_across = config.items
    rest = config.pixels, config.item_quads, config.depth, config.slices, config.splits
    return Tile(*down_across, *rest)
