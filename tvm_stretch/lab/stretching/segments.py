"""The segments of a network that may be stretched, and the layers of their branches.

    resnet34, stage ends:  64 channels x 3 blocks, 128 x 4, 256 x 6, 512 x 3

Ends of stages are always meeting points, which keeps the skeleton of the network. Equation 4 of
NN-Stretch decides which other meeting points are worth their cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.lab.stretching.block_layers import Layer, block_layers, has_norms, point_conv
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.block_widths import BlockWidths, UnequalWidthsError
from tvm_stretch.network.properties.meeting_points import (
    MeetingPoint,
    MeetingPoints,
    Segment,
    amortise,
)
from tvm_stretch.network.properties.repeated_blocks import Block, detect_stages
from tvm_stretch.passes.duplicate_and_scale import (
    kept_blocks,
    narrowed,
    stage_sizes,
    width_of_block,
)
from tvm_stretch.plan.design import StretchedSegment


@dataclass(frozen=True, eq=False)
class Run:
    """A run of blocks from one meeting point to the next, mostly of one stage."""

    operators: Operators  # the operators of the network
    blocks: tuple[BlockWidths, ...]  # its blocks, in order

    @property
    def start(self) -> str:
        """The meeting point that it reads."""
        return self.blocks[0].start

    @property
    def end(self) -> str:
        """The meeting point that it computes."""
        return self.blocks[-1].end

    @property
    def depth(self) -> int:
        """The number of blocks of the original."""
        return len(self.blocks)

    @property
    def width(self) -> int:
        """Channels of the original's result."""
        return self.blocks[-1].width

    @property
    def read(self) -> int:
        """Channels of the original's input."""
        return self.blocks[0].channels(self.start)

    @cached_property
    def merge(self) -> str:
        """How branches are merged by default, as in the published designs.

        Blocks that expand their input would grow with a concatenation, and blocks that pass it on
        must keep its width.
        """
        if any(block.expands for block in self.blocks):
            return "project"
        try:
            self.blocks[-1].sizes(self.width + 8 * self.width, self.width)
        except UnequalWidthsError:
            return "restore"
        return "concat"

    def rounded(self, ratio: float) -> int:
        """A width of about this ratio, in whole groups."""
        unit = max(block.unit for block in self.blocks)
        return min(self.width, max(unit, unit * round(ratio * self.width / unit)))

    def out_width(self, widths: Sequence[int], merge: str) -> int:
        """Channels of the result of branches."""
        if len(widths) == 1 or merge == "concat":
            return sum(widths)
        return self.width // len(widths) * len(widths)

    def first_layers(self, read: int, width: int, merge: str, branches: int) -> list[Layer]:
        """The layers that do not depend on depth: 1x1 convolutions at the ends, the first block."""
        norm, layers = has_norms(self.operators), []
        if branches > 1 and merge == "project":
            size = narrowed(read, width, self.width)
            layers.append(point_conv(self.operators.shape(self.start), read, size, norm))
            read = size
        share = self.width // branches
        if branches > 1 and merge != "concat" and width != share:
            layers.append(point_conv(self.operators.shape(self.end), width, share, norm))
        return [*layers, *block_layers(self.blocks[0], read, self._width(0, width))]

    @cached_property
    def stages(self) -> list[int]:
        """The numbers of blocks of the stages that it joins; mostly it is within one."""
        return stage_sizes(block.shape for block in self.blocks)

    def _width(self, index: int, width: int) -> int:
        """A block's width in a branch of this width."""
        return width_of_block(self.blocks[index], self.blocks[-1], width)

    def others(self, depth: int, width: int) -> list[tuple[BlockWidths, int, int]]:
        """The blocks of a branch without the first, with the widths that they read and compute."""
        pairs = pairwise(kept_blocks(self.stages, depth))
        return [(self.blocks[k], self._width(b, width), self._width(k, width)) for b, k in pairs]

    def other_layers(self, depth: int, width: int) -> list[Layer]:
        """The layers of `others`."""
        return [layer for block in self.others(depth, width) for layer in block_layers(*block)]

    def layers(self, segment: StretchedSegment, index: int, read: int) -> list[Layer]:
        """All layers of a branch of a design."""
        branch, count = segment.branches[index], len(segment.branches)
        first = self.first_layers(read, branch.width, segment.merge, count)
        return first + self.other_layers(branch.depth, branch.width)

    def original(self) -> list[Layer]:
        """The layers of the unstretched segment."""
        first = self.first_layers(self.read, self.width, "concat", 1)
        return first + self.other_layers(self.depth, self.width)


def find_runs(operators: Operators) -> tuple[Run, ...]:
    """The stages of a network, each as one run; a stage that forks inside gives several."""
    runs, reasons = [], []
    for stage in detect_stages(operators):
        for blocks in _consecutive(stage.blocks):
            try:
                ties = tuple(
                    BlockWidths(operators, [operators[name] for name in block.operators])
                    for block in blocks
                )
            except UnsupportedError as error:
                reasons.append(str(error))
                continue
            if len(operators.shape(blocks[-1].output)) == 4:
                runs.append(Run(operators, ties))
    if not runs:
        raise UnsupportedError(
            "expected blocks between meeting points in the network, got "
            f"{reasons[0] if reasons else 'none'}; there is nothing to stretch"
        )
    return tuple(runs)


def _consecutive(blocks: Sequence[Block]) -> list[list[Block]]:
    """The blocks in chains, in which each block reads only the one before it."""
    groups = [[blocks[0]]]
    for before, block in pairwise(blocks):
        if block.inputs == (before.output,):
            groups[-1].append(block)
        else:
            groups.append([block])
    return groups


def cut_runs(
    runs: Sequence[Run],  # the stages
    # the time of each block on the fastest processor, by the name of its result
    block_ns: Mapping[str, int],
    meeting_ns: Callable[[int], int],  # the time of a meeting for a tensor of this number of bytes
    alpha: float,  # the most communication per computation
) -> tuple[Run, ...]:
    """The runs, cut further where equation 4 allows another meeting point."""
    result = []
    for run in runs:
        operators = run.operators

        def point(name: str, operators: Operators = operators) -> MeetingPoint:
            return MeetingPoint(name, operators.shape(name), operators.bytes(name))

        segments = tuple(
            Segment(point(block.start), point(block.end), (block.end,), 1, 0)
            for block in run.blocks
        )
        worth = {p.tensor for p in amortise(MeetingPoints(segments), block_ns, meeting_ns, alpha)}
        pieces: list[list[BlockWidths]] = [[]]
        for block in run.blocks:
            pieces[-1].append(block)
            if block.end in worth and block is not run.blocks[-1]:
                pieces.append([])
        result += [Run(operators, tuple(piece)) for piece in pieces]
    return tuple(result)


def join_runs(runs: Sequence[Run], block_ns: Mapping[str, int]) -> tuple[Run, ...] | None:
    """The runs with the two neighbours joined that take the least time; None if none touch.

    Short segments are those whose meetings cost the most for what they compute (equation 4).
    """
    pairs = [i for i, (one, other) in enumerate(pairwise(runs)) if one.end == other.start]
    if not pairs:
        return None
    time = [sum(block_ns[block.end] for block in run.blocks) for run in runs]
    first = min(pairs, key=lambda i: time[i] + time[i + 1])
    joined = Run(runs[first].operators, runs[first].blocks + runs[first + 1].blocks)
    return (*runs[:first], joined, *runs[first + 2 :])


def refuse_shared_weights(operators: Operators, stages: Sequence[Run]) -> None:
    """Refuse weights that several blocks share: stretching would make them different."""
    block_of = {m.name: b.end for run in stages for b in run.blocks for m in b.members}
    seen: dict[tuple[tuple[int, ...], bytes], tuple[str, str, Any]] = {}
    for operator in operators:
        if operator.kind != "nn.conv2d" or operator.name not in block_of:
            continue
        weight = operator.call.args[1].value.numpy()
        key = (weight.shape, weight.reshape(-1)[:16].tobytes())
        block, name, other = seen.setdefault(key, (block_of[operator.name], operator.name, weight))
        if block != block_of[operator.name] and np.array_equal(other, weight):
            raise UnsupportedError(
                f"expected weights of their own for all blocks, got {operator.name!r} with those "
                f"of {name!r}; stretching would make them different"
            )
