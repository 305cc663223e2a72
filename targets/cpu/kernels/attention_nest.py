"""The loop nest of one band of an attention; `attention.py` has its drawing.

    for piece of the keys:                         # usually there is one
      if the mask shows one of its keys to a row:
        scores, top, powers and their sum, as in `attention.py`
        factor[row] = exp(top of earlier pieces - top)
        sums[row] = sums[row] * factor[row] + scores * v

A piece that the mask hides has powers of 0 if each row sees another key. Otherwise all are read.

Before a product, the keys or values of one of several pieces are packed in the order in which they
are read: columns of a large matrix lie in as many pages as the near table of pages has entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import add
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.exponentials import LARGEST
from tvm_stretch.targets.kernels.loops import (
    as_type,
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

from .attention_memory import BandMemory
from .matmul import place_in
from .softmax import exponential, joined

if TYPE_CHECKING:
    pass

_HIDDEN = -1e29
"""Masks below hide a key: no score makes up for them, so its power is 0 beside any other key's."""

_Finish = Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
"""From the row, column, lane and value of a sum."""


@dataclass(frozen=True, eq=False)
class Band(BandMemory):
    """Some queries of one stack, whose scores are in the cache."""

    def write(self) -> tirx.Stmt:
        """The scores, their exponentials, and the sums of the values."""
        cfg, keys = self.cfg, self.cfg.v[-2]
        buffers = [self.scores, self.top, self.inverse]
        if not self.in_pieces:
            return within(buffers, self.start(), *self.piece(const(0), keys))
        whole, rest = divmod(keys, cfg.piece)
        pieces = [loop(whole, lambda i: self.shown_piece(i * cfg.piece, cfg.piece), "piece")]
        pieces += [self.shown_piece(const(whole * cfg.piece), rest)] if rest else []
        return within(
            [*buffers, self.earlier, self.factor, self.sums, self.shown],
            self.start(),
            *self.start_sums(),
            *self.look_at_rows(),
            *pieces,
            loop(self.rows, self.finished, "row"),
        )

    def finished(self, row: Expr) -> tirx.Stmt:
        """Divide the sums of a row, and store them."""
        width, columns = self.cfg.lanes, self.cfg.v[-1]

        def vector(i: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                column = i * width + v
                value = load(self.sums, row, column) * load(self.inverse, row)
                place = (*self.stack, self.first + row, column)
                return self.fused.epilogue.store(place, value)

            return lanes(width, lane)

        inverse = store(self.inverse, self.inverse_of(load(self.inverse, row)), row)
        return block(inverse, loop(columns // width, vector, "vector"))

    def inverse_of(self, total: Expr) -> Expr:
        """The inverse of the sum of a row; 0 if all its scores are minus infinity."""
        zeroes = self.cfg.zeroes_hidden
        return tirx.Select(total == 0, f32(0.0), 1.0 / total) if zeroes else f32(1.0) / total

    def mask(self, row: Expr, key: Expr) -> Expr:
        """The summand of a score."""
        at = (*self.stack, self.first + row, key)
        return load(self.fused.operands[3 if self.cfg.is_rounded else 2], *self.cfg.mask_place(at))

    def scale_of(self, operand: int, key: Expr) -> Expr:
        """The scale of a key or a value of a cache in int8."""
        return load(self.fused.operands[operand], *self.cfg.scale_place(self.stack, key))

    def greatest(self, row: Expr, begin: Expr, keys: int) -> tirx.Stmt:
        """Store the greatest of the masks of a row, or of a smaller number before, in `shown`."""
        width = self.cfg.lanes

        def vector(i: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                value = self.mask(row, begin + i * width + v)
                return store(self.shown, tirx.max(load(self.shown, v), value), v)

            return lanes(width, lane)

        def single(k: Expr) -> tirx.Stmt:
            value = self.mask(row, begin + (keys - keys % width) + k)
            return store(self.shown, tirx.max(load(self.shown, 0), value), 0)

        steps = [loop(keys // width, vector, "vector")] if keys >= width else []
        steps += [loop(keys % width, single, "key")] if keys % width else []
        return block(*steps)

    def look_at_rows(self) -> list[tirx.Stmt]:
        """Keep the least, over the rows, of the greatest mask of a row."""
        if not self.skips:
            return []
        width, keys = self.cfg.lanes, self.cfg.v[-2]

        def row(r: Expr) -> tirx.Stmt:
            nothing = lanes(width, lambda v: store(self.shown, f32(-inf), v))
            top = joined(self.shown, width, tirx.max)
            kept = store(self.shown, tirx.min(load(self.shown, width), top), width)
            return block(nothing, self.greatest(r, const(0), keys), kept)

        return [store(self.shown, f32(inf), width), loop(self.rows, row, "row")]

    def shown_piece(self, begin: Expr, keys: int) -> tirx.Stmt:
        """A piece of the keys, unless the mask hides it from all rows."""
        steps, width = block(*self.piece(begin, keys)), self.cfg.lanes
        if not self.skips:
            return steps
        nothing = lanes(width, lambda v: store(self.shown, f32(-inf), v))
        masks = loop(self.rows, lambda r: self.greatest(r, begin, keys), "row")
        is_shown = joined(self.shown, width, tirx.max) > f32(_HIDDEN)
        is_blind = load(self.shown, width) <= f32(_HIDDEN)
        return block(nothing, masks, tirx.IfThenElse(tirx.any(is_shown, is_blind), steps, None))

    def piece(self, begin: Expr, keys: int) -> list[tirx.Stmt]:
        """The scores of some keys, their exponentials, and the sums of their values."""
        cfg = self.cfg
        operands, masks = self.fused.operands, self.cfg.mask is not None
        q, k, v = operands[0], operands[1], operands[-2 if cfg.is_rounded else -1]

        def score(row: Expr, key: Expr, lane: Expr, value: Expr) -> tirx.Stmt:
            value = value * f32(cfg.scale) if cfg.scale != 1 else value
            value = value * self.scale_of(2, begin + key) if cfg.is_rounded else value
            value = value + self.mask(row, begin + key) if masks else value
            top = tirx.max(load(self.top, row, lane), value)
            return block(store(self.scores, value, row, key), store(self.top, top, row, lane))

        def sum_of(row: Expr, column: Expr, _: Expr, value: Expr) -> tirx.Stmt:
            place = (*self.stack, self.first + row, column)
            if self.in_pieces:
                value = value + load(self.sums, row, column) * load(self.factor, row)
                return store(self.sums, value, row, column)
            return self.fused.epilogue.store(place, value * load(self.inverse, row))

        def query(row: Expr, depth: Expr) -> Expr:
            return load(q, *place_in(cfg.q, self.stack, self.first + row, depth))

        def key_of(depth: Expr, key: Expr) -> Expr:
            return as_type(load(k, *cfg.key_place(self.stack, begin + key, depth)), "float32")

        def value_of(key: Expr, column: Expr) -> Expr:
            return as_type(load(v, *place_in(cfg.v, self.stack, begin + key, column)), "float32")

        if cfg.in_place:
            scores = self.by_key(query, key_of, keys, score)
        else:
            scores = self.product(cfg.of_scores, (cfg.q[-1], keys), query, key_of, score)
        return [
            *self.hide_beyond(keys),
            scores,
            loop(self.rows, lambda row: self.softmax(row, keys), "row"),
            *([self.scale_shares(begin, keys)] if cfg.is_rounded else []),
            self.product(
                cfg.of_values,
                (keys, cfg.v[-1]),
                lambda row, key: load(self.scores, row, key),
                value_of,
                sum_of,
            ),
        ]

    def start(self) -> tirx.Stmt:
        """Maxima before the first score: from a finite one, hidden keys have sums of 0."""
        least = -LARGEST if self.in_pieces or self.cfg.zeroes_hidden else -inf
        return self.fill(self.top, least, 0, self.cfg.lanes)

    def start_sums(self) -> list[tirx.Stmt]:
        """Nothing was added yet."""

        def row(r: Expr) -> tirx.Stmt:
            return block(store(self.earlier, f32(-LARGEST), r), store(self.inverse, f32(0.0), r))

        return [loop(self.rows, row, "row"), self.fill(self.sums, 0.0, 0, self.cfg.v[-1])]

    def hide_beyond(self, keys: int) -> list[tirx.Stmt]:
        """Scores beyond the last key are minus infinity, whose exponentials are 0."""
        first, rest = divmod(keys, width := self.cfg.lanes)
        return [self.fill(self.scores, -inf, first * width, width)] if rest else []

    def fill(self, buffer: tirx.Buffer, value: float, first: int, columns: int) -> tirx.Stmt:
        """Store a number in some columns of all rows."""
        width = self.cfg.lanes

        def vector(r: Expr, i: Expr) -> tirx.Stmt:
            return lanes(width, lambda v: store(buffer, f32(value), r, i * width + v + first))

        return loop(
            self.rows, lambda r: loop(columns // width, partial(vector, r), "vector"), "row"
        )

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
        count, ragged = -(-columns // width), columns % width > 0
        packed = scratch("packed", count, depth, width)

        def column(o: Expr, v: Expr, ends: bool) -> Expr:
            return (tirx.min(o * width, const(columns - width)) if ends else o * width) + v

        def pack(k: Expr, o: Expr) -> tirx.Stmt:
            return lanes(width, lambda v: store(packed, right(k, column(o, v, ragged)), o, k, v))

        def sums(row: Expr, rows: int, first: Expr, vectors: int, ends: bool) -> tirx.Stmt:
            def operand(k: Expr, o: Expr, v: Expr) -> Expr:
                if self.packs:
                    return load(packed, first + o, k, v)
                return right(k, column(first + o, v, ends))

            def result(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
                return finish(row + p, column(first + o, v, ends), v, value)

            acc = Accumulators(rows, vectors, width)
            products = acc.add_products(
                range(rows), lambda p, k: left(row + p, k), operand, depth, self.by_element
            )
            return within(acc.buffers, *acc.start(), products, *acc.for_each(result))

        def group(first: Expr, vectors: int, ends: bool) -> tirx.Stmt:
            runs = tile_runs(self.rows, most, lambda *_: None)

            def run_of(start: int, rows: int, count: int) -> tirx.Stmt:
                return loop(
                    count, lambda t: sums(t * rows + start, rows, first, vectors, ends), "tile"
                )

            return block(*(run_of(run.start, run.width, run.count) for run in runs))

        groups = tile_runs(count, vectors, lambda start, n: ragged and start + n == count)
        tiles = [
            loop(n.count, lambda g, n=n: group(g * n.width + n.start, n.width, n.work), "group")
            for n in groups
        ]
        if not self.packs:
            return block(*tiles)
        return within(
            [packed], loop(depth, lambda k: loop(count, partial(pack, k), "vector"), "step"), *tiles
        )

    def by_key(
        self,
        query: Callable[[Expr, Expr], Expr],
        key_of: Callable[[Expr, Expr], Expr],
        keys: int,
        finish: _Finish,
    ) -> tirx.Stmt:
        """Scores of few queries, each the sum of a vector of products along the depth."""
        width, depth = self.cfg.lanes, self.cfg.q[-1]
        acc = scratch("acc", width)
        whole = depth // width

        def score(row: Expr, key: Expr) -> tirx.Stmt:
            def product(at: Expr) -> Expr:
                return query(row, at) * key_of(at, key)

            def vector(i: Expr) -> tirx.Stmt:
                return lanes(width, lambda v: store(acc, load(acc, v) + product(i * width + v), v))

            rest = (product(const(i)) for i in range(whole * width, depth))
            value = sum(rest, joined(acc, width, add))
            return block(
                lanes(width, lambda v: store(acc, f32(0.0), v)),
                *([loop(whole, vector, "vector")] if whole else []),
                finish(row, key, const(0), value),
            )

        scores = loop(keys, lambda n: loop(self.rows, lambda row: score(row, n), "row"), "key")
        return within([acc], scores)

    def softmax(self, row: Expr, keys: int) -> tirx.Stmt:
        """The exponentials of a row, and their sum, or its inverse if there is one piece."""
        width, count = self.cfg.lanes, -(-keys // self.cfg.lanes)
        total = scratch("total", width)

        def power(at: Expr, v: Expr) -> tirx.Stmt:
            difference = load(self.scores, row, at + v) - load(self.top, row, 0)
            return block(
                store(self.scores, exponential(difference, False), row, at + v),
                store(total, load(total, v) + load(self.scores, row, at + v), v),
            )

        def nothing(i: Expr) -> tirx.Stmt:
            return lanes(width, lambda v: store(self.scores, f32(0.0), row, i * width + v))

        # a score that is no number makes the sum none, and with it all shares of the row
        cleared = block(loop(count, nothing, "vector"), store(self.inverse, f32(0.0), row))
        cleared = tirx.IfThenElse(tirx.isnan(load(self.inverse, row)), cleared, None)
        value = joined(total, width, add)
        if self.in_pieces:
            value = value + load(self.inverse, row) * load(self.factor, row)
        return within(
            [total],
            store(self.top, joined(self.top, width, tirx.max, row), row, 0),
            *(self.rescale(row) if self.in_pieces else []),
            lanes(width, lambda v: store(total, f32(0.0), v)),
            loop(count, lambda i: lanes(width, partial(power, i * width)), "vector"),
            store(self.inverse, value if self.in_pieces else self.inverse_of(value), row),
            *([cleared] if self.cfg.zeroes_nan else []),
        )

    def scale_shares(self, begin: Expr, keys: int) -> tirx.Stmt:
        """Let the powers of a piece be factors of values in int8."""

        def share(row: Expr, key: Expr) -> tirx.Stmt:
            value = load(self.scores, row, key) * self.scale_of(-1, begin + key)
            return store(self.scores, value, row, key)

        def vectors(row: Expr) -> tirx.Stmt:
            width = self.cfg.lanes
            whole, rest = divmod(keys, width)
            parts = [loop(whole, lambda i: lanes(width, lambda v: share(row, i * width + v)))]
            parts += [loop(rest, lambda i: share(row, whole * width + i))] if rest else []
            return block(*(parts if whole else parts[1:]))

        return loop(self.rows, vectors, "row")

    def rescale(self, row: Expr) -> list[tirx.Stmt]:
        """The factor of the sums of earlier pieces, whose powers have another top."""
        top = load(self.top, row, 0)
        return [
            store(self.factor, exponential(load(self.earlier, row) - top, False), row),
            store(self.earlier, top, row),
        ]
