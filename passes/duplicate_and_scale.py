"""Stretch a network (NN-Stretch): segments become branches, each less deep and less wide.

    x -> block -> block -> block -> y            64 channels, three blocks

    x -> block.b0 -> block.b0 ------> concat y    merge "concat": 32 + 64 channels; the operators
    `--> block.b1 -> block.b1 ---------^          that follow read all 96

    x -> block.b0 -> block.b0 -> 1x1 -> concat y  "restore": 32 -> 32 and 64 -> 32 channels, so that
    `--> block.b1 -> block.b1 -> 1x1 ---^         64 are left, as before

    x -> 1x1 -> block.b0 -> ...                   "project": the branch's input is narrowed too

The function changes: this is a new network that has to be trained. Its weights start from those of
the given network (scale_operators.py), each branch from other channels. Batch normalisations stay,
since they have to learn new statistics. A branch keeps the first block of each stage and others at
even distances; where a segment joins stages, widths of earlier ones stay in proportion. Where a
block adds its input, which has become wider or narrower, a 1x1 convolution is inserted, as networks
have one where their stages end.

The attribute `BRANCHES` of ``main`` lists the operators of each processor's branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import lcm

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.network.attributes import BRANCHES, SOURCES
from tvm_stretch.network.codec import from_text, to_text
from tvm_stretch.network.emitting.scale_operators import Scaler, Value, window
from tvm_stretch.network.emitting.weights import Origin, Weights
from tvm_stretch.network.expressions import with_variables
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.network.properties.block_widths import BlockWidths, UnequalWidthsError
from tvm_stretch.network.properties.repeated_blocks import Block, detect_blocks
from tvm_stretch.network.provenance import table_of
from tvm_stretch.network.rewriting import with_body
from tvm_stretch.plan.design import Branch, Design, Source, StretchedSegment

NOISE = 0.01
"""Deviation of the noise on weights that two branches share, relative to that of the weights:
equal branches would stay equal however they are trained."""

LEAST_RATIO = 0.1
"""The least depth and width, relative to the original's (NN-Stretch, table 2); the most is 1."""


def duplicate_and_scale(
    mod: tvm.IRModule,  # with batch normalisations, as `frontend.load_trainable` returns it
    design: Design,  # which segments have which branches
    warm: bool = True,  # weights start from those of ``mod``; otherwise all are random, after He
    seed: int = 0,  # of the random numbers
    noise: float = NOISE,  # added to the weights of every branch but the first
) -> tvm.IRModule:
    """The network that a design describes.

    Raises:
        PlanError: the design does not fit the network.
        UnsupportedError: the network cannot be stretched there.
    """
    return with_sources(mod, design, warm, seed, noise)[0]


@tvm.transform.module_pass(opt_level=0, name="DuplicateAndScale")
class DuplicateAndScale:
    """`duplicate_and_scale` as a pass."""

    def __init__(
        self, design: Design, warm: bool = True, seed: int = 0, noise: float = NOISE
    ) -> None:
        self.arguments = design, warm, seed, noise

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return duplicate_and_scale(mod, *self.arguments)


def with_sources(
    mod: tvm.IRModule, design: Design, warm: bool = True, seed: int = 0, noise: float = NOISE
) -> tuple[tvm.IRModule, dict[str, Source]]:
    """As `duplicate_and_scale`, with the channels of ``mod`` from which each tensor comes."""
    stretcher = _Stretcher(mod, design, warm, seed, noise)
    return stretcher.run(), stretcher.scaler.sources


def branch_operators(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """By processor, the names of the operators in its branches."""
    recorded = (mod["main"].attrs or {}).get(BRANCHES)
    return {} if recorded is None else from_text(dict[str, tuple[str, ...]], str(recorded))


def processors_of_branches(mod: tvm.IRModule) -> dict[str, str]:
    """The processor of each operator in a branch, also after normalisations were folded."""
    owner = {name: who for who, names in branch_operators(mod).items() for name in names}
    sources = table_of(mod["main"], SOURCES) if owner else {}
    folded = {n: owner.get(one) for n, source in sources.items() for one in source.operators}
    named = {op.name: owner.get(op.name, folded.get(op.name)) for op in Operators(mod["main"])}
    return {name: who for name, who in named.items() if who is not None}


def blocks_of_segment(blocks: Sequence[Block], segment: StretchedSegment) -> tuple[Block, ...]:
    """The run of blocks from the segment's start to its end."""
    first = [i for i, block in enumerate(blocks) if block.inputs == (segment.start,)]
    last = [i for i, block in enumerate(blocks) if block.output == segment.end]
    run = tuple(blocks[first[0] : last[0] + 1]) if first and last else ()
    if not run or any(b.inputs != (a.output,) for a, b in pairwise(run)):
        tensors = ", ".join(dict.fromkeys([*(b.inputs[0] for b in blocks), blocks[-1].output]))
        raise PlanError(
            f"expected a segment between two ends of blocks, got {segment.start!r} -> "
            f"{segment.end!r}; name two of {tensors}"
        )
    return run


def stage_sizes(shapes: Iterable[tuple[int, ...]]) -> list[int]:
    """Numbers of consecutive blocks whose results have one shape: the stages of a segment."""
    return [len(list(blocks)) for _, blocks in groupby(shapes)]


def kept_blocks(stages: Sequence[int], depth: int) -> list[int]:
    """Which blocks a branch of ``depth`` keeps: the first of each stage, others evenly.

    >>> kept_blocks([6], 3), kept_blocks([3, 5], 4)
    ([0, 2, 5], [0, 2, 3, 7])
    """
    more, spare = depth - len(stages), max(1, sum(stages) - len(stages))
    kept, first, done = [], 0, 0
    for count in stages:
        before, done = (2 * more * done + spare) // (2 * spare), done + count - 1
        own = (2 * more * done + spare) // (2 * spare) - before + 1
        kept += [first + round(i * (count - 1) / max(1, own - 1)) for i in range(own)]
        first += count
    return kept


def width_of_block(block: BlockWidths, last: BlockWidths, width: int) -> int:
    """A block's width in a branch whose last block has ``width``, in proportion to the original."""
    if block.width == last.width:
        return width
    unit = block.unit if block.width % 8 else lcm(block.unit, 8)
    return min(block.width, max(unit, unit * round(width * block.width / last.width / unit)))


def check_segment(segment: StretchedSegment, blocks: Sequence[BlockWidths]) -> None:
    """Refuse invalid depths and widths."""
    where = f"the segment {segment.start!r} -> {segment.end!r}"
    width, depth = blocks[-1].width, len(blocks)
    stages = stage_sizes(block.shape for block in blocks)
    least = (max(len(stages), round(depth * LEAST_RATIO)), max(1, round(width * LEAST_RATIO)))
    for branch in segment.branches:
        if not least[0] <= branch.depth <= depth:
            raise PlanError(
                f"expected a depth from {least[0]} to {depth} blocks for a branch of {where}, got "
                f"{branch.depth}; correct the design"
            )
        if not least[1] <= branch.width <= width:
            raise PlanError(
                f"expected a width from {least[1]} to {width} channels for a branch of {where}, "
                f"got {branch.width}; correct the design"
            )


@dataclass(frozen=True)
class _Span:
    """Consecutive blocks and the branches that replace them."""

    blocks: tuple[Block, ...]
    segment: StretchedSegment


class _Stretcher:
    """Re-emits ``main`` with branches."""

    def __init__(
        self, mod: tvm.IRModule, design: Design, warm: bool, seed: int, noise: float
    ) -> None:
        self.mod, self.main = mod, mod["main"]
        self.operators = Operators(self.main)
        self.noise = noise
        self.blocks = detect_blocks(self.operators)
        self.scaler = Scaler(self.operators, Weights(warm, np.random.default_rng(seed)))
        self.values = {name: self.scaler.unchanged(name) for name in self.operators.params}
        self.names: dict[str, list[str]] = defaultdict(list)
        self.spans = self._find_spans(design)

    def _find_spans(self, design: Design) -> dict[str, _Span]:
        """Runs of blocks by their first operator: the segments of the design, single blocks."""
        spans: dict[str, _Span] = {}
        taken: set[str] = set()
        for segment in design.segments:
            run = blocks_of_segment(self.blocks, segment)
            twice = taken.intersection(block.output for block in run)
            if twice:
                raise PlanError(
                    f"expected segments that share no block, got {min(twice)!r} in two of them; "
                    "correct the design"
                )
            taken.update(block.output for block in run)
            spans[run[0].operators[0]] = _Span(run, segment)
        for block in self.blocks:
            if block.output not in taken and len(block.inputs) == 1:
                whole = Branch("", 1, self.operators.shape(block.output)[1])
                segment = StretchedSegment(block.inputs[0], block.output, (whole,))
                spans[block.operators[0]] = _Span((block,), segment)
        return spans

    def run(self) -> tvm.IRModule:
        done: set[str] = set()
        for operator in self.operators:
            span = self.spans.get(operator.name)
            if span is not None and self._emit_span(span):
                done.update(name for block in span.blocks for name in block.operators)
            if operator.name not in done:
                self.values[operator.name] = self.scaler.again(operator, self.values, operator.name)
        return self._module()

    def _module(self) -> tvm.IRModule:
        block = relax.DataflowBlock(self.scaler.emitter.bindings)
        result = with_variables(self.main.body.body, lambda var: self.values[var.name].var)
        updated = with_body(self.mod, relax.SeqExpr([block], result))
        updated["main"] = updated["main"].with_attr(BRANCHES, to_text(self.names))
        return updated

    # --- segments ---

    def _emit_span(self, span: _Span) -> bool:
        """Emit a run of blocks with its branches; False if nothing about it changes."""
        segment, count = span.segment, len(span.segment.branches)
        listed = bool(segment.branches[0].processor)
        try:
            blocks = [
                BlockWidths(self.operators, [self.operators[n] for n in block.operators])
                for block in span.blocks
            ]
        except UnsupportedError:
            if listed:
                raise
            return False
        check_segment(segment, blocks)
        source = self.values[segment.start]
        if not listed and self.scaler.is_as_before(segment.start, source):
            return False
        branches = [self._emit_branch(segment, blocks, source, i) for i in range(count)]
        if count > 1:
            origin = np.concatenate([value.origin for value in branches])
            branches = [self.scaler.join(branches, segment.end, origin)]
        self.values[segment.end] = branches[0]
        return True

    def _emit_branch(
        self, segment: StretchedSegment, blocks: Sequence[BlockWidths], source: Value, index: int
    ) -> Value:
        branch, count = segment.branches[index], len(segment.branches)
        begin = len(self.scaler.emitter.bindings)
        self.scaler.weights.noise = self.noise if index else 0.0
        value = source
        if count > 1 and segment.merge == "project":
            value = self._enter(segment, blocks[-1], source, index)
        for number in kept_blocks(stage_sizes(block.shape for block in blocks), branch.depth):
            width = width_of_block(blocks[number], blocks[-1], branch.width)
            value = self._emit_block(blocks[number], value, width, index, count)
        if count > 1 and segment.merge != "concat":
            value = self._restore(segment, blocks[-1], value, index)
        self.scaler.weights.noise = 0.0
        if count > 1:
            emitted = self.scaler.emitter.bindings[begin:]
            self.names[branch.processor] += [binding.var.name for binding in emitted]
        return value

    def _enter(
        self, segment: StretchedSegment, last: BlockWidths, source: Value, index: int
    ) -> Value:
        """The 1x1 convolution before a branch, which narrows its input in proportion."""
        branch, count = segment.branches[index], len(segment.branches)
        before = self.operators.shape(segment.start)[1]
        size = narrowed(source.channels, branch.width, last.width)
        origin = window(before, size, index, count)
        return self.scaler.conv_norm(
            source, segment.start, origin, f"{segment.start}.enter.b{index}"
        )

    def _restore(
        self, segment: StretchedSegment, last: BlockWidths, value: Value, index: int
    ) -> Value:
        """The 1x1 convolution after a branch, to its share of the original channels."""
        count, width = len(segment.branches), last.width
        share = width // count
        if value.channels == share:
            return value
        origin = np.arange(index * share, (index + 1) * share)
        return self.scaler.conv_norm(value, segment.end, origin, f"{segment.end}.restore.b{index}")

    def _emit_block(
        self, block: BlockWidths, source: Value, width: int, index: int, count: int
    ) -> Value:
        suffix = f".b{index}" if count > 1 else ""
        scaler = self.scaler
        try:
            sizes = block.sizes(source.channels, width)
        except UnequalWidthsError:
            wanted = window(block.width, width, index, count)
            source = scaler.conv_norm(source, block.start, wanted, f"{block.start}.fit{suffix}")
            sizes = block.sizes(width, width)
        values = {block.start: source}
        for member in block.members:
            root = block.root(member.name)
            origin: Origin | None = None
            if root in sizes and member.kind == "nn.conv2d":
                unit = block.unit_of(root)
                origin = window(block.channels(root), sizes[root], index, count, unit)
            skip = block.skips.get(member.name)
            reads = self._fit_skip(block, member, values, skip, suffix) if skip else values
            name = member.name + suffix
            values[member.name] = scaler.again(member, reads, name, origin)
            if block.is_inside(root) and len(member.shape) == 4:
                unit = block.unit_of(root)
                source_of = scaler.sources[name]
                scaler.sources[name] = replace(source_of, tied=root + suffix, unit=unit)
        return values[block.end]

    def _fit_skip(
        self,
        block: BlockWidths,
        add: Operator,
        values: Mapping[str, Value],
        skip: str,
        suffix: str,
    ) -> Mapping[str, Value]:
        """The operands of a sum, with the skip connection made as wide as the other."""
        (other,) = (name for name in add.inputs if name != skip)
        wanted = values[other]
        if values[skip].channels == wanted.channels:
            return values
        name = f"{add.name}.shortcut{suffix}"
        fitted = self.scaler.conv_norm(values[skip], skip, wanted.origin, name)
        return {**values, skip: fitted}


def narrowed(channels: int, width: int, original: int) -> int:
    """``channels`` in proportion to a branch's width, rounded to a multiple of 8.

    >>> narrowed(32, 40, 56)
    24
    """
    return max(8, 8 * round(channels * width / original / 8))
