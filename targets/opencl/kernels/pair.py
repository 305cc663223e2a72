"""A depthwise convolution and the 1x1 convolution that reads it, in one kernel on a GPU.

    for each work-group:                          # pixels x a part of the output channels
      for each quad of channels, for each pixel:  # shared by the items of the group
        local memory <- epilogue(depthwise sums)
      acc[pixels] = products of local memory and weights      # slices: items with other quads
      acc of the slices are added, through the same local memory
      out = epilogue(acc)

The depthwise result never reaches the device's memory, and a launch is saved. In return, each part
of the output channels computes it again. `passes/join_depthwise.py` joins kernels where the model
says that this is faster; MobileNetV2 at batch 1 and 16: `benchmarks/log/gpu.md`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar, NamedTuple

from tvm import te, tirx

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.features import EpilogueWork
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import taken
from tvm_stretch.targets.kernels.loops import within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .conv import GroupConvConfig, group_conv_candidates, group_conv_cycles
from .group_features import GroupPairFeatures
from .groups import QUAD
from .machine import GpuMachine
from .pair_nest import PairNest, inner_kernel
from .tiles import LAUNCH
from .window import GroupWindowConfig

_BEGIN = 3800.0  # cycles of a launch, until its first numbers are there and after the last
# cycles of a unit in which a wave computes a quad of a depthwise result of nine taps
_DEPTHWISE, _TAPS = 107.0, 9
_STEP, _MULTIPLY = 8.0, 2.3  # the same to multiply a quad of channels: weights, and each pixel
_WAVES_AT_ONCE = 4  # that a unit of an H100 runs, on which all of this was measured
_GROUP, _DEPTHWISE_WAIT = 2000.0, 320.0
_STEP_WAIT, _PIXEL_WAIT = 334.0, 24.0
"""Cycles that items wait: of a group, of each quad of the first part; of each of the second."""
_BYTES = 24000.0  # inputs and results, in a cycle
_WEIGHT_BYTES = 4400.0  # of weights, in a cycle
_CACHED, _MEMORY_BYTES = 36e6, 1770.0
"""Inputs and results beyond this many bytes come from memory and go there, in a cycle these."""
_ALONE, _ALONE_BYTES = 4250.0, 3500.0
"""The same for a depthwise convolution alone: until it begins, and bytes in a cycle."""

_GROUP_PIXELS = (2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128)
_PIXELS, _COLUMNS, _SLICES = (1, 2, 4, 7, 8, 14, 16), (1, 2, 4, 5), (1, 2, 4, 8, 16)
_SMALLEST_GROUP, _LARGEST_GROUP = 64, 512
_DRIVERS_BYTES = 64  # of local memory, which NVIDIA's driver needs itself


class PairTile(NamedTuple):
    """How a work-group computes a pair; see `GroupPairConfig`."""

    group_pixels: int
    pixels: int
    columns: int
    slices: int


APART = PairTile(0, 0, 0, 0)
"""Stands for two kernels, where they measured faster."""


@dataclass(frozen=True)
class Pair:
    """Both layers, however they are computed: what `GpuMachine.winners` has a tile for."""

    window: WindowConfig
    conv: ConvConfig

    @staticmethod
    def of_kernels(window: WindowConfig, conv: ConvConfig) -> Pair:
        """The pair that two kernels compute."""
        return Pair(taken(WindowConfig, window), taken(ConvConfig, conv, oc_blocks=1, pixels=1))


@dataclass(frozen=True, kw_only=True)
class GroupPairConfig(Template):
    """Both convolutions, and how a work-group computes them."""

    window: GroupWindowConfig
    conv: GroupConvConfig
    inner: int  # operands of the depthwise convolution and its epilogue
    group_pixels: int  # pixels of a group
    pixels: int  # pixels of an item, which computes one quad of output channels
    columns: int = 1  # parts of the output channels
    slices: int = 1  # parts of the sums, which different items of a group compute

    template: ClassVar[str] = "group_pair"
    machines: ClassVar[tuple[str, ...]] = ("gpu", "core")

    @property
    def tile(self) -> PairTile:
        """How a work-group computes it."""
        return PairTile(self.group_pixels, self.pixels, self.columns, self.slices)

    @property
    def quads(self) -> int:
        """Quads of channels between the convolutions."""
        return self.window.blocks * (self.window.lanes // QUAD)

    @property
    def column_quads(self) -> int:
        """Quads of output channels of a group."""
        return self.conv.out_blocks * (self.conv.lanes // QUAD) // self.columns

    @property
    def steps(self) -> int:
        """Quads that an item multiplies."""
        return -(-self.quads // self.slices)

    @property
    def group_items(self) -> int:
        """Work-items of a group."""
        return self.column_quads * (self.group_pixels // self.pixels) * self.slices

    @property
    def tiles(self) -> int:
        """Groups over the pixels."""
        return -(-self.conv.all_pixels // self.group_pixels)

    @property
    def local_quads(self) -> int:
        """Quads of local memory: the depthwise result, then the sums of slices."""
        exchanged = self.slices * self.column_quads if self.slices > 1 else 0
        return self.group_pixels * max(self.quads, exchanged)

    @property
    def operands(self) -> int:
        return self.inner + 1

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.conv.out_shape

    @classmethod
    def configure(cls, layer: object, machine: VectorMachine, block: int) -> list[GroupPairConfig]:
        """None: a pair is no layer, see `choose_pair`."""
        return []

    def cycles(self, machine: VectorMachine) -> float:
        if machine.gpu is None:
            return self.window.cycles(machine) + self.conv.cycles(machine)
        return pair_cycles(self, machine.gpu).total * machine.gpu.cores

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """Both convolutions in plain loops, without an epilogue between them."""
        data, depthwise, weight = operands
        return self.conv.meaning(self.window.meaning(data, depthwise), weight)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        inner = inner_kernel(fused)
        if machine.gpu is not None:
            return PairNest(self, inner, fused).launch()
        # cores that take over from the GPU keep the depthwise result in memory
        window, conv, between = self.window.on(machine), self.conv.on(machine), inner.epilogue.out
        assert window is not None and conv is not None
        outer = replace(fused, operands=(between, fused.operands[-1]))
        nests = [window.write(machine, inner), conv.write(machine, outer)]
        return within([between], *nests)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> GroupPairFeatures:
        """Features of both, without what one writes and the other reads."""
        first = self.window.work(EpilogueWork(), machine, item)
        second = self.conv.work(epilogue, machine, item)
        assert first is not None
        cycles = PairCycles(0.0, 0.0, 0.0)
        if machine.gpu is not None:
            cycles = pair_cycles(self, machine.gpu)
        return GroupPairFeatures(
            flops=first.flops + second.flops,
            in_bytes=first.in_bytes + second.in_bytes - first.out_bytes,
            weight_bytes=first.weight_bytes + second.weight_bytes,
            out_bytes=second.out_bytes,
            epilogue_flops=second.epilogue_flops,
            model_cycles=self.cycles(machine),
            vector_lanes=second.vector_lanes,
            item_bytes=second.item_bytes,
            depthwise_flops=first.flops,
            weight_numbers=self.window.channels * prod(self.window.kernel)
            + self.conv.in_channels * self.conv.out_channels,
            busy_cycles=cycles.busy,
            waiting_cycles=cycles.waiting,
            moved_bytes=cycles.moved_bytes,
        )


@dataclass(frozen=True)
class PairCycles:
    """What the model says of a kernel: its units compute, or wait for memory, or move bytes.

    Its constants were fitted to 1,863 configurations of 12 pairs at batch 1 and 16 on an H100 and
    an H200 (median error 8 %); on other GPUs they are orders of magnitude. All of these pairs have
    3x3 windows: others take longer by their taps, as six pairs of 5x5 windows did on an H100.
    """

    busy: float
    waiting: float
    moved_bytes: float  # inputs and results
    weight_bytes: float = 0.0  # of all groups

    @property
    def total(self) -> float:
        """Cycles of the kernel."""
        moved = self.moved_bytes / _BYTES + self.weight_bytes / _WEIGHT_BYTES
        beyond = _beyond(self.moved_bytes) / _MEMORY_BYTES
        return _BEGIN + math.hypot(self.busy, self.waiting) + moved + beyond


def _beyond(moved: float) -> float:
    return max(0.0, moved - _CACHED)


def pair_cycles(config: GroupPairConfig, gpu: GpuMachine) -> PairCycles:
    """Cycles by the model."""
    items, groups = config.group_items, config.tiles * config.columns
    turns = -(-config.quads * config.group_pixels // items) * prod(config.window.kernel) / _TAPS
    waves = -(-items // gpu.wave)
    step = _STEP + _MULTIPLY * config.pixels * _WAVES_AT_ONCE * gpu.wave / gpu.multiply_adds
    step_wait = _STEP_WAIT + _PIXEL_WAIT * config.pixels
    resident = min(
        32,
        gpu.unit_items // items,
        gpu.unit_local_bytes // (16 * config.local_quads + 1024),
        gpu.unit_registers // (items * (40 + 7 * config.pixels)),
    )
    rounds = -(-groups // (gpu.units * max(1, resident)))
    window, conv = config.window, config.conv
    read = window.batch * window.blocks * window.lanes * prod(window.in_size)
    weights = config.tiles * config.quads * QUAD * config.column_quads * config.columns * QUAD
    return PairCycles(
        busy=-(-groups // gpu.units) * waves * (turns * _DEPTHWISE + config.steps * step),
        waiting=rounds * (_GROUP + turns * _DEPTHWISE_WAIT + config.steps * step_wait),
        moved_bytes=4.0 * (read + prod(conv.out_shape)),
        weight_bytes=4.0 * weights,
    )


def _is_faster(config: GroupPairConfig, gpu: GpuMachine) -> bool:
    """Whether one kernel takes less time than two in a plain run, where launches come in a row.

    No kernel is shorter than the launch of the next one: a network of short kernels gains a launch
    (MobileNetV2 at batch 1: 0.77 of its time), one of long kernels does not, because launches hide
    beside them (EfficientNet-Lite4: 1.06 where each pair was joined whose own kernels gained).
    """
    window, conv = config.window, config.conv
    read = window.batch * window.blocks * window.lanes * prod(window.in_size)
    moved = 4.0 * (read + prod(window.out_shape))
    alone = _ALONE + moved / _ALONE_BYTES + _beyond(moved) / _MEMORY_BYTES
    apart = max(2 * LAUNCH, alone + group_conv_cycles(conv, gpu))
    return max(LAUNCH, pair_cycles(config, gpu).total) < apart


def _fits(config: GroupPairConfig, gpu: GpuMachine) -> bool:
    """Whether a group stays within the GPU's limits."""
    largest = min(_LARGEST_GROUP, gpu.max_group_items)
    return (
        min(_SMALLEST_GROUP, largest) <= config.group_items <= largest
        and 16 * config.local_quads + _DRIVERS_BYTES <= gpu.local_bytes
    )


def _config(
    window: GroupWindowConfig, conv: GroupConvConfig, inner: int, tile: PairTile
) -> GroupPairConfig:
    return GroupPairConfig(window=window, conv=conv, inner=inner, **tile._asdict())


def _configs(
    window: GroupWindowConfig, conv: GroupConvConfig, inner: int, gpu: GpuMachine
) -> Iterator[GroupPairConfig]:
    outputs = conv.out_blocks * (conv.lanes // QUAD)
    for tile in itertools.starmap(PairTile, product(_GROUP_PIXELS, _PIXELS, _COLUMNS, _SLICES)):
        if tile.group_pixels % tile.pixels or outputs % tile.columns:
            continue
        config = _config(window, conv, inner, tile)
        if _fits(config, gpu):
            yield config


def pair_tiles(pair: Pair, gpu: GpuMachine) -> list[PairTile]:
    """All tiles that a pair may have, the best by the model first."""
    window = taken(GroupWindowConfig, pair.window, tile=(1, 1), group_items=1)
    conv = group_conv_candidates(pair.conv, gpu, 1)[0]
    if not (gpu.local_on_chip and is_pair(window, conv)):
        return []
    assert isinstance(conv, GroupConvConfig)
    configs = sorted(_configs(window, conv, 2, gpu), key=lambda c: pair_cycles(c, gpu).total)
    return [config.tile for config in configs]


def pair_candidates(pair: Pair, gpu: GpuMachine, count: int) -> list[PairTile]:
    """Up to ``count`` tiles of a pair to try, the best by the model, one of each kind."""
    kinds: dict[tuple[int, ...], PairTile] = {}
    for tile in pair_tiles(pair, gpu):
        kinds.setdefault(tile[1:], tile)
    return [*kinds.values()][:count]


def is_pair(window: Template, conv: Template) -> bool:
    """Whether a template's result can be computed where another template reads it."""
    return (
        type(window) is GroupWindowConfig
        and type(conv) is GroupConvConfig
        and window.kind == "depthwise"
        and window.lanes == conv.lanes == conv.data_block
        and (conv.kernel, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0, 0, 0))
        and conv.groups == 1
        and window.out_shape == (conv.batch, conv.in_blocks, *conv.in_size, conv.lanes)
    )


@lru_cache(maxsize=1024)
def choose_pair(
    window: Template, conv: Template, inner: int, gpu: GpuMachine
) -> GroupPairConfig | None:
    """The configuration of a pair of kernels, as it was measured or by the models of both.

    None where two kernels are faster.
    """
    if not (gpu.local_on_chip and is_pair(window, conv)):
        return None
    assert isinstance(window, GroupWindowConfig) and isinstance(conv, GroupConvConfig)
    measured = gpu.winners.find(Pair.of_kernels(window, conv))
    if measured is not None:
        return None if measured == APART else _config(window, conv, inner, measured)
    best = min(
        _configs(window, conv, inner, gpu),
        key=lambda config: pair_cycles(config, gpu).total,
        default=None,
    )
    return best if best is not None and _is_faster(best, gpu) else None
