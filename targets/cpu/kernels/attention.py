"""Attention in one kernel: the matrix of scores exists for a band of rows only, in the cache.

    out[.., m, :] = sum of softmax(q[m] . k[n] * scale + mask[m, n]) over n, times v[n, :]

    for stack, band of rows:                       # parallel
      for columns, tile of rows:                   # register tiles, as in `matmul.py`
        scores[rows][columns] = q * k * scale + mask;  top[row][lane] = their maximum
      for row:                                     # powers replace scores
        scores[row] = exp(scores[row] - max of top);  inverse[row] = 1 / sum
      for columns, tile of rows:
        out = epilogue(scores * v * inverse)

Rows of the band are complete, so the answer is that of the three operators; only the division comes
after the sum. Keys and values that exceed the second-level cache are read in pieces, each of which
serves more rows; where a later piece has a greater score, earlier sums are scaled
(`attention_nest.py`).

Keys and values of a cache may be int8, with a scale for each row: the scale of a key is a factor of
its scores, that of a value one of its shares.

Keys usually come transposed, as (depth, keys). Few queries read them as they are, (keys, depth):
then a copy would take longer than the products.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.features import (
    GIGAHERTZ,
    EpilogueWork,
    Features,
    Phases,
    Work,
    feature,
)
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import AttentionShape, Layer, MatmulShape, taken
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    block,
    const,
    f32,
    loop,
    tile_runs,
    unravelled,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, choose

from .attention_nest import Band
from .matmul import MatmulConfig, place_in

FEW_QUERIES = 4
"""Most queries that read keys as (keys, depth)."""

_BAND = 32
"""Most rows of a band: the keys that a register tile reads serve all of its tiles."""

_PIECE, _ROWS_OF_PIECES = 192, 128
"""Most keys of a piece, and rows of a band where there are several pieces (AMD Zen 3)."""

_HIDDEN_KEYS, _FEW_KEYS = 128, 64
"""Most keys of a piece that a mask may hide, for many queries and for few."""


@dataclass(frozen=True)
class AttentionFeatures(Features):
    """Queries, keys and values of several heads."""

    family: ClassVar[str] = "attention"
    # heads, queries of a head, and columns of the values
    matrices: int = field(metadata=feature(lambda config: prod(config.stack), least=1))
    rows: int = field(metadata=feature(lambda config: config.scores.size[0], least=1))
    key_rows: int = field(
        metadata=feature(lambda config: config.scores.size[2], least=1, is_constant=True)
    )
    depth_steps: int = field(
        metadata=feature(lambda config: config.scores.size[1], least=1, is_constant=True)
    )
    columns: int = field(metadata=feature(lambda config: config.v[-1], least=1, is_constant=True))

    def own_phases(self) -> Phases:
        """Vectors of products and of exponentials, and rows."""
        lanes, rows = self.vector_lanes, self.matrices * self.rows
        vectors = rows * -(-self.key_rows // lanes)
        products = vectors * self.depth_steps + rows * self.key_rows * -(-self.columns // lanes)
        return {
            "multiply": products / 2 / GIGAHERTZ,
            "exponentials": vectors * 4.0,
            "rows": rows * 10.0,
        }

    def device_work(self) -> Work:
        """Products of matrices, whose second operands stand for weights."""
        second = self.matrices * self.key_rows * (self.depth_steps + self.columns)
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work("pointwise", self.flops / 2, max(0.0, values - second), second)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Template, AttentionShape):
    """An attention, its band of rows and the register tiles of both products."""

    template: ClassVar[str] = "attention"
    layers: ClassVar[tuple[type[Layer], ...]] = (AttentionShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)

    lanes: int  # of the softmax
    band: int
    piece: int  # keys whose scores are in memory at the same time
    of_scores: tuple[int, int, int]  # rows, vectors, and the lanes of a vector
    of_values: tuple[int, int, int]

    @property
    def operands(self) -> int:
        """Queries, keys, values, perhaps a mask, and perhaps the scales of keys and values."""
        return 3 + (self.mask is not None) + 2 * self.is_rounded

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.stack, self.q[-2], self.v[-1])

    @classmethod
    def configure(
        cls, layer: AttentionShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        """The configuration with the best tile of each product."""
        rows, keys = layer.q[-2], layer.v[-2]
        if 0 in (*layer.q, *layer.k, *layer.v):
            return []
        piece = _piece(layer, machine)
        most = _BAND if piece == keys else _ROWS_OF_PIECES
        band = min(rows, most, max(1, machine.l2_bytes // 4 // (4 * piece)))
        scores = choose(MatmulShape((band, layer.q[-1]), (layer.q[-1], piece)), machine)
        values = choose(MatmulShape((band, piece), (piece, layer.v[-1])), machine)
        if scores is None or values is None:
            return []
        tiles = {"of_scores": scores, "of_values": values}
        sizes = {name: (tile.rows, tile.vectors, tile.lanes) for name, tile in tiles.items()}
        return [taken(cls, layer, lanes=machine.lanes, band=band, piece=piece, **sizes)]

    def cycles(self, machine: VectorMachine) -> float:
        """Cycles of one core: those of both products, and the exponentials."""
        products = (
            MatmulConfig(a=a, b=b, lanes=lanes, rows=rows, vectors=vectors)
            for a, b, (rows, vectors, lanes) in (
                (self.scores.a, self.scores.b, self.of_scores),
                ((*self.scores.batch, self.q[-2], self.v[-2]), self.v, self.of_values),
            )
        )
        exponentials = prod(self.stack) * self.q[-2] * self.v[-2] * 10.0 / self.lanes
        return sum(product.cycles(machine) for product in products) + exponentials

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> AttentionFeatures:
        rows, depth, keys = self.scores.size
        read = prod(self.q) + prod(self.k) + prod(self.v) + prod(self.mask or (0,))
        numbers, cycles = (read, prod(self.out_shape), 0), self.cycles(machine)
        flops = 2.0 * prod(self.stack) * rows * keys * (depth + self.v[-1])
        return AttentionFeatures.of_kernel(self, cycles, epilogue, item, flops, numbers)

    @property
    def sampled(self) -> object:
        """None: campaigns measure its products and softmax by themselves."""
        return None

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """Both products and the softmax in plain loops."""
        q, k, v, *rest = operands
        scales = [rest.pop(), rest.pop()] if self.is_rounded else []  # of values, of keys
        mask = rest
        rows, keys, width = self.q[-2], self.v[-2], self.v[-1]
        d, n, m, j = (
            te.reduce_axis((0, extent), name)
            for extent, name in ((self.q[-1], "d"), (keys, "n"), (keys, "m"), (keys, "j"))
        )
        stack = self.scores.batch

        def score(*at: Expr) -> Expr:
            *s, row, key = at
            of_key = k[self.key_place(s, key, d.var)]
            of_key = of_key.astype("float32") if scales else of_key
            return te.sum(q[place_in(self.q, s, row, d.var)] * of_key, axis=d)

        def scaled(*at: Expr) -> Expr:
            value = scores[at] * f32(self.scale)
            value = value * scales[1][self.scale_place(at[:-2], at[-1])] if scales else value
            return value + mask[0][self.mask_place(at)] if mask else value

        scores = te.compute((*stack, rows, keys), score, name="scores")
        x = te.compute((*stack, rows, keys), scaled, name="scaled")
        top = te.compute((*stack, rows), lambda *at: te.max(x(*at, m.var), axis=m), name="top")
        power = te.compute(x.shape, lambda *at: tirx.exp(x[at] - top[at[:-1]]), name="power")
        total = te.compute(
            (*stack, rows), lambda *at: te.sum(power(*at, j.var), axis=j), name="total"
        )

        def share_of(*at: Expr) -> Expr:
            value = power[at] / total[at[:-1]]
            if self.zeroes_hidden:
                return tirx.Select(top[at[:-1]] == f32(-inf), f32(0.0), value)
            return tirx.Select(tirx.isnan(value), f32(0.0), value) if self.zeroes_nan else value

        share = te.compute(x.shape, share_of, name="share")

        def element(*at: Expr) -> Expr:
            *s, row, column = at
            own = place_in((*stack, rows, keys), s, row, n.var)
            value = v[place_in(self.v, s, n.var, column)]
            if scales:
                value = value.astype("float32") * scales[0][self.scale_place(s, n.var)]
            return te.sum(share[own] * value, axis=n)

        return te.compute(
            (*self.stack, rows, width), element, name="attention", attrs=self.annotation
        )

    def key_place(self, stack: list[Expr], key: Expr, depth: Expr) -> tuple[Expr, ...]:
        """Where a number of a key stands."""
        place = (key, depth) if self.in_place else (depth, key)
        return place_in(self.k, stack, *place)

    def scale_place(self, stack: Sequence[Expr], key: Expr) -> tuple[Expr, ...]:
        """Where the scale of a key or a value stands."""
        return place_in(self.row_scales, [*stack], key, const(0))

    def mask_place(self, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where the mask of a score stands."""
        assert self.mask is not None
        own = at[len(at) - len(self.mask) :]
        return tuple(const(0) if s == 1 else i for i, s in zip(own, self.mask, strict=True))

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        """The loop nest of all bands."""
        kind = PARALLEL if machine.threads > 1 else SERIAL
        runs = tile_runs(self.q[-2], self.band, lambda *_: None)
        stacks = prod(self.stack)

        def band(task: Expr, start: int, count: int, rows: int) -> tirx.Stmt:
            stack = unravelled(task // count, self.stack)
            first = task % count * rows + start
            by_element = machine.broadcast_operand
            return Band(self, fused, by_element, stack, first, rows).write()

        return block(
            *(
                loop(
                    stacks * run.count,
                    lambda t, run=run: band(t, run.start, run.count, run.width),
                    "task",
                    kind,
                )
                for run in runs
            )
        )


def _piece(layer: AttentionShape, machine: VectorMachine) -> int:
    """The keys of a piece, which are whole vectors where there are several pieces."""
    rows, keys, width = layer.q[-2], *layer.v[-2:]
    # The last vector of a row of sums must not overlap the one before, because each piece adds.
    simple = width % machine.lanes == 0 and not layer.zeroes_nan
    fit = 4 * keys * (layer.q[-1] + width) <= machine.l2_bytes // 2
    most = _FEW_KEYS if layer.in_place else _HIDDEN_KEYS if layer.hides_pieces else _PIECE
    of_use = layer.hides_pieces or not (fit or layer.in_place)
    if not simple or not of_use or keys <= most or (rows < _BAND and not layer.in_place):
        return keys
    if layer.in_place:
        return most
    sizes = range(most, 0, -machine.lanes)
    return next((n for n in sizes if keys % n == 0 or keys % n >= machine.lanes), keys)
