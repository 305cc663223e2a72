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

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from .fused import FusedKernel
from .loops import PARALLEL, block, const, lanes, load, loop, scratch, store, unravelled, within
from .machine import VectorMachine

_LANES = (4, 8, 16)  # vectors that OpenCL has too
_WORTH_THREADS = 50_000  # elements that take about as long as waking another core


@dataclass(frozen=True)
class ConcatConfig:
    """The channels of each part, and the lanes of a block."""

    widths: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class BlockRun:
    """Consecutive blocks of the result that are assembled by the same shuffle.

    Attributes:
        start: the first block.
        count: number of blocks.
        vectors: part and block of each vector that the first block reads; others read the next
            ones.
        places: source vector and lane of each lane; None for lanes beyond all channels.
    """

    start: int
    count: int
    vectors: tuple[tuple[int, int], ...]
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


def shuffles(machine: VectorMachine) -> bool:
    """Whether the template suits a machine; on others, concatenations fuse with their readers."""
    return machine.gpu is None and not machine.packs_bytes and machine.lanes in _LANES


def takes_concat(fused: FusedKernel, machine: VectorMachine) -> bool:
    """Whether the template fits: it has no fused producers, and the machine has its vectors."""
    if not shuffles(machine) or len(fused.blocks) != 1:
        return False
    config = json.loads(fused.config)
    parts = _parts(fused)
    return len(parts) == len(config["widths"])


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
            [whole],
            [store(whole, _shuffled(read, run.places), lane), lanes(cfg.lanes, finish)],
        )

    def of_run(run: BlockRun, image: Expr, row: Expr | None) -> tirx.Stmt:
        def columns(i: Expr, y: Expr) -> tirx.Stmt:
            return loop(width, lambda x: vector(run, (image, i, y, x)), "column")

        def rows(i: Expr) -> tirx.Stmt:
            return loop(height, lambda y: columns(i, y), "row") if row is None else columns(i, row)

        return loop(run.count, rows, "block")

    def some(image: Expr, row: Expr | None = None) -> tirx.Stmt:
        return block([of_run(run, image, row) for run in runs])

    if machine.threads > 1 and n * blocks * height * width * cfg.lanes >= _WORTH_THREADS:
        return loop(n * height, lambda r: some(*unravelled(r, (n, height))), "rows", PARALLEL)
    return loop(n, some, "image")


def _shuffled(read: list[Expr], places: Sequence[tuple[int, int] | None]) -> Expr:
    """A vector of lanes of several vectors; lanes without a source may hold anything."""
    count = len(places)
    filled = [(0, lane) if place is None else place for lane, place in enumerate(places)]
    if filled == [(0, lane) for lane in range(count)]:
        return read[0]
    return tirx.Shuffle(read, [const(vector * count + lane) for vector, lane in filled])


def _parts(fused: FusedKernel) -> list[tirx.Buffer]:
    """The concatenated tensors, in order; a tensor may occur twice."""
    found: list[tirx.Buffer] = []
    body = fused.blocks[-1].body
    tvm_ffi.structural_walk(
        body, (TensorLoad, lambda node: found.append(node.source)), order="post"
    )
    return found
