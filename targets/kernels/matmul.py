"""Products of two computed matrices, as in attention, in plain layout and register-tiled.

    out[.., m, n] = sum of a[.., m, k] * b[.., k, n]

A tile is ``rows`` rows times ``vectors`` vectors of a row; it stays in registers for all of k::

    for matrix, group of columns:                # parallel
      for tile of rows:                          # balanced: 197 -> 32 x 6 + 5
        acc[rows][vectors] = 0
        for k, row, vector:
          acc += broadcast(a) * b
        out = epilogue(acc)

If vectors do not divide the columns, the last vector ends with the row and recomputes some columns
with the same results, so that no column is computed separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tvm import te, tirx
from tvm.ir import Expr

from .accumulators import Accumulators
from .choose import register_tiles, step_cycles, tile_counts
from .fused import Epilogue, FusedKernel
from .loops import (
    PARALLEL,
    SERIAL,
    TileRun,
    block,
    const,
    load,
    loop,
    tile_runs,
    unravelled,
    within,
)
from .machine import VectorMachine


@dataclass(frozen=True)
class MatmulConfig:
    """Two matrices, or stacks of matrices, and the tile of their product.

    An axis of a stack is 1 if one matrix is multiplied by all matrices of the other stack.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    lanes: int
    rows: int = 1
    vectors: int = 1

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes of the stack of results."""
        rank = max(len(self.a), len(self.b)) - 2
        stacks = ((1,) * (rank + 2 - len(shape)) + shape[:-2] for shape in (self.a, self.b))
        return tuple(map(max, *stacks))

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, depth and columns."""
        return self.a[-2], self.a[-1], self.b[-1]

    @property
    def out_vectors(self) -> int:
        """Vectors that cover a row of the result."""
        return -(-self.size[2] // self.lanes)


def choose_matmul(
    a: tuple[int, ...], b: tuple[int, ...], machine: VectorMachine
) -> MatmulConfig | None:
    """The fastest tile by the model of `choose.py`; None if the template does not fit."""
    base = MatmulConfig(a, b, machine.lanes)
    if machine.gpu is not None or 0 in (*a, *b) or base.size[2] < machine.lanes:
        return None
    tiles = (replace(base, rows=p, vectors=o) for p, o in register_tiles(machine))
    return min(tiles, key=lambda config: _cycles(config, machine))


def _cycles(cfg: MatmulConfig, machine: VectorMachine) -> float:
    rows, depth, _ = cfg.size
    slab = depth * cfg.vectors * cfg.lanes * 4
    return sum(
        groups * tiles * (step_cycles(p, o, slab, machine) * depth + 12 + 1.5 * p * o)
        for o, groups in tile_counts(cfg.out_vectors, cfg.vectors)
        for p, tiles in tile_counts(rows, cfg.rows)
    )


def matmul_compute(
    cfg: MatmulConfig, a: te.Tensor, b: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """The product as a plain reduction."""
    rows, depth, columns = cfg.size
    k = te.reduce_axis((0, depth), "k")

    def element(*axes: Expr) -> Expr:
        *stack, m, n = axes
        return te.sum(a[_place(cfg.a, stack, m, k.var)] * b[_place(cfg.b, stack, k.var, n)], axis=k)

    return te.compute((*cfg.batch, rows, columns), element, name="matmul", attrs=annotation)


def _place(shape: Sequence[int], stack: Sequence[Expr], row: Expr, column: Expr) -> tuple:
    """Indices of an operand's element; ``stack`` contains the result's indices in the stack."""
    own = stack[len(stack) - len(shape) + 2 :]
    return (*(0 if s == 1 else i for i, s in zip(own, shape, strict=False)), row, column)


def write_matmul(
    cfg: MatmulConfig,
    machine: VectorMachine,
    fused: FusedKernel,
) -> tirx.Stmt:
    """The loop nest of one (fused) product."""
    # a matrix may be multiplied by itself
    a, b = fused.operands[0], fused.operands[-1]
    nest = _MatmulNest(cfg, a, b, fused.epilogue, machine.broadcast_operand)
    ragged = cfg.size[2] % cfg.lanes > 0
    groups = tile_runs(
        cfg.out_vectors,
        cfg.vectors,
        lambda start, width: ragged and start + width == cfg.out_vectors,
    )
    stack = prod(cfg.batch)
    kind = PARALLEL if machine.threads > 1 else SERIAL
    return block(
        [
            loop(
                stack * run.count,
                lambda t, run=run: nest.columns(run, t // run.count, t % run.count),
                "task",
                kind,
            )
            for run in groups
        ]
    )


@dataclass(frozen=True)
class _MatmulNest:
    cfg: MatmulConfig
    a: tirx.Buffer
    b: tirx.Buffer
    epilogue: Epilogue
    by_element: bool

    def columns(self, run: TileRun[bool], matrix: Expr, group: Expr) -> tirx.Stmt:
        """All rows of a group of columns of one matrix."""
        cfg = self.cfg
        stack = unravelled(matrix, cfg.batch)
        first = (group * run.width + run.start) * cfg.lanes

        def start(o: Expr) -> Expr:
            column = first + o * cfg.lanes
            return tirx.min(column, const(cfg.size[2] - cfg.lanes)) if run.work else column

        return block(
            [
                loop(
                    rows.count,
                    lambda t, rows=rows: self.tile(
                        stack, t * rows.width + rows.start, rows.width, run.width, start
                    ),
                    "tile",
                )
                for rows in tile_runs(cfg.size[0], cfg.rows, lambda *_: None)
            ]
        )

    def tile(
        self, stack: list[Expr], row: Expr, rows: int, width: int, start: Callable[[Expr], Expr]
    ) -> tirx.Stmt:
        """Clear the sums, reduce, pass the tile to the epilogue."""
        cfg = self.cfg
        acc = Accumulators(rows, width, cfg.lanes)

        products = acc.add_products(
            range(rows),
            lambda p, k: load(self.a, *_place(cfg.a, stack, row + p, k)),
            lambda k, o, v: load(self.b, *_place(cfg.b, stack, k, start(o) + v)),
            cfg.size[1],
            self.by_element,
        )

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            return self.epilogue.store((*stack, row + p, start(o) + v), value)

        return within(
            acc.buffers,
            [
                *acc.start(),
                products,
                *acc.each(finish),
            ],
        )
