"""A small model of a core, by which templates choose their register tiles.

The model counts cycles of the inner loop: multiply-adds and loads that issue in a cycle, weights
that stream from the second-level cache, and latency that short tiles cannot hide.  `machine.py`
contains the differences between cores; no measurement is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .channel_runs import ChannelRun, channel_runs, whole_run
from .machine import VectorMachine

if TYPE_CHECKING:
    from tvm_stretch.targets.cpu.kernels.conv import ConvConfig

_LOADS_REACHED = 0.8  # share of the load ports' peak, as seen in measurements
_L2_BYTES_PER_CYCLE = 24
WEIGHT_BYTES_PER_CYCLE = 8  # weights of a whole network stay in no cache
_WIDE = 0.05
"""Share of the time in which weights arrive, for each vector beyond `_NARROW` that a tile reads at
once without an earlier tile's prefetch; measured in dense layers of one row."""
_NARROW = 4
_AGAIN = 0.2
"""Share of it by which a dense layer of few rows is slower in several tiles, whose prefetches
do not keep memory busy: 4 rows of 896 x 4864 took 1.35 of ONNX Runtime in two tiles, 0.9 in one."""
_HIDDEN = 1e-3
"""Share of computation that counts while weights arrive: if waits are equal, less work wins."""

_CROWDED, _ROOMY = 0.03, 20
"""With 32 registers (AVX-512), cycles per step for each register beyond `_ROOMY`: tiles of 6 to 9
pixels by 2 or 3 vectors measure 1 to 8 % faster than tiles that fill all registers. Not so dense
layers of rows on Intel's cores: 6 x 4 takes 0.84 to 1.01 of 6 x 3 (`Core.crowded_rows`)."""


Step = Callable[[int, int, int, VectorMachine], float]
"""Cycles for one input channel of a tile, from its pixels, output blocks and bytes of weights."""


def register_tiles(machine: VectorMachine) -> list[tuple[int, int]]:
    """Register tiles (pixels, output blocks) that fit into the register file."""
    tiles = []
    for blocks in range(1, 13):
        for pixels in range(1, machine.registers):
            if pixels * blocks + _operands(pixels, blocks, machine) <= machine.registers:
                tiles.append((pixels, blocks))
    return tiles


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


def conv_step(pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
    """`step_cycles` for a convolution of floats."""
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
                times * (taps * reduction_cycles(size, runs, slab, machine, step) + overhead)
                for size, times in tile_counts(width, c.pixels)
            )
    weights = c.out_groups * c.oc_blocks * c.lanes * channels * taps * 4
    # Weights arrive while earlier tiles compute, if several tiles prefetch them.
    arrive = weights / WEIGHT_BYTES_PER_CYCLE
    compute = c.batch * cycles * rows
    alone, several = rows * width <= c.pixels, c.is_dense and rows * width > 1
    if alone and not several:
        return compute + arrive * (1 + _WIDE * max(0, c.oc_blocks - _NARROW))
    again = _AGAIN * arrive if several and not alone and arrive > compute else 0.0
    return max(compute, arrive) + _HIDDEN * compute + again


def reduction_cycles(
    pixels: int, runs: Sequence[ChannelRun], slab: int, machine: VectorMachine, step: Step
) -> float:
    """Cycles of one tap of a tile over all channels."""
    widths = ((run.channels, run.vectors[1] - run.vectors[0]) for run in runs)
    return sum(channels * step(pixels, width, slab, machine) for channels, width in widths)
