"""Products of two computed matrices on a GPU, as in attention, in plain layout.

for each work-group:                               # a tile of 8 x 8 items
  for slab of the depth:
    local memory <- a[rows][slab], b[slab][columns], zeros beyond the matrices
    acc[rows][columns] += products of the slab
  out = epilogue(acc)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.matmul import MatmulConfig, MatmulShape, place_in
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import taken
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
        found: Template | None = choose(taken(MatmulShape, self), machine)
        return found

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_group_matmul(self, fused)


def write_group_matmul(cfg: GroupMatmulConfig, fused: FusedKernel) -> tirx.Stmt:
    """The kernel of a product."""
    a, b = fused.operands[0], fused.operands[-1]  # a matrix may be multiplied by itself
    (height, depth, width), (wide, high) = cfg.size, (_SIDE * cfg.vectors, _SIDE * cfg.rows)
    left, right = (
        scratch(name, _SLAB * side, scope="shared")
        for name, side in (("left", high), ("right", wide))
    )
    acc = scratch("acc", cfg.rows * cfg.vectors, scope="local")
    column = scratch("column", cfg.rows, scope="local")
    row = scratch("row", cfg.vectors, scope="local")
    sums, tiles = range(cfg.rows * cfg.vectors), cfg.tiles

    def body(group: Expr, item: Expr) -> tirx.Stmt:
        number, top, first = unravelled(group, (prod(cfg.batch), *tiles))
        stack = unravelled(number, cfg.batch)
        down, across = unravelled(item, (_SIDE, _SIDE))
        top, first = top * high, first * wide

        def number_of(
            matrix: tirx.Buffer, shape: tuple[int, ...], y: Expr, x: Expr, fits: tuple[bool, bool]
        ) -> Expr:
            inside = every(
                None if fits[0] else y < shape[-2],
                None if fits[1] else x < shape[-1],
            )
            return chosen(inside, load(matrix, *place_in(shape, stack, y, x)), f32(0.0))

        whole = height % high == 0, depth % _SLAB == 0, width % wide == 0

        def slab(turn: Expr) -> tirx.Stmt:
            start = turn * _SLAB

            def of_left(_: int, n: Expr) -> tirx.Stmt:
                y, k = n // _SLAB, n % _SLAB
                value = number_of(a, cfg.a, top + y, start + k, whole[:2])
                return store(left, value, k * high + y)

            def of_right(_: int, n: Expr) -> tirx.Stmt:
                value = number_of(b, cfg.b, start + n // wide, first + n % wide, whole[1:])
                return store(right, value, n)

            return block(
                [
                    *shares(_SLAB * high, _ITEMS, item, of_left),
                    *shares(_SLAB * wide, _ITEMS, item, of_right),
                    barrier(),
                    loop(_SLAB, multiply, "k"),
                    barrier(),
                ]
            )

        def multiply(k: Expr) -> tirx.Stmt:
            columns = [
                store(column, load(left, k * high + down + i * _SIDE), i) for i in range(cfg.rows)
            ]
            rows = [
                store(row, load(right, k * wide + across + j * _SIDE), j)
                for j in range(cfg.vectors)
            ]
            products = [
                store(
                    acc,
                    load(acc, s) + load(column, s // cfg.vectors) * load(row, s % cfg.vectors),
                    s,
                )
                for s in sums
            ]
            return block([*columns, *rows, *products])

        def finish(s: int) -> tirx.Stmt:
            y = top + down + s // cfg.vectors * _SIDE
            x = first + across + s % cfg.vectors * _SIDE
            inside = every(
                None if whole[0] else y < height,
                None if whole[2] else x < width,
            )
            return when(inside, fused.epilogue.store((*stack, y, x), load(acc, s)))

        return within(
            [left, right, acc, column, row],
            [
                *(store(acc, f32(0.0), s) for s in sums),
                loop(-(-depth // _SLAB), slab, "slab"),
                *map(finish, sums),
            ],
        )

    return launch(prod(cfg.batch) * prod(tiles), _ITEMS, body)
