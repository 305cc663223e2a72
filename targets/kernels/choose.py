"""Choose the template and register tile of a convolution by a small model of the core.

The model counts cycles of the inner loop: multiply-adds and loads that issue in a cycle, weights
that stream from the second-level cache, and latency that short tiles cannot hide.  `machine.py`
contains the differences between cores; no measurement is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from .channel_runs import ChannelRun, channel_runs, whole_run, winograd_runs
from .conv import ConvConfig, merged_groups
from .gpu.choose import choose_group_conv
from .machine import VectorMachine
from .winograd import WinogradConfig

_LOADS_REACHED = 0.8  # share of the load ports' peak, as seen in measurements
_L2_BYTES_PER_CYCLE = 24
_WEIGHT_BYTES_PER_CYCLE = 8  # weights of a whole network stay in no cache
_WIDE = 0.05
"""Share of the time in which weights arrive, for each vector beyond `_NARROW` that a tile reads at
once without an earlier tile's prefetch; measured in dense layers of one row."""
_NARROW = 4
_HIDDEN = 1e-3
"""Share of computation that counts while weights arrive: if waits are equal, less work wins."""

_TRANSFORM_CYCLES = {2: 2.5, 4: 7.0}
"""Cycles of both transforms for each vector of a plane, by tile: F(2x2) only adds, two terms each;
F(4x4) has twice as many terms, and factors."""

_CROWDED, _ROOMY = 0.03, 20
"""With 32 registers (AVX-512), cycles per step for each register beyond `_ROOMY`: tiles of 6 to 9
pixels by 2 or 3 vectors measure 1 to 8 % faster than tiles that fill all registers."""


Step = Callable[[int, int, int, VectorMachine], float]
"""Cycles for one input channel of a tile, from its pixels, output blocks and bytes of weights."""


@dataclass(frozen=True)
class ConvShape:
    """A convolution as the network defines it."""

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def padded(self) -> ConvShape:
        """The convolution of an image that already includes its padding."""
        top, left, bottom, right = self.padding
        size = (self.in_size[0] + top + bottom, self.in_size[1] + left + right)
        return replace(self, in_size=size, padding=(0, 0, 0, 0))


@lru_cache(maxsize=4096)
def choose_conv(
    shape: ConvShape, machine: VectorMachine, data_block: int, *, exact: bool = False
) -> ConvConfig | WinogradConfig:
    """The fastest template for a convolution, by the model of this file.

    Args:
        shape: the convolution.
        machine: runs the convolution.
        data_block: channels of a block of the data.
        exact: whole numbers must give whole numbers, which excludes Winograd.
    """
    if machine.gpu is not None:
        return choose_group_conv(_config(shape, machine, data_block), machine.gpu)
    if exact:
        directs = _directs(shape, machine, data_block)
        return min(directs, key=lambda config: conv_cycles(config, machine))
    return conv_candidates(shape, machine, data_block, 1)[0]


def conv_candidates(
    shape: ConvShape, machine: VectorMachine, data_block: int, count: int = 8
) -> tuple[ConvConfig | WinogradConfig, ...]:
    """Up to ``count`` configurations that compute ``shape``, the fastest first by this model."""
    every: list[ConvConfig | WinogradConfig] = [
        *_directs(shape, machine, data_block),
        *_winograds(shape, machine, data_block),
    ]
    return tuple(sorted(every, key=lambda config: conv_cycles(config, machine))[:count])


def winograd_of_tile(shape: ConvShape, machine: VectorMachine, tile: int) -> WinogradConfig:
    """The best Winograd configuration with this tile."""
    every = [c for c in _winograds(shape, machine, machine.lanes) if c.tile == tile]
    return min(every, key=lambda config: conv_cycles(config, machine))


def conv_cycles(
    config: ConvConfig | WinogradConfig, machine: VectorMachine, step: Step | None = None
) -> float:
    """Cycles on one core, by the model of this file; ``step`` may replace `_conv_step`."""
    if isinstance(config, WinogradConfig):
        return _winograd_cycles(config, machine, step or _conv_step)
    return direct_cycles(config, machine, step or _conv_step)


def register_tiles(machine: VectorMachine) -> list[tuple[int, int]]:
    """Register tiles (pixels, output blocks) that fit into the register file."""
    found = []
    for blocks in range(1, 13):
        for pixels in range(1, machine.registers):
            if pixels * blocks + _operands(pixels, blocks, machine) <= machine.registers:
                found.append((pixels, blocks))
    return found


def _operands(pixels: int, blocks: int, machine: VectorMachine) -> int:
    """Registers that LLVM uses besides the sums of a tile, as seen in its assembly."""
    if machine.broadcast_operand:  # a vector of elements for each pixel; weights one at a time
        return pixels + 4
    # operands of the shorter side and one of the longer; if they are few, prefetched ones too
    shorter = min(pixels, blocks)
    return shorter + 1 + 2 * (machine.registers > 16 and shorter in (2, 3))


def step_cycles(pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
    """Cycles for one input channel of one tile."""
    multiply_adds = pixels * blocks / machine.multiply_adds
    # if elements are operands, one load also provides the next channels of a pixel
    each = 1 / machine.lanes if machine.broadcast_operand else 1
    loads = (blocks + pixels * each) / (machine.loads * _LOADS_REACHED)
    streamed = streamed_cycles(blocks, slab, machine)
    issued = multiply_adds + loads if machine.in_order else max(multiply_adds, loads)
    return max(issued, streamed, machine.latency) + 0.05 * pixels + 0.04 * blocks


def _conv_step(pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
    """The same for a convolution of floats."""
    registers = 0 if machine.broadcast_operand else pixels * blocks + min(pixels, blocks)
    crowded = _CROWDED * max(0, registers - _ROOMY)
    return step_cycles(pixels, blocks, slab, machine) + crowded


def streamed_cycles(blocks: int, slab: int, machine: VectorMachine) -> float:
    """Cycles in which one input channel's weights arrive from the second-level cache."""
    if slab <= machine.l1_bytes * 3 // 4:
        return 0.0
    return blocks * machine.lanes * 4 / _L2_BYTES_PER_CYCLE


def tile_counts(total: int, largest: int) -> list[tuple[int, int]]:
    """The sizes that `balanced` returns, with the number of each."""
    count = -(-total // largest)
    size, extra = divmod(total, count)
    return [(s, n) for s, n in ((size + 1, extra), (size, count - extra)) if n]


def _config(shape: ConvShape, machine: VectorMachine, data_block: int) -> ConvConfig:
    """A direct convolution with the smallest tile."""
    merge = merged_groups(shape.in_channels, shape.out_channels, shape.groups, machine.lanes)
    return ConvConfig(
        **vars(shape),
        lanes=machine.lanes,
        data_block=data_block,
        oc_blocks=1,
        pixels=1,
        merged_groups=merge,
    )


def _directs(shape: ConvShape, machine: VectorMachine, data_block: int) -> list[ConvConfig]:
    """Every direct configuration."""
    config = _config(shape, machine, data_block)
    merge = config.merged_groups
    candidates = [replace(config, pixels=p, oc_blocks=o) for p, o in register_tiles(machine)]
    if shape.groups > merge:
        width = shape.out_channels // shape.groups * merge // machine.lanes
        candidates = [c for c in candidates if width % c.oc_blocks == 0]
    return candidates


def direct_cycles(c: ConvConfig, machine: VectorMachine, step: Step) -> float:
    """Cycles of a direct convolution on one core."""
    height, width = c.out_size
    rows, width = (1, height * width) if c.pointwise else (height, width)
    channels = c.reduce_blocks * c.data_block
    taps = c.kernel[0] * c.kernel[1]
    slab = min(c.oc_blocks * c.lanes * channels * taps * 4, machine.l2_bytes // 4)
    full, tail = divmod(c.out_blocks, c.oc_blocks)
    cycles = 0.0
    for blocks, count in ((c.oc_blocks, full), (tail, 1)):
        if blocks:
            overhead = 12 + 1.5 * blocks * c.pixels
            runs = channel_runs(c, blocks) or [whole_run(c, blocks)]
            cycles += count * sum(
                times * (taps * _reduction(size, runs, slab, machine, step) + overhead)
                for size, times in tile_counts(width, c.pixels)
            )
    weights = c.out_groups * c.oc_blocks * c.lanes * channels * taps * 4
    # Weights arrive while earlier tiles compute, if several tiles prefetch them.
    arrive = weights / _WEIGHT_BYTES_PER_CYCLE
    compute = c.batch * cycles * rows
    if rows * width <= c.pixels:
        return compute + arrive * (1 + _WIDE * max(0, c.oc_blocks - _NARROW))
    return max(compute, arrive) + _HIDDEN * compute


def _reduction(
    pixels: int, runs: list[ChannelRun], slab: int, machine: VectorMachine, step: Step
) -> float:
    """Cycles of one tap of a tile over all channels."""
    widths = ((run.channels, run.vectors[1] - run.vectors[0]) for run in runs)
    return sum(channels * step(pixels, width, slab, machine) for channels, width in widths)


def _winograds(shape: ConvShape, machine: VectorMachine, data_block: int) -> list[WinogradConfig]:
    """Every Winograd configuration that can compute ``shape``."""
    merge = merged_groups(shape.in_channels, shape.out_channels, shape.groups, machine.lanes)
    width = min(shape.in_channels, shape.out_channels) // shape.groups
    if (
        (shape.kernel, shape.stride, shape.dilation) != ((3, 3), (1, 1), (1, 1))
        or data_block != machine.lanes
        or 2 * width < (4 if shape.groups == 1 else 3) * machine.lanes
        or machine.half  # float16 has too few digits for its sums
    ):
        return []
    base = WinogradConfig(
        shape.batch,
        shape.in_channels,
        shape.in_size,
        shape.out_channels,
        shape.padding,
        machine.lanes,
        tile=2,
        oc_blocks=1,
        pixels=1,
        groups=shape.groups,
        merged_groups=merge,
    )
    if min(base.out_size) < 4:
        return []
    return [
        replace(base, tile=tile, oc_blocks=o, pixels=p)
        for tile in (4, 2)
        for p, o in register_tiles(machine)
        # two vectors of outputs measured best; parts of groups must divide evenly
        if (o <= 2 if base.parts == 1 else base.out_blocks % o == 0)
    ]


def _winograd_cycles(c: WinogradConfig, machine: VectorMachine, step: Step) -> float:
    tiles = c.tiles[0] * c.tiles[1]
    square, channels = c.alpha**2, c.in_blocks * c.lanes
    groups = c.parts * c.out_blocks / c.oc_blocks
    slab = channels * c.oc_blocks * c.lanes * 4
    runs = winograd_runs(c, c.oc_blocks)
    products = (
        square
        * groups
        * sum(
            times * (_reduction(size, runs, slab, machine, step) + 12 + c.oc_blocks * size)
            for size, times in tile_counts(tiles, c.pixels)
        )
    )
    vectors = tiles * c.parts * (c.in_blocks + c.out_blocks) * square
    transforms = vectors * _TRANSFORM_CYCLES[c.tile]
    # Weights arrive while products are computed, because each tile prefetches its share.
    weights = 4 * square * channels * c.parts * c.out_blocks * c.lanes / _WEIGHT_BYTES_PER_CYCLE
    return max(c.batch * products, weights) + c.batch * transforms
