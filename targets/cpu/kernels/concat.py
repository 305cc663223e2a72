"""Concatenate channels whose parts do not end at block borders, by one shuffle per vector.

Parts of 6, 9 and 5 channels, in blocks of 4 lanes::

    block 0    a[0] whole
    block 1    shuffle(a[1], b[0])
    block 2    shuffle(b[0], b[1])       inside a part all blocks are alike and form one loop,
    block 3    shuffle(b[1], b[2], c[0])   so code grows with the parts, not with the channels
    block 4    shuffle(c[0], c[1])

    for run of blocks:  for block, row, column:  out = epilogue(shuffle(vectors))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.targets.kernels.features import EpilogueWork, Features, Phases, feature
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConcatShape, Layer, taken
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    block,
    const,
    lanes,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

_LANES = (4, 8, 16)  # vectors that OpenCL has too
_WORTH_THREADS = 50_000  # elements that take about as long as waking another core


@dataclass(frozen=True)
class ConcatConfig(Template, ConcatShape):
    """A concatenation in blocks of ``lanes``."""

    template: ClassVar[str] = "concat"
    layers: ClassVar[tuple[type[Layer], ...]] = (ConcatShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)  # others fuse it with its readers
    needs_own_blocks: ClassVar[bool] = True

    lanes: int

    @property
    def operands(self) -> int:
        return len(self.widths)

    @property
    def out_shape(self) -> tuple[int, ...]:
        batch, *size = self.image
        return (batch, -(-sum(self.widths) // self.lanes), *size, self.lanes)

    @classmethod
    def configure(
        cls, layer: ConcatShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        """The configuration for machines with vectors that OpenCL has too."""
        return [taken(cls, layer, lanes=machine.lanes)] if machine.lanes in _LANES else []

    def on(self, machine: VectorMachine) -> Template | None:
        """The template itself on cores with such vectors."""
        return super().on(machine) if machine.lanes in _LANES else None

    def cycles(self, machine: VectorMachine) -> float:
        """Cycles of one core: two loads, a shuffle and a store for each vector."""
        return prod(self.out_shape) * 4.0 / self.lanes

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        return merged(self.widths, self.lanes, operands, self.annotation)

    @property
    def kernel_name(self) -> str:
        return "concat_channels"

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_concat(self, machine, fused)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> ConcatFeatures:
        batch, height, width = self.image
        pixels = batch * height * width
        read = sum(-(-channels // self.lanes) for channels in self.widths) * self.lanes * pixels
        numbers = read, prod(self.out_shape), 0
        return ConcatFeatures.of_kernel(self, self.cycles(machine), epilogue, item, 0.0, numbers)


@dataclass(frozen=True)
class ConcatFeatures(Features):
    """A concatenation whose vectors are shuffled."""

    family: ClassVar[str] = "concat"

    # vectors of the result, those that are made of several, and loops over the pixels of a row
    out_vectors: int = field(
        metadata=feature(lambda config: prod(config.out_shape) // config.lanes)
    )
    shuffled_vectors: int = field(
        metadata=feature(lambda config: _shuffled_blocks(config) * prod(config.image))
    )
    loop_steps: int = field(
        metadata=feature(lambda config: len(block_runs(config)) * prod(config.image[:2]))
    )

    def own_phases(self) -> Phases:
        """Vectors, shuffles and loops."""
        return {
            "vectors": float(self.out_vectors),
            "shuffles": float(self.shuffled_vectors),
            "loops": self.loop_steps * 2.0,
        }


def merged(
    widths: Sequence[int], lanes: int, parts: Sequence[te.Tensor], attrs: dict[str, str]
) -> te.Tensor:
    """The concatenation of blocked images in plain loops."""
    starts, total = [0, *accumulate(widths)], sum(widths)
    n, _, h, w, _ = parts[0].shape

    def element(i: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        c = b * lanes + lane
        value: Expr = tirx.const(0, parts[0].dtype)
        end = total
        for tensor, start in reversed(list(zip(parts, starts, strict=False))):
            at = c - start
            inside = tirx.all(at >= 0, c < end)
            value = tirx.if_then_else(inside, tensor[i, at // lanes, y, x, at % lanes], value)
            end = start
        return value

    out = (n, -(-total // lanes), h, w, lanes)
    return te.compute(out, element, name="concat_channels", attrs=attrs)


def _shuffled_blocks(config: ConcatConfig) -> int:
    """Blocks of the result that are made of several vectors."""
    return sum(run.count for run in block_runs(config) if len(run.vectors) > 1)


@dataclass(frozen=True)
class BlockRun:
    """Consecutive blocks of the result that are assembled by the same shuffle."""

    start: int  # the first block
    count: int  # number of blocks
    # part and block of each vector that the first block reads; others read the next ones
    vectors: tuple[tuple[int, int], ...]
    # source vector and lane of each lane; None for lanes beyond all channels
    places: tuple[tuple[int, int] | None, ...]


def block_runs(cfg: ConcatConfig) -> list[BlockRun]:
    """The runs of the result's blocks, in order."""
    starts = [0, *accumulate(cfg.widths)]
    sources = [divmod(i, cfg.lanes) for width in cfg.widths for i in range(width)]
    parts = [part for part, width in enumerate(cfg.widths) for _ in range(width)]
    runs: list[BlockRun] = []
    for number in range(-(-starts[-1] // cfg.lanes)):
        first = number * cfg.lanes
        own = range(first, min(first + cfg.lanes, starts[-1]))
        vectors = tuple(dict.fromkeys((parts[c], sources[c][0]) for c in own))
        places = [(vectors.index((parts[c], sources[c][0])), sources[c][1]) for c in own]
        filled = (*places, *[None] * (cfg.lanes - len(own)))
        last = runs[-1] if runs else None
        if last and filled == last.places:
            following = tuple((part, at + last.count) for part, at in last.vectors)
            if vectors == following:
                runs[-1] = BlockRun(last.start, last.count + 1, last.vectors, last.places)
                continue
        runs.append(BlockRun(number, 1, vectors, filled))
    return runs


def write_concat(cfg: ConcatConfig, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    """The loop nest of one (fused) concatenation."""
    n, blocks, height, width, _ = (int(d) for d in fused.epilogue.anchor.shape)
    parts, runs = _parts(fused), block_runs(cfg)

    def vector(run: BlockRun, at: Sequence[Expr]) -> tirx.Stmt:
        image, i, y, x = at
        lane = tirx.Ramp(const(0), const(1), cfg.lanes)
        read = [load(parts[part], image, i + first, y, x, lane) for part, first in run.vectors]
        dtype = str(parts[0].dtype)
        whole = scratch("whole", cfg.lanes, dtype=dtype)
        place = (image, i + run.start, y, x)
        filled = cfg.lanes - run.places.count(None)

        def finish(v: Expr) -> tirx.Stmt:
            value = load(whole, v)
            if filled < cfg.lanes:
                value = tirx.Select(v < filled, value, tirx.const(0, dtype))
            return fused.epilogue.store((*place, v), value)

        return within(
            [whole], store(whole, _shuffled(read, run.places), lane), lanes(cfg.lanes, finish)
        )

    def of_run(run: BlockRun, image: Expr, row: Expr | None) -> tirx.Stmt:
        def columns(i: Expr, y: Expr) -> tirx.Stmt:
            return loop(width, lambda x: vector(run, (image, i, y, x)), "column")

        def rows(i: Expr) -> tirx.Stmt:
            return loop(height, lambda y: columns(i, y), "row") if row is None else columns(i, row)

        return loop(run.count, rows, "block")

    def pixels(image: Expr, row: Expr | None = None) -> tirx.Stmt:
        return block(*(of_run(run, image, row) for run in runs))

    if machine.threads > 1 and n * blocks * height * width * cfg.lanes >= _WORTH_THREADS:
        return loop(n * height, lambda r: pixels(*unravelled(r, (n, height))), "rows", PARALLEL)
    return loop(n, pixels, "image")


def _shuffled(read: list[Expr], places: Sequence[tuple[int, int] | None]) -> Expr:
    """A vector of lanes of several vectors; lanes without a source may hold anything."""
    count = len(places)
    filled = [(0, lane) if place is None else place for lane, place in enumerate(places)]
    if filled == [(0, lane) for lane in range(count)]:
        return read[0]
    return tirx.Shuffle(read, [const(vector * count + lane) for vector, lane in filled])


def _parts(fused: FusedKernel) -> list[tirx.Buffer]:
    """The concatenated tensors, in order; a tensor may occur twice."""
    return [load.source for load in nodes_of(fused.blocks[-1].body, TensorLoad)]
