"""Products of two computed matrices on a GPU, as in attention, in plain layout.

for each work-group:                               # a tile of 8 x 8 items
  for slab of the depth:
    local memory <- a[rows][slab], b[slab][columns], zeros beyond the matrices
    acc[rows][columns] += products of the slab
  out = epilogue(acc)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.matmul import MatmulConfig, place_in
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import MatmulShape, taken
from tvm_stretch.targets.kernels.loops import (
    block,
    f32,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, choose

from .groups import barrier, chosen, every, launch, shares, when

_SIDE = 8  # work-items of a group, in both directions
_ITEMS = _SIDE * _SIDE
_SLAB = 16
_TILES = ((4, 4), (2, 4), (2, 2), (1, 2))
_EXCHANGE = 8.0
"""What a step of the depth costs besides multiplying and reading, in multiply-adds of an item."""


Place = tuple[Sequence[Expr], Expr, Expr]


@dataclass(frozen=True, kw_only=True)
class GroupMatmulConfig(MatmulConfig):
    """A product; ``rows`` and ``vectors`` are the rows and columns of a work-item."""

    template: ClassVar[str] = "group_matmul"
    machines: ClassVar[tuple[str, ...]] = ("gpu",)

    @property
    def tiles(self) -> tuple[int, int]:
        """Groups over the rows and over the columns."""
        height, _, width = self.size
        return -(-height // (_SIDE * self.rows)), -(-width // (_SIDE * self.vectors))

    @classmethod
    def configure(
        cls, layer: MatmulShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        """A configuration for each tile."""
        gpu = machine.gpu
        assert gpu is not None
        if min(len(layer.a), len(layer.b)) < 2 or 0 in (*layer.a, *layer.b):
            return []
        if not gpu.local_on_chip or gpu.max_group_items < _ITEMS:
            return []
        base = taken(cls, layer, lanes=machine.lanes)
        return [replace(base, rows=rows, vectors=columns) for rows, columns in _TILES]

    def cycles(self, machine: VectorMachine) -> float:
        assert machine.gpu is not None
        _, depth, _ = self.size
        step = 2.0 * self.rows * self.vectors + self.rows + self.vectors + _EXCHANGE
        groups = prod(self.batch) * prod(self.tiles)
        return max(1.0, groups / machine.gpu.units) * step * depth * machine.gpu.cores

    def on(self, machine: VectorMachine) -> Template | None:
        """The template itself, or that of the cores that take over."""
        if machine.gpu is not None:
            return self
        chosen: Template | None = choose(taken(MatmulShape, self), machine)
        return chosen

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return _Nest(self, fused).launch()


class _Nest:
    """The kernel of a product; a tile is its matrices, and its first row and column."""

    def __init__(self, cfg: GroupMatmulConfig, fused: FusedKernel) -> None:
        self.cfg, self.epilogue = cfg, fused.epilogue
        self.a, self.b = fused.operands[0], fused.operands[-1]  # perhaps the same matrix
        self.wide, self.high = _SIDE * cfg.vectors, _SIDE * cfg.rows
        self.left = scratch("left", _SLAB * self.high, scope="shared")
        self.right = scratch("right", _SLAB * self.wide, scope="shared")
        self.acc = scratch("acc", cfg.rows * cfg.vectors, scope="local")
        self.column = scratch("column", cfg.rows, scope="local")
        self.row = scratch("row", cfg.vectors, scope="local")
        height, depth, width = cfg.size
        self.whole = height % self.high == 0, depth % _SLAB == 0, width % self.wide == 0

    def launch(self) -> tirx.Stmt:
        """The kernel."""
        cfg = self.cfg
        return launch(prod(cfg.batch) * prod(cfg.tiles), _ITEMS, self._group)

    def _group(self, group: Expr, item: Expr) -> tirx.Stmt:
        cfg, sums = self.cfg, range(self.cfg.rows * self.cfg.vectors)
        number, top, first = unravelled(group, (prod(cfg.batch), *cfg.tiles))
        place = unravelled(number, cfg.batch), top * self.high, first * self.wide
        down, across = unravelled(item, (_SIDE, _SIDE))
        steps = -(-cfg.size[1] // _SLAB)
        return within(
            [self.left, self.right, self.acc, self.column, self.row],
            *(store(self.acc, f32(0.0), s) for s in sums),
            loop(steps, lambda turn: self._slab(place, turn * _SLAB, item), "slab"),
            *(self._finish(place, down, across, s) for s in sums),
        )

    def _slab(self, place: Place, start: Expr, item: Expr) -> tirx.Stmt:
        """Fetch a slab of the depth, and multiply it."""
        (stack, top, first), whole, high, wide = place, self.whole, self.high, self.wide
        down, across = unravelled(item, (_SIDE, _SIDE))

        def number_of(
            matrix: tirx.Buffer, shape: tuple[int, ...], y: Expr, x: Expr, fits: tuple[bool, ...]
        ) -> Expr:
            rows, columns = (
                (None if fits[0] else y < shape[-2]),
                (None if fits[1] else x < shape[-1]),
            )
            number = load(matrix, *place_in(shape, stack, y, x))
            return chosen(every(rows, columns), number, f32(0.0))

        def of_left(_: int, n: Expr) -> tirx.Stmt:
            y, k = n // _SLAB, n % _SLAB
            value = number_of(self.a, self.cfg.a, top + y, start + k, whole[:2])
            return store(self.left, value, k * high + y)

        def of_right(_: int, n: Expr) -> tirx.Stmt:
            y, x = start + n // wide, first + n % wide
            return store(self.right, number_of(self.b, self.cfg.b, y, x, whole[1:]), n)

        return block(
            *shares(_SLAB * high, _ITEMS, item, of_left),
            *shares(_SLAB * wide, _ITEMS, item, of_right),
            barrier(),
            loop(_SLAB, lambda k: self._multiply(k * high + down, k * wide + across), "k"),
            barrier(),
        )

    def _multiply(self, left: Expr, right: Expr) -> tirx.Stmt:
        """Add the products of a step of the depth."""
        cfg, acc, column, row = self.cfg, self.acc, self.column, self.row
        rows = [store(column, load(self.left, left + i * _SIDE), i) for i in range(cfg.rows)]
        columns = [store(row, load(self.right, right + j * _SIDE), j) for j in range(cfg.vectors)]
        products = [
            store(
                acc, load(acc, s) + load(column, s // cfg.vectors) * load(row, s % cfg.vectors), s
            )
            for s in range(cfg.rows * cfg.vectors)
        ]
        return block(*rows, *columns, *products)

    def _finish(self, place: Place, down: Expr, across: Expr, s: int) -> tirx.Stmt:
        (stack, top, first), (height, _, width) = place, self.cfg.size
        y = top + down + s // self.cfg.vectors * _SIDE
        x = first + across + s % self.cfg.vectors * _SIDE
        rows, columns = None if self.whole[0] else y < height, None if self.whole[2] else x < width
        stored = self.epilogue.store((*stack, y, x), load(self.acc, s))
        return when(every(rows, columns), stored)
