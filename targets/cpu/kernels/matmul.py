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
with the same results, so that no column is computed separately. Fewer columns than a vector has
lanes make a narrower vector: heads of attention may have 4 or 8 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.cycles import register_tiles, step_cycles, tile_counts
from tvm_stretch.targets.kernels.features import (
    GIGAHERTZ,
    L1_BYTES,
    EpilogueWork,
    Features,
    Phases,
    Work,
    feature,
    missing,
)
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.layers import Layer, MatmulShape, taken
from tvm_stretch.targets.kernels.loops import (
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
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

_LEAST_LANES = 4
"""Every CPU has vectors of this width."""


def lanes_within(columns: int, machine: VectorMachine) -> int:
    """The lanes of the widest vector within a row; 0 if there is none."""
    lanes = machine.lanes
    while lanes > columns and machine.kind == "core" and lanes > _LEAST_LANES:
        lanes //= 2
    return lanes if lanes <= columns else 0


@dataclass(frozen=True, kw_only=True)
class MatmulConfig(Template, MatmulShape):
    """A product and its tile."""

    template: ClassVar[str] = "matmul"
    layers: ClassVar[tuple[type[Layer], ...]] = (MatmulShape,)

    lanes: int
    rows: int = 1
    vectors: int = 1

    @property
    def out_vectors(self) -> int:
        """Vectors that cover a row of the result."""
        return -(-self.size[2] // self.lanes)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.batch, self.size[0], self.size[2])

    @classmethod
    def configure(
        cls, layer: MatmulShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        if min(len(layer.a), len(layer.b)) < 2 or 0 in (*layer.a, *layer.b):
            return []
        lanes = lanes_within(layer.size[2], machine)
        if lanes == 0:
            return []
        base = taken(cls, layer, lanes=lanes)
        return [replace(base, rows=p, vectors=o) for p, o in register_tiles(machine)]

    def cycles(self, machine: VectorMachine) -> float:
        rows, depth, _ = self.size
        slab = depth * self.vectors * self.lanes * 4
        return prod(self.batch) * sum(
            groups * tiles * (step_cycles(p, o, slab, machine) * depth + 12 + 1.5 * p * o)
            for o, groups in tile_counts(self.out_vectors, self.vectors)
            for p, tiles in tile_counts(rows, self.rows)
        )

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The product as a plain reduction."""
        a, b = operands
        rows, depth, columns = self.size
        k = te.reduce_axis((0, depth), "k")

        def element(*axes: Expr) -> Expr:
            *stack, m, n = axes
            return te.sum(
                a[place_in(self.a, stack, m, k.var)] * b[place_in(self.b, stack, k.var, n)], axis=k
            )

        return te.compute(
            (*self.batch, rows, columns), element, name="matmul", attrs=self.annotation
        )

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        # a matrix may be multiplied by itself
        a, b = fused.operands[0], fused.operands[-1]
        nest = _MatmulNest(self, a, b, fused.epilogue, machine.broadcast_operand)
        ragged = self.size[2] % self.lanes > 0
        groups = tile_runs(
            self.out_vectors,
            self.vectors,
            lambda start, width: ragged and start + width == self.out_vectors,
        )
        stack = prod(self.batch)
        kind = PARALLEL if machine.threads > 1 else SERIAL
        return block(
            *(
                loop(
                    stack * run.count,
                    lambda t, run=run: nest.columns(run, t // run.count, t % run.count),
                    "task",
                    kind,
                )
                for run in groups
            )
        )

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> MatmulFeatures:
        outputs, cycles = prod(self.out_shape), self.cycles(machine)
        numbers, flops = (prod(self.a) + prod(self.b), outputs, 0), 2.0 * outputs * self.size[1]
        return MatmulFeatures.of_kernel(self, cycles, epilogue, item, flops, numbers)


@dataclass(frozen=True)
class MatmulFeatures(Features):
    """Products of computed matrices with their register tile."""

    family: ClassVar[str] = "matmul"
    matrices: int = field(metadata=feature(lambda config: prod(config.batch)))
    rows: int = field(metadata=feature(lambda config: config.size[0], least=1, is_constant=True))
    depth_steps: int = field(metadata=feature(lambda config: config.size[1], is_constant=True))
    columns: int = field(metadata=feature(lambda config: config.size[2], least=1, is_constant=True))
    tile_rows: int = field(metadata=feature("rows", least=1, is_constant=True))
    tile_vectors: int = field(metadata=feature("vectors", least=1, is_constant=True))

    def own_phases(self) -> Phases:
        """Tiles, their products, and the columns that each tile reads again."""
        cycles = tiles = accumulators = 0.0
        for vectors, groups in tile_counts(
            -(-self.columns // self.vector_lanes), self.tile_vectors
        ):
            for rows, count in tile_counts(self.rows, self.tile_rows):
                number = self.matrices * groups * count
                step = max(rows * vectors / 2, (rows + vectors) / 1.6, 4.0)
                cycles += number * self.depth_steps * step
                tiles += number
                accumulators += number * rows * vectors
        multiply = cycles / GIGAHERTZ
        slab = self.item_bytes * self.depth_steps * self.tile_vectors * self.vector_lanes
        return {
            "multiply": multiply,
            "tiles": tiles * 5,
            "accumulators": accumulators / 2,
            "columns_again": multiply * missing(slab, L1_BYTES / 2),
            "matrices": self.matrices * 20.0,
        }

    def device_work(self) -> Work:
        second = self.matrices * self.depth_steps * self.columns
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work("pointwise", self.flops / 2, max(0.0, values - second), second)


def place_in(shape: Sequence[int], stack: Sequence[Expr], row: Expr, column: Expr) -> tuple:
    """Indices of an operand's element; ``stack`` contains the result's indices in the stack."""
    own = stack[len(stack) - len(shape) + 2 :]
    return (*(0 if s == 1 else i for i, s in zip(own, shape, strict=False)), row, column)


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
            *(
                loop(
                    rows.count,
                    lambda t, rows=rows: self.tile(
                        stack, t * rows.width + rows.start, rows.width, run.width, start
                    ),
                    "tile",
                )
                for rows in tile_runs(cfg.size[0], cfg.rows, lambda *_: None)
            )
        )

    def tile(
        self, stack: list[Expr], row: Expr, rows: int, width: int, start: Callable[[Expr], Expr]
    ) -> tirx.Stmt:
        """Clear the sums, reduce, pass the tile to the epilogue."""
        cfg = self.cfg
        acc = Accumulators(rows, width, cfg.lanes)

        products = acc.add_products(
            range(rows),
            lambda p, k: load(self.a, *place_in(cfg.a, stack, row + p, k)),
            lambda k, o, v: load(self.b, *place_in(cfg.b, stack, k, start(o) + v)),
            cfg.size[1],
            self.by_element,
        )

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            return self.epilogue.store((*stack, row + p, start(o) + v), value)

        return within(acc.buffers, *acc.start(), products, *acc.for_each(finish))
