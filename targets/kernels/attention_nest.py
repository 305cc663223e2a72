"""The loop nest of one band of an attention; `attention.py` has its drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from operator import add
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from .accumulators import Accumulators
from .fused import FusedKernel
from .loops import (
    block,
    const,
    f32,
    lanes,
    load,
    loop,
    scratch,
    store,
    tile_runs,
    within,
)
from .matmul import place_in
from .softmax import exponential, joined

if TYPE_CHECKING:
    from .attention import AttentionConfig

_Finish = Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
"""From the row, column, lane and value of a sum."""


@dataclass(frozen=True, eq=False)
class Band:
    """Some queries of one stack, whose scores are in the cache."""

    cfg: AttentionConfig
    fused: FusedKernel
    by_element: bool
    stack: list[Expr]
    first: Expr
    rows: int

    @cached_property
    def scores(self) -> tirx.Buffer:
        """The scores, then their exponentials; rows end with whole vectors."""
        return scratch("scores", self.rows, -(-self.cfg.v[-2] // self.cfg.lanes) * self.cfg.lanes)

    @cached_property
    def top(self) -> tirx.Buffer:
        """By row, the greatest scores of each lane, then the greatest of all."""
        return scratch("top", self.rows, self.cfg.lanes)

    @cached_property
    def inverse(self) -> tirx.Buffer:
        """By row, the inverse of the sum of the exponentials."""
        return scratch("inverse", self.rows)

    def write(self) -> tirx.Stmt:
        """The scores, their exponentials, and the sums of the values."""
        cfg, keys = self.cfg, self.cfg.v[-2]
        q, k, *mask, v = self.fused.operands

        def score(row: Expr, key: Expr, lane: Expr, value: Expr) -> tirx.Stmt:
            value = value * f32(cfg.scale) if cfg.scale != 1 else value
            if mask:
                at = (*self.stack, self.first + row, key)
                value = value + load(mask[0], *cfg.mask_place(at))
            top = tirx.max(load(self.top, row, lane), value)
            return block([store(self.scores, value, row, key), store(self.top, top, row, lane)])

        def sum_of(row: Expr, column: Expr, _: Expr, value: Expr) -> tirx.Stmt:
            place = (*self.stack, self.first + row, column)
            return self.fused.epilogue.store(place, value * load(self.inverse, row))

        def query(row: Expr, depth: Expr) -> Expr:
            return load(q, *place_in(cfg.q, self.stack, self.first + row, depth))

        if cfg.in_place:
            scores = self.by_key(query, k, score)
        else:
            scores = self.product(
                cfg.of_scores,
                (cfg.q[-1], keys),
                query,
                lambda depth, key: load(k, *cfg.key_place(self.stack, key, depth)),
                score,
            )
        return within(
            [self.scores, self.top, self.inverse],
            [
                *self.start(),
                scores,
                loop(self.rows, self.softmax, "row"),
                self.product(
                    cfg.of_values,
                    cfg.v[-2:],
                    lambda row, key: load(self.scores, row, key),
                    lambda key, column: load(v, *place_in(cfg.v, self.stack, key, column)),
                    sum_of,
                ),
            ],
        )

    def start(self) -> list[tirx.Stmt]:
        """Minus infinity: maxima, and scores beyond the last key, whose exponentials are 0."""
        width, last = self.cfg.lanes, int(self.scores.shape[1]) - self.cfg.lanes
        starts = [(self.top, 0), *([(self.scores, last)] if last + width > self.cfg.v[-2] else [])]

        def row(r: Expr, buffer: tirx.Buffer, first: int) -> tirx.Stmt:
            return lanes(width, lambda v: store(buffer, f32(-inf), r, v + first))

        return [loop(self.rows, partial(row, buffer=b, first=f), "row") for b, f in starts]

    def product(
        self,
        tile: tuple[int, int, int],  # rows, vectors and lanes of a register tile
        size: tuple[int, ...],  # depth and columns
        left: Callable[[Expr, Expr], Expr],  # from row and depth
        right: Callable[[Expr, Expr], Expr],  # from depth and column
        finish: _Finish,
    ) -> tirx.Stmt:
        """A product in register tiles; a last vector may overlap the one before."""
        (depth, columns), (most, vectors, width) = size, tile
        count = -(-columns // width)

        def sums(row: Expr, rows: int, first: Expr, vectors: int, ends: bool) -> tirx.Stmt:
            def column(o: Expr, v: Expr) -> Expr:
                start = first + o * width
                return (tirx.min(start, const(columns - width)) if ends else start) + v

            acc = Accumulators(rows, vectors, width)
            products = acc.add_products(
                range(rows),
                lambda p, k: left(row + p, k),
                lambda k, o, v: right(k, column(o, v)),
                depth,
                self.by_element,
            )
            results = acc.each(lambda p, o, v, value: finish(row + p, column(o, v), v, value))
            return within(acc.buffers, [*acc.start(), products, *results])

        def group(first: Expr, vectors: int, ends: bool) -> tirx.Stmt:
            runs = tile_runs(self.rows, most, lambda *_: None)

            def run_of(start: int, rows: int, count: int) -> tirx.Stmt:
                return loop(
                    count, lambda t: sums(t * rows + start, rows, first, vectors, ends), "tile"
                )

            return block([run_of(run.start, run.width, run.count) for run in runs])

        ragged = columns % width > 0
        groups = tile_runs(count, vectors, lambda start, n: ragged and start + n == count)
        return block(
            [
                loop(
                    run.count,
                    lambda g, run=run: group(
                        (g * run.width + run.start) * width, run.width, run.work
                    ),
                    "group",
                )
                for run in groups
            ]
        )

    def by_key(
        self,
        query: Callable[[Expr, Expr], Expr],
        k: tirx.Buffer,
        finish: _Finish,
    ) -> tirx.Stmt:
        """Scores of few queries, each the sum of a vector of products along the depth."""
        cfg, width, depth = self.cfg, self.cfg.lanes, self.cfg.q[-1]
        acc = scratch("acc", width)
        whole = depth // width

        def key_of(row: Expr, key: Expr) -> tirx.Stmt:
            def product(at: Expr) -> Expr:
                return query(row, at) * load(k, *cfg.key_place(self.stack, key, at))

            def vector(i: Expr) -> tirx.Stmt:
                return lanes(width, lambda v: store(acc, load(acc, v) + product(i * width + v), v))

            value = joined(acc, width, add)
            for i in range(whole * width, depth):
                value = value + product(const(i))
            return block(
                [
                    lanes(width, lambda v: store(acc, f32(0.0), v)),
                    *([loop(whole, vector, "vector")] if whole else []),
                    finish(row, key, const(0), value),
                ]
            )

        keys = loop(cfg.v[-2], lambda n: loop(self.rows, lambda row: key_of(row, n), "row"), "key")
        return within([acc], [keys])

    def softmax(self, row: Expr) -> tirx.Stmt:
        """The exponentials of a row, and the inverse of their sum."""
        width, count = self.cfg.lanes, int(self.scores.shape[1]) // self.cfg.lanes
        total = scratch("total", width)

        def power(at: Expr, v: Expr) -> tirx.Stmt:
            difference = load(self.scores, row, at + v) - load(self.top, row, 0)
            return block(
                [
                    store(self.scores, exponential(difference, False), row, at + v),
                    store(total, load(total, v) + load(self.scores, row, at + v), v),
                ]
            )

        def nothing(i: Expr) -> tirx.Stmt:
            return lanes(width, lambda v: store(self.scores, f32(0.0), row, i * width + v))

        # a score that is no number makes the sum none, and with it all shares of the row
        hidden = tirx.isnan(load(self.inverse, row))
        cleared = block([loop(count, nothing, "vector"), store(self.inverse, f32(0.0), row)])
        zeroed = [tirx.IfThenElse(hidden, cleared, None)] if self.cfg.zeroes_nan else []
        return within(
            [total],
            [
                store(self.top, joined(self.top, width, tirx.max, row), row, 0),
                lanes(width, lambda v: store(total, f32(0.0), v)),
                loop(count, lambda i: lanes(width, partial(power, i * width)), "vector"),
                store(self.inverse, f32(1.0) / joined(total, width, add), row),
                *zeroed,
            ],
        )
