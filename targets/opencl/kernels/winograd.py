"""Winograd convolution on a GPU: transforms in registers around the products of `conv.py`.

    for each work-item: planes = B^T d B            # a tile of the image, one launch
    for each work-group: sums = planes * weights    # (tile + 2) squared products, as groups
    for each work-item: out = epilogue(A^T sums A)  # a tile of outputs, one launch

Three launches and planes in memory pay where layers have many pixels: multiply-adds are a quarter
(tiles of 4) or four ninths (of 2). The sums are explained in `winograd_sums.py`.

Nothing is read as an image of OpenCL: a pixel of it is four channels, and a work-item transforms
6x6 tiles of one channel, or, where a tile is small, of four: a tile of 6x6 quads would not fit
into the registers of most GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig, suits_winograd
from tvm_stretch.targets.kernels.cycles import Step
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.loops import block, f32, load, scratch, store, unravelled, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.kernels.winograd_sums import INPUT, OUTPUT, combine

from .base import Layer, TunedTemplate
from .conv import GroupConvConfig, group_conv_candidates, tile_of, tiled
from .conv_nest import Products
from .group_features import GroupWinogradFeatures
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
from .machine import GpuMachine
from .tiles import Sizes, Tile, tile_cycles, tiles_of, transform_cycles

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
    return within([planes, sums], transforms.of_input(), products.launch(), transforms.of_output())


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

    def _launch(self, blocks: int, body: Callable[..., tirx.Stmt]) -> tirx.Stmt:
        """``body`` for each tile of all blocks of channels; neighbouring items have its lanes."""
        cfg = self.cfg
        shape = (cfg.parts, blocks, cfg.batch, *cfg.tiles, cfg.lanes // self.wide)
        total = prod(shape)

        def item(group: Expr, item: Expr) -> tirx.Stmt:
            number = group * _ITEMS + item
            exists = None if total % _ITEMS == 0 else number < total
            return when(exists, body(*unravelled(number, shape)))

        return launch(-(-total // _ITEMS), _ITEMS, item)

    # --- the image ---

    def of_input(self) -> tirx.Stmt:
        """``B^T d B`` of every tile."""
        return self._launch(self.cfg.in_blocks, self._input_tile)

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
        return within([read, half], *steps)

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
        return self._launch(self.cfg.out_blocks, self._output_tile)

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
        return when(channel < cfg.blocks[1] if last_part else None, within([read, half], *steps))

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
            stores = block(*finish_quad(self.epilogue, place, value, name))
        return when(every(rows, columns), stores)


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
        is_measured = gpu.winners.find(plain) is not None
        return [] if is_measured else [*group_winograd_candidates(plain, gpu, 1)]

    def bare(self) -> ConvConfig:
        return taken(ConvConfig, self, data_block=self.lanes, oc_blocks=1, pixels=1)

    @classmethod
    def variants(cls, layer: Layer, gpu: GpuMachine, count: int) -> list[GroupWinogradConfig]:
        """Configurations of each tile that may be faster than direct sums."""
        if not isinstance(layer, ConvConfig):
            return []
        candidates = group_winograd_candidates(layer, gpu, count // 4)
        if not candidates:
            return []
        direct = tile_cycles(Sizes.read(layer), tiles_of(layer, gpu)[0], gpu).total
        return [one for one in candidates if group_winograd_cycles(one, gpu) < _WORTH * direct]

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
        cycles = tile_cycles(Sizes.read(product), tile_of(product), machine.gpu)
        moved = numbers_of(self)
        return GroupWinogradFeatures(
            **vars(plain),
            busy_cycles=cycles.busy_cycles,
            waiting_cycles=cycles.waiting_cycles,
            moved_bytes=cycles.moved_bytes,
            exchange_cycles=cycles.exchange_cycles,
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
        return tile_cycles(Sizes.read(layer), tile_of(direct), gpu).total
    product = config.product
    tile = tile_of(product)
    # what the products write is counted as what the last launch reads
    sums_of_planes = tile_cycles(Sizes.read(product), tile, gpu)
    multiply = sums_of_planes._replace(split_numbers=0.0, written_bytes=0.0).total
    planes, sums = numbers_of(config)
    image = config.batch * config.in_channels * prod(config.in_size)
    out = config.batch * config.out_channels * prod(config.out_size)
    moved = transform_cycles(planes + image, gpu) + transform_cycles(sums + out, gpu)
    return multiply + moved
