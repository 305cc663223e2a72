"""Winograd convolution on a GPU: transforms in registers around the products of `conv.py`.

    for each work-item: planes = B^T d B            # a tile of the image, one launch
    for each work-group: sums = planes * weights    # (tile + 2) squared products, as groups
    for each work-item: out = epilogue(A^T sums A)  # a tile of outputs, one launch

Three launches and planes in memory pay where layers have many pixels: multiply-adds are a quarter
(tiles of 4) or four ninths (of 2). The sums are explained in `../winograd_sums.py`.

Nothing is read as an image of OpenCL: a pixel of it is four channels, and a work-item transforms
6x6 tiles of one channel, because four would not fit into registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.cycles import Step
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig, suits_winograd
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .base import Layer, TunedTemplate
from .conv import GroupConvConfig, group_conv_candidates, tile_of, tiled
from .group_features import GroupWinogradFeatures
from .machine import GpuMachine
from .tiles import Sizes, Tile, tile_cycles, tiles_of, transform_cycles
from .winograd_nest import write_group_winograd

_TILES = (4, 2)
_WORTH = 2.0  # times as slow as direct sums by the model, which may be wrong by as much
_MOST_BYTES = 64 << 20
"""Memory of planes, and of sums: a phone's GPU holds tensors of 128 MiB."""


@dataclass(frozen=True, kw_only=True)
class PlanesConfig(GroupConvConfig):
    """The products of all planes as one convolution of single pixels whose groups are planes."""

    def factor_at(self, column: Expr, row: Expr, place: Expr) -> tuple[int | Expr, ...]:
        """Where a quad of the weights stands in `WinogradConfig.weight_shape`."""
        return 0, 0, column, 0, row, place


@dataclass(frozen=True, kw_only=True)
class GroupWinogradConfig(TunedTemplate, WinogradConfig):
    """A 3x3 convolution, and how work-groups multiply its planes; see `GroupConvConfig`."""

    template: ClassVar[str] = "group_winograd"
    slack: ClassVar[float] = 0.1  # sums are rounded

    items: tuple[int, int] = (8, 8)
    depth: int = 4
    slices: int = 1
    splits: int = 1

    @property
    def product(self) -> PlanesConfig:
        """The products of the planes."""
        cut = {"items": self.items, "depth": self.depth, "slices": self.slices}
        plain = planes_of(self)
        own = {"oc_blocks": self.oc_blocks, "pixels": self.pixels, "splits": self.splits, **cut}
        return taken(PlanesConfig, plain, **own)

    @classmethod
    def configure(
        cls, layer: ConvShape, machine: VectorMachine, block: int
    ) -> list[WinogradConfig]:
        """The best configuration of each tile; none where winners of measurements know better."""
        gpu = machine.gpu
        assert gpu is not None
        if layer.exact or machine.half or not suits_winograd(layer, machine.lanes, block):
            return []
        plain = ConvConfig.smallest(layer, machine, block, exact=False)
        known = gpu.winners.find(plain) is not None
        return [] if known else [*group_winograd_candidates(plain, gpu, 1)]

    def bare(self) -> ConvConfig:
        return taken(ConvConfig, self, data_block=self.lanes, oc_blocks=1, pixels=1)

    @classmethod
    def variants(cls, layer: Layer, gpu: GpuMachine, count: int) -> list[GroupWinogradConfig]:
        """Configurations of each tile that may be faster than direct sums."""
        if not isinstance(layer, ConvConfig):
            return []
        found = group_winograd_candidates(layer, gpu, count // 4)
        if not found:
            return []
        direct = tile_cycles(Sizes.of(layer), tiles_of(layer, gpu)[0], gpu).total
        return [one for one in found if group_winograd_cycles(one, gpu) < _WORTH * direct]

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        if machine.gpu is None:
            return super().cycles(machine, step)
        return group_winograd_cycles(self, machine.gpu) * machine.gpu.cores

    def on(self, machine: VectorMachine) -> Template | None:
        return self if machine.gpu is not None else taken(WinogradConfig, self, pixels=1)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_group_winograd(self, fused.operands, fused.epilogue)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        """Features for cost models; cores that take over compute it in loops."""
        plain = self.whole_work(epilogue, machine, item)
        if machine.gpu is None:
            return plain
        product = self.product
        found = tile_cycles(Sizes.of(product), tile_of(product), machine.gpu)
        moved = numbers_of(self)
        return GroupWinogradFeatures(
            **vars(plain),
            busy_cycles=found.busy_cycles,
            waiting_cycles=found.waiting_cycles,
            moved_bytes=found.moved_bytes,
            exchange_cycles=found.exchange_cycles,
            plane_numbers=float(moved[0]),
            sum_numbers=float(moved[1]),
        )


def planes_of(winograd: WinogradConfig) -> ConvConfig:
    """The products of all planes as a layer: a pixel is a tile, a group of channels a plane."""
    groups, lanes = winograd.parts * winograd.alpha**2, winograd.lanes
    return ConvConfig(
        batch=1,
        in_channels=groups * winograd.in_blocks * lanes,
        in_size=(winograd.batch * prod(winograd.tiles), 1),
        out_channels=groups * winograd.out_blocks * lanes,
        kernel=(1, 1),
        groups=groups,
        lanes=lanes,
        data_block=lanes,
        oc_blocks=1,
        pixels=1,
    )


def numbers_of(winograd: GroupWinogradConfig) -> tuple[int, int]:
    """Numbers of the planes, and of the sums of products."""
    planes = planes_of(winograd)
    tiles = planes.in_size[0]
    return planes.in_channels * tiles, winograd.splits * planes.out_channels * tiles


@lru_cache(maxsize=4096)
def group_winograd_candidates(
    layer: ConvConfig,  # with a block of channels, as `GroupConvConfig` takes it
    gpu: GpuMachine,
    count: int,  # of each tile
) -> tuple[GroupWinogradConfig, ...]:
    """Configurations of a 3x3 layer, those of each tile from the fastest by the model on."""
    suits = gpu.local_on_chip and suits_winograd(layer, layer.lanes, layer.data_block)
    tiles = _TILES if suits else ()
    return tuple(config for tile in tiles for config in _of_tile(layer, gpu, tile, count))


def _of_tile(
    layer: ConvConfig, gpu: GpuMachine, tile: int, count: int
) -> tuple[GroupWinogradConfig, ...]:
    base = taken(GroupWinogradConfig, layer, tile=tile)
    most = 4 * max(numbers_of(base))  # bytes, of each split
    if most > _MOST_BYTES:
        return ()
    cuts = (cut for cut in tiles_of(planes_of(base), gpu) if cut.splits * most <= _MOST_BYTES)
    return tuple(with_tile(base, cut) for cut in islice(cuts, count))


def with_tile(winograd: GroupWinogradConfig, cut: Tile) -> GroupWinogradConfig:
    """The convolution with a tile for its products."""
    return taken(GroupWinogradConfig, tiled(planes_of(winograd), cut), **_layer(winograd))


def _layer(winograd: GroupWinogradConfig) -> dict[str, object]:
    """Fields of the convolution, which differ from those of its products."""
    layer = vars(taken(ConvShape, winograd))
    return {**layer, "tile": winograd.tile, "merged_groups": winograd.merged_groups}


def group_winograd_cycles(config: GroupWinogradConfig, gpu: GpuMachine) -> float:
    """Cycles of all three launches by the model."""
    layer = config.bare()
    if gpu.winners.find(layer) == config:  # as good as the best direct sums by the model
        direct = group_conv_candidates(layer, gpu, 1)[0]
        assert isinstance(direct, GroupConvConfig)
        return tile_cycles(Sizes.of(layer), tile_of(direct), gpu).total
    product = config.product
    tile = tile_of(product)
    # what the products write is counted as what the last launch reads
    sums_of_planes = tile_cycles(Sizes.of(product), tile, gpu)
    multiply = sums_of_planes._replace(split_numbers=0.0, written_bytes=0.0).total
    planes, sums = numbers_of(config)
    image = config.batch * config.in_channels * prod(config.in_size)
    out = config.batch * config.out_channels * prod(config.out_size)
    moved = transform_cycles(planes + image, gpu) + transform_cycles(sums + out, gpu)
    return multiply + moved
