"""Compute which input channels the vectors of a register tile read, so that no product is zero.

Blocks contain as many channels as a vector has lanes.  In a last block that is not full only
existing lanes are read, and with merged groups each vector reads the channels of its own groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tvm.ir import Expr

if TYPE_CHECKING:
    from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
    from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig


@dataclass(frozen=True)
class ChannelRun:
    """Input channels that the same vectors of a tile read: the same lanes of consecutive blocks."""

    block: int  # the first block, relative to the first block that the tile reads
    blocks: int  # number of blocks
    lanes: tuple[int, int]  # first and end lane of each block
    vectors: tuple[int, int]  # first and end vector of the tile

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.blocks * self.width

    @property
    def width(self) -> int:
        """Number of lanes in each block."""
        return self.lanes[1] - self.lanes[0]

    def lane(self, index: Expr) -> Expr:
        """The index-th lane."""
        return index + self.lanes[0] if self.lanes[0] else index


def whole_run(cfg: ConvConfig, vectors: int) -> ChannelRun:
    """A run in which every vector reads every lane; channels that do not exist are zeros."""
    return ChannelRun(0, cfg.reduce_blocks, (0, cfg.data_block), (0, vectors))


def channel_runs(cfg: ConvConfig, vectors: int) -> list[ChannelRun] | None:
    """The runs that a tile of ``vectors`` reads; None if they differ between tiles."""
    if cfg.data_block == 1:
        return [whole_run(cfg, vectors)]
    merge, left = cfg.merged_groups, cfg.groups % cfg.merged_groups
    widths = cfg.in_channels // cfg.groups, cfg.out_channels // cfg.groups
    if merge > 1:
        full, last = (-(-groups * widths[1] // cfg.lanes) for groups in (merge, left))
        reads = [-(-groups * widths[0] // cfg.lanes) for groups in (merge, left)]
        if cfg.oc_blocks < full or (last == full and reads[0] != reads[1]):
            return None  # otherwise groups that do not exist have weights of zero
        if left and vectors < full:
            merge = left
    return runs_of_groups(widths, merge, cfg.lanes, vectors)


def winograd_runs(cfg: WinogradConfig, vectors: int) -> list[ChannelRun]:
    """The runs of a part's planes that the products of a tile of ``vectors`` read."""
    if cfg.merged_groups > 1 and cfg.oc_blocks < cfg.out_blocks:
        return [ChannelRun(0, cfg.in_blocks, (0, cfg.lanes), (0, vectors))]
    widths = cfg.in_channels // cfg.groups, cfg.out_channels // cfg.groups
    return runs_of_groups(widths, cfg.merged_groups, cfg.lanes, vectors)


def mean_channels(runs: Sequence[ChannelRun]) -> int:
    """The mean number of input channels that a vector of a tile reads."""
    read = sum(run.channels * (run.vectors[1] - run.vectors[0]) for run in runs)
    return round(read / max(run.vectors[1] for run in runs))


def runs_of_groups(
    widths: tuple[int, int],  # input and output channels of a group
    groups: int,  # number of groups; with one group, all vectors read all channels
    lanes: int,  # of a vector, and of a block of channels
    vectors: int,
) -> list[ChannelRun]:
    """The runs that vectors of output channels read, without products that are zero.

    Two groups of 24 channels in three vectors of 16 lanes::

        vector 0 reads   0 .. 24              block 0 and half of block 1: vectors 0 and 1
        vector 1 reads   0 ........ 48   ->   the other half and block 2:  vectors 1 and 2
        vector 2 reads        24 .. 48
    """
    inputs, outputs = widths
    reads = [(0, inputs)] * vectors
    if groups > 1:
        each = [[v * lanes, (v + 1) * lanes - 1] for v in range(vectors)]
        bounds = [[min(c, groups * outputs - 1) // outputs for c in pair] for pair in each]
        reads = [(first * inputs, (last + 1) * inputs) for first, last in bounds]
    edges = sorted({edge for read in reads for edge in read})
    runs = [
        run
        for start, end in pairwise(edges)
        for run in _runs(start, end, lanes, _between(reads, start, end))
    ]
    # Short runs first: unrolled at the end, LLVM would mix them with the use of the sums.
    return sorted(runs, key=lambda run: run.channels)


def _between(reads: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int]:
    """The consecutive vectors that read channels ``start`` to ``end``."""
    active = [v for v, (low, high) in enumerate(reads) if low <= start and end <= high]
    return active[0], active[-1] + 1


def _runs(start: int, end: int, lanes: int, vectors: tuple[int, int]) -> list[ChannelRun]:
    """Channels ``start`` to ``end``: part of a block, whole blocks, part of a block."""
    runs = []
    while start < end:
        block, lane = divmod(start, lanes)
        blocks = 1 if lane else max((end - start) // lanes, 1)
        upto = min(lanes, lane + end - start)
        runs.append(ChannelRun(block, blocks, (lane, upto), vectors))
        start += runs[-1].channels
    return runs
