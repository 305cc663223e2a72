"""Tiles and groups that a convolution may have on a GPU, and a small model of their speed.

The model counts cycles of a compute unit from one slab to the next: multiply-adds, loads from local
memory, and the latency of the device's memory, which few work-items cannot hide; then how often all
units take groups, and what comes through the second-level cache. Its constants were fitted to 2,849
configurations of 123 layers at batch 1 and 16 on an H100 (median error 8 %; `benchmarks/log/gpu.md`
judges it on layers that it was not fitted to); on other GPUs they are orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig

from .groups import QUAD
from .machine import GpuMachine, Winners

_IMAGE_LOAD, _FACTOR_LOAD = 4.8, 1.33
"""Cycles of a unit in which a wave loads a quad from local memory, or one that its items share."""
_MULTIPLY = 1.11  # of the cycles that multiply-adds would take without other instructions
_FETCH = 24.0  # of a wave, to find a place in memory and bring a quad to local memory
_SINGLE_FETCHES = 4  # of numbers of a plain image, for a quad
_LATENCY = 380.0  # from asking memory to the barrier that follows
_WINDOW_LATENCY = 460.0  # the same, with the steps that find the place in a window
_BARRIER = 15.5  # of each wave of a group, which wait for each other
_PRODUCT, _LOCAL = 12.5, 14.6  # of a wave alone: for a quad of sums, and for a load of a quad
_BEGIN = 2300.0  # of a launch, until the first slab is there and after the last
_EXCHANGE = 28.0  # of sums of slices, for each quad and slice
_SHARED_BYTES = 3000.0  # from the second-level cache to all units, in a cycle
_WRITTEN_BYTES = 3100.0  # results, in a cycle
LAUNCH = 7500.0  # of another launch, whose results pass through memory
_SPLIT_NUMBERS = 330.0  # of these results, in a cycle
_TRANSFORM = 9250.0  # of a launch that transforms tiles of Winograd, without its numbers
_TRANSFORM_NUMBERS = 575.0  # that it reads and writes in a cycle
_TRANSFORM_STEPS = 8.0  # of an item, for each of these numbers

_PIXELS, _QUADS, _DEPTHS, _SLICES = (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), (1, 2, 4, 8)
_SPLITS = (1, 2, 4, 8, 16)
_DOWN, _ACROSS = (4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 16)
TILE_NUMBERS = (_DOWN, _ACROSS, _PIXELS, _QUADS, _DEPTHS, _SLICES, _SPLITS)
"""The numbers of a `Tile`, in its order."""
_SMALL_GROUP, _LARGE_GROUP = 64, 512
_MOST_REGISTERS = 222
"""Registers that an item may need: with more, NVIDIA's compiler keeps sums in memory."""
_DRIVERS_BYTES = 64  # of local memory, which NVIDIA's driver needs itself


class Tile(NamedTuple):
    """How a work-group computes a convolution (`GroupConvConfig`); ``quads`` are an item's."""

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
    has_window: bool  # pixels are read at several taps

    @staticmethod
    def read(layer: ConvConfig) -> Sizes:
        """Output pixels of a convolution, its quads of channels, and the quads that a sum adds."""
        height, width = layer.out_size
        rows = layer.reduce_blocks * layer.kernel[0] * layer.kernel[1] * layer.data_block
        fetches = _SINGLE_FETCHES if layer.data_block == 1 else 1
        quads = layer.out_blocks * (layer.lanes // QUAD)
        window = layer.kernel != (1, 1)
        return Sizes(layer.batch * height * width, quads, -(-rows // QUAD), fetches, window)


def tiles_of(layer: ConvConfig, gpu: GpuMachine) -> tuple[Tile, ...]:
    """The tiles that a convolution can have on a GPU, the fastest first."""
    return _sorted_tiles(layer, replace(gpu, winners=Winners()))


@lru_cache(maxsize=64)
def _sorted_tiles(layer: ConvConfig, gpu: GpuMachine) -> tuple[Tile, ...]:
    """The same for a GPU without winners, which change with each trial of `ts.tune.measure`."""
    sizes = Sizes.read(layer)
    tiles = _tiles(layer, sizes, gpu)
    return tuple(sorted(tiles, key=lambda tile: tile_cycles(sizes, tile, gpu).total))


def _tiles(layer: ConvConfig, sizes: Sizes, gpu: GpuMachine) -> Iterator[Tile]:
    for across, quads, down, pixels in product(_ACROSS, _QUADS, _DOWN, _PIXELS):
        if not covers(layer, sizes, across * quads, down * pixels):
            continue
        for slices, depth in product(_SLICES, _DEPTHS):
            tile = Tile(down, across, pixels, quads, depth, slices, 1)
            if not fits(tile, gpu):  # whatever its splits are
                continue
            for splits in _SPLITS:
                tile = Tile(down, across, pixels, quads, depth, slices, splits)
                if _is_worth(sizes, tile, gpu):
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
    return tile.splits == 1 or group_count(sizes, tile) <= 6 * gpu.units


def group_count(sizes: Sizes, tile: Tile) -> int:
    """Work-groups of a kernel."""
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
    """Registers of an item: sums, what they are made of, the next slab, and places.

    Drivers give them in eights; NVIDIA's takes 1.3 for each that must hold a number.
    """
    numbers = 4 * (tile.pixels * tile.quads + tile.pixels + tile.quads + _slots(tile))
    return 8 * math.ceil((4 + 1.3 * numbers) / 8)


def row_cycles(sizes: Sizes) -> float:
    """Cycles of a dense layer of one row: those in which its weights are read."""
    return _BEGIN + sizes.quads * sizes.steps * QUAD * 16 / _SHARED_BYTES


class Cycles(NamedTuple):
    """What the model says of a kernel: its units compute, or wait for memory, or move bytes."""

    busy_cycles: float  # those in which units compute and fetch, one slab after the other
    waiting_cycles: float  # those that the slabs would take if each waited for memory alone
    moved_bytes: float  # those that come from the second-level cache
    exchange_cycles: float = 0.0  # those in which sums of slices are added
    split_numbers: float = 0.0  # those that a second launch adds; 0 without one
    written_bytes: float = 0.0  # those of the results

    @property
    def total(self) -> float:
        """Cycles of the kernel."""
        split = self.split_numbers
        second = LAUNCH + split / _SPLIT_NUMBERS if split else 0.0
        # one unit's groups hide each other's waits, but not all of them
        slabs = math.hypot(self.busy_cycles, self.waiting_cycles)
        slabs = max(slabs, self.moved_bytes / _SHARED_BYTES)
        return _BEGIN + slabs + self.exchange_cycles + second + self.written_bytes / _WRITTEN_BYTES


def transform_cycles(numbers: float, gpu: GpuMachine) -> float:
    """Cycles of a launch that transforms tiles of Winograd, by the numbers that it moves.

    Fitted to the best of 144 convolutions of 11 layers on an H100 (5 % off, products included).
    """
    computed = _TRANSFORM_STEPS * numbers / (gpu.units * gpu.multiply_adds)
    return _TRANSFORM + max(computed, numbers / _TRANSFORM_NUMBERS)


def tile_cycles(sizes: Sizes, tile: Tile, gpu: GpuMachine) -> Cycles:
    """Cycles by the model."""
    items = tile.down * tile.across * tile.slices
    slab = tile.depth * tile.slices
    pixels, columns = tile.down * tile.pixels, tile.across * tile.quads * QUAD
    slots = _slots(tile)
    sums = tile.pixels * tile.quads
    groups = group_count(sizes, tile)
    waves = -(-items // gpu.wave)
    waves_at_once = gpu.multiply_adds / gpu.wave
    multiply = _MULTIPLY * 16 * sums * tile.depth * waves / waves_at_once
    local = (_IMAGE_LOAD * tile.pixels + _FACTOR_LOAD * QUAD * tile.quads) * tile.depth * waves
    fetch = slots * _FETCH * sizes.fetches * waves / waves_at_once
    latency = _WINDOW_LATENCY if sizes.has_window else _LATENCY
    alone = (_PRODUCT * sums + _LOCAL * (tile.pixels + QUAD * tile.quads)) * tile.depth
    slabs = -(-sizes.steps // (slab * tile.splits))
    rounds = -(-groups // (gpu.units * _resident(tile, gpu)))
    return Cycles(
        busy_cycles=slabs * -(-groups // gpu.units) * (max(multiply, local) + fetch),
        waiting_cycles=slabs * rounds * (latency + alone + _BARRIER * waves),
        moved_bytes=groups * slabs * slab * 16.0 * (pixels + columns),
        exchange_cycles=_EXCHANGE * tile.slices * sums if tile.slices > 1 else 0.0,
        split_numbers=float(tile.splits > 1) * tile.splits * sizes.pixels * sizes.quads * QUAD,
        written_bytes=16.0 * sizes.pixels * sizes.quads,
    )


def _resident(tile: Tile, gpu: GpuMachine) -> int:
    """Groups that a unit holds at a time."""
    items = tile.down * tile.across * tile.slices
    most = min(
        32,
        gpu.unit_items // items,
        gpu.unit_local_bytes // (_local_bytes(tile) + 1024),
        gpu.unit_registers // (items * min(256, _registers(tile))),
    )
    return max(1, most)
