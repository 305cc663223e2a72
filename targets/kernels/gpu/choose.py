"""Which tiles and groups a layer gets on a GPU, from a small model of it.

The model counts cycles of a compute unit from one slab to the next: multiply-adds, loads from local
memory, and the latency of the device's memory, which few work-items cannot hide; then how often all
units take groups, and what comes through the second-level cache. Its constants were fitted to 2,300
configurations of 143 layers on an H100 (median error 10 %, the choice 6 % after the best in the
mean); on other GPUs they are orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ..conv import ConvConfig
from ..layers import taken
from ..window import WindowConfig
from .conv import GroupConvConfig
from .dense import RowConfig
from .groups import QUAD
from .item_conv import ItemConvConfig
from .machine import GpuMachine
from .window import GroupWindowConfig

_IMAGE_LOAD, _FACTOR_LOAD = 5.1, 2.0
"""Cycles of a unit in which a wave loads a quad from local memory, or one that its items share."""
_FETCH = 33.0  # of a wave, to find a place in memory and bring a quad to local memory
_SINGLE_FETCHES = 4  # of numbers of a plain image, for a quad
_LATENCY = 750.0  # from asking memory to the barrier that follows
_PRODUCT, _LOCAL = 24.0, 10.0  # of a wave alone: for a quad of sums, and for a load of a quad
_BEGIN = 1500.0  # of a launch, until the first slab is there and after the last
_EXCHANGE = 46.0  # of sums of slices, for each quad and slice
_SHARED_BYTES = 3000.0  # from the second-level cache to all units, in a cycle
_LAUNCH = 23_000.0  # of another launch, whose results pass through memory
_SPLIT_NUMBERS = 415.0  # of these results, in a cycle

_PIXELS, _QUADS, _DEPTHS, _SLICES = (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8)
_SPLITS = (1, 2, 4, 8, 16)
_DOWN, _ACROSS = (4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 16)
TILE_NUMBERS = (_DOWN, _ACROSS, _PIXELS, _QUADS, _DEPTHS, _SLICES, _SPLITS)
"""The numbers of a `Tile`, in its order."""
_SMALL_GROUP, _LARGE_GROUP = 64, 512
_MOST_REGISTERS = 208
"""Registers that an item may need: with more, NVIDIA's compiler keeps sums in memory."""
_DRIVERS_BYTES = 64  # of local memory, which NVIDIA's driver needs itself


class Tile(NamedTuple):
    """How a work-group computes a convolution: see `GroupConvConfig`; ``quads`` are an item's."""

    down: int
    across: int
    pixels: int
    quads: int
    depth: int
    slices: int
    splits: int


class Sizes(NamedTuple):
    """A convolution as a product of matrices."""

    pixels: int
    quads: int
    steps: int
    fetches: int

    @staticmethod
    def of(layer: ConvConfig) -> Sizes:
        """Output pixels of a convolution, its quads of channels, and the quads that a sum adds."""
        height, width = layer.out_size
        rows = layer.reduce_blocks * layer.kernel[0] * layer.kernel[1] * layer.data_block
        fetches = _SINGLE_FETCHES if layer.data_block == 1 else 1
        quads = layer.out_blocks * (layer.lanes // QUAD)
        return Sizes(layer.batch * height * width, quads, -(-rows // QUAD), fetches)


def choose_group_conv(layer: ConvConfig, gpu: GpuMachine) -> ConvConfig:
    """The configuration of a convolution or dense layer: measured best, or best by the model."""
    found: ConvConfig | None = gpu.winners.find(layer)
    return found or group_conv_candidates(layer, gpu, 1)[0]


@lru_cache(maxsize=4096)
def group_conv_candidates(
    layer: ConvConfig, gpu: GpuMachine, count: int = 8
) -> tuple[ConvConfig, ...]:
    """Up to ``count`` configurations, the fastest by this model first."""
    found: list[ConvConfig] = []
    if gpu.local_on_chip and _is_row(layer):
        found = row_candidates(layer, gpu)[:count]
    elif gpu.local_on_chip:
        sizes = Sizes.of(layer)
        tiles = sorted(_tiles(layer, sizes, gpu), key=lambda tile: _cycles(sizes, tile, gpu))
        found = [tiled(layer, tile) for tile in tiles[:count]]
    return tuple(found or item_conv_candidates(layer, gpu)[:count])


def group_conv_cycles(config: ConvConfig, gpu: GpuMachine) -> float:
    """Cycles by the model of this file; what measured best is as good as the model's best."""
    sizes = Sizes.of(config)
    if isinstance(config, GroupConvConfig):
        cycles = _cycles(sizes, tile_of(config), gpu)
        layer = taken(ConvConfig, config, oc_blocks=1, pixels=1)
        if gpu.winners.find(layer) != config:
            return cycles
        usual = group_conv_candidates(layer, gpu, 1)[0]
        assert isinstance(usual, GroupConvConfig)
        return min(cycles, _cycles(sizes, tile_of(usual), gpu))
    return _BEGIN + sizes.quads * sizes.steps * QUAD * 16 / _SHARED_BYTES


def tiled(layer: ConvConfig, tile: Tile) -> GroupConvConfig:
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
    )


def tile_of(config: GroupConvConfig) -> Tile:
    """The tile of a configuration, as `tiled` takes it."""
    down_across = config.items
    rest = config.pixels, config.item_quads, config.depth, config.slices, config.splits
    return Tile(*down_across, *rest)


def _tiles(layer: ConvConfig, sizes: Sizes, gpu: GpuMachine) -> Iterator[Tile]:
    """Tiles and groups that the GPU can have."""
    for across, quads, down, pixels in product(_ACROSS, _QUADS, _DOWN, _PIXELS):
        if not covers(layer, sizes, across * quads, down * pixels):
            continue
        for slices, depth, splits in product(_SLICES, _DEPTHS, _SPLITS):
            tile = Tile(down, across, pixels, quads, depth, slices, splits)
            if fits(tile, gpu) and _is_worth(sizes, tile, gpu):
                yield tile


def covers(layer: ConvConfig, sizes: Sizes, quads: int, pixels: int) -> bool:
    """Whether a group of this number of quads of channels and of pixels suits the layer."""
    each = layer.lanes // QUAD
    blocks, rest = divmod(quads, each)
    part = layer.out_channels // layer.groups * layer.merged_groups // layer.lanes
    if rest or (layer.groups > layer.merged_groups and part % blocks):
        return False  # a group's channels read the same channels of the image
    return quads <= max(sizes.quads, 16) and pixels < 2 * max(8, sizes.pixels)


def fits(tile: Tile, gpu: GpuMachine) -> bool:
    """Whether a group stays within the GPU's limits."""
    largest = min(_LARGE_GROUP, gpu.max_group_items)
    items, registers = tile.down * tile.across * tile.slices, _registers(tile)
    return (
        min(_SMALL_GROUP, largest) <= items <= largest
        and _local_bytes(tile) + _DRIVERS_BYTES <= gpu.local_bytes
        and registers <= _MOST_REGISTERS
        and items * registers <= gpu.unit_registers
    )


def _is_worth(sizes: Sizes, tile: Tile, gpu: GpuMachine) -> bool:
    """Whether sums are only cut where there is enough of them, and too few groups."""
    if tile.slices * tile.splits == 1:
        return True
    if sizes.steps < 2 * tile.depth * tile.slices * tile.splits:
        return False
    return tile.splits == 1 or _groups(sizes, tile) <= 6 * gpu.units


def _groups(sizes: Sizes, tile: Tile) -> int:
    columns = -(-sizes.quads // (tile.across * tile.quads))
    return -(-sizes.pixels // (tile.down * tile.pixels)) * columns * tile.splits


def _local_bytes(tile: Tile) -> int:
    pixels, quads = tile.down * tile.pixels, tile.across * tile.quads
    slab = 2 * tile.depth * tile.slices * (pixels + QUAD * quads) * 16
    return slab + (tile.slices - 1) * pixels * quads * 16


def _slots(tile: Tile) -> int:
    """Quads of a slab that each item brings to local memory."""
    items = tile.down * tile.across * tile.slices
    slab = tile.depth * tile.slices
    pixels, columns = tile.down * tile.pixels, tile.across * tile.quads * QUAD
    return -(-slab * pixels // items) + -(-slab * columns // items)


def _registers(tile: Tile) -> int:
    """Registers of an item: sums, what they are made of, the next slab, and places."""
    return 40 + 4 * (tile.pixels * tile.quads + tile.pixels + tile.quads + _slots(tile))


def _cycles(sizes: Sizes, tile: Tile, gpu: GpuMachine) -> float:
    items = tile.down * tile.across * tile.slices
    slab = tile.depth * tile.slices
    pixels, columns = tile.down * tile.pixels, tile.across * tile.quads * QUAD
    slots = _slots(tile)
    sums = tile.pixels * tile.quads
    registers = min(255, _registers(tile))
    resident = min(
        32,
        gpu.unit_items // items,
        gpu.unit_local_bytes // (_local_bytes(tile) + 1024),
        gpu.unit_registers // (items * registers),
    )
    resident = max(1, resident)
    groups = _groups(sizes, tile)
    together = min(resident, -(-groups // gpu.units))
    rounds = max(1.0, groups / (gpu.units * resident))
    rounds = math.ceil(rounds) if rounds < 4 else rounds
    waves = -(-items // gpu.wave)
    waves_at_once = gpu.multiply_adds / gpu.wave
    multiply = 16 * sums * tile.depth * waves / waves_at_once
    local = (_IMAGE_LOAD * tile.pixels + _FACTOR_LOAD * QUAD * tile.quads) * tile.depth * waves
    fetch = slots * _FETCH * sizes.fetches * waves / waves_at_once
    alone = (_PRODUCT * sums + _LOCAL * (tile.pixels + QUAD * tile.quads)) * tile.depth
    step = max(together * (max(multiply, local) + fetch), _LATENCY + alone)
    slabs = -(-sizes.steps // (slab * tile.splits))
    moved = groups * slabs * slab * 16 * (pixels + columns)
    cycles = _BEGIN + max(rounds * slabs * step, moved / _SHARED_BYTES)
    if tile.slices > 1:
        cycles += _EXCHANGE * tile.slices * sums
    if tile.splits > 1:
        cycles += _LAUNCH + tile.splits * sizes.pixels * sizes.quads * QUAD / _SPLIT_NUMBERS
    return cycles


# --- without local memory -------------------------------------------------------------------------

_ITEM_PIXELS = (4, 2, 8, 1)  # 4 are enough to use weights more than once
_ITEMS = (1.0, 0.5, 2.0)  # of a group, in those of a group that shares nothing


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


# --- dense layers of one row ----------------------------------------------------------------------

_ROW_BLOCKS = 4  # the most of a group


def _is_row(layer: ConvConfig) -> bool:
    """Whether a layer is the product of one row with a matrix."""
    single = (layer.batch, *layer.out_size, *layer.kernel) == (1,) * 5
    return single and layer.groups == 1 and not any(layer.padding)


def row_candidates(layer: ConvConfig, gpu: GpuMachine) -> list[ConvConfig]:
    """Few outputs a group, so that all units read weights, and as many lines as fill it, first."""
    first = max(1, min(_ROW_BLOCKS, layer.out_blocks // gpu.units))
    others = [blocks for blocks in (1, 2, _ROW_BLOCKS) if blocks != first]
    found = [_lines(layer, gpu, blocks) for blocks in (first, *others)]
    places = ((i, j) for i, lines in enumerate(found) for j in range(len(lines)))
    return [found[i][j] for i, j in sorted(places, key=sum)]


def _lines(layer: ConvConfig, gpu: GpuMachine, blocks: int) -> list[ConvConfig]:
    """Rows with ``blocks`` blocks in a group, the most lines first."""
    across = blocks * layer.lanes // QUAD
    rows = layer.reduce_blocks * layer.data_block
    limit = min(128, gpu.max_group_items // across, gpu.local_bytes // (16 * across))
    most = 1 << (max(1, min(limit, rows // 4)).bit_length() - 1)
    counts = [most >> i for i in range(3) if 1 <= most >> i <= limit]
    return [taken(RowConfig, layer, oc_blocks=blocks, pixels=1, lines=lines) for lines in counts]


# --- windows --------------------------------------------------------------------------------------

_WINDOW_ITEMS = (128, 64, 256)
_WINDOW_TILES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1))
_WAVES_A_UNIT = 16  # of work-items that hide each other's waits


def choose_group_window(layer: WindowConfig, gpu: GpuMachine) -> GroupWindowConfig:
    """The configuration of a depthwise convolution or pooling: measured best, or of the model."""
    found: GroupWindowConfig | None = gpu.winners.find(layer)
    return found or group_window_candidates(layer, gpu)[0]


def group_window_candidates(layer: WindowConfig, gpu: GpuMachine) -> list[GroupWindowConfig]:
    """Tiles and groups to try.

    First the largest tile that leaves enough work-items: its pixels are read once for several
    windows.
    """
    items = [n for n in _WINDOW_ITEMS if n <= gpu.max_group_items] or [gpu.max_group_items]
    enough = gpu.units * gpu.wave * _WAVES_A_UNIT
    found = [
        taken(GroupWindowConfig, layer, tile=tile, group_items=each)
        for each in items
        for tile in _WINDOW_TILES
        if tile[0] <= max(2, layer.out_size[0]) and tile[1] <= layer.out_size[1]
    ]
    usual = found[:2]
    enough_items = [config for config in usual if config.work_items >= enough]
    first = enough_items[-1] if enough_items else usual[0]
    return [first, *(config for config in found if config != first)]
