"""Schedules the PrimFuncs of `recurrent.py`: vectors over hidden units, sums in registers.

    for step:
      for tile of units, tile of sequences:          # the product with the state
        acc[sequence][gate, vector] = given          # in registers over all of k
        for k:  acc += broadcast(state[k]) * weight[k]
        sums = acc
      for sequence:  for vector:  cell = ..          # other statements keep their expressions

Each step depends on the previous one, so the kernel runs on one thread. A tile reads the weights of
its units once per step and sequentially, from the L2 cache if they fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import s_tir, tirx
from tvm.ir import Expr

from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.network.steps import UNITS
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.cycles import register_tiles, step_cycles, tile_counts
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.loops import (
    block,
    const,
    lanes,
    load,
    loop,
    store,
    tile_runs,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template


@dataclass(frozen=True)
class Steps(Template):
    """All steps of a recurrent layer, a PrimFunc of `recurrent.py`."""

    template: ClassVar[str] = "steps"
    takes_epilogue: ClassVar[bool] = False
    units: int  # hidden units, without padding

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        root = fused.func.body.block
        width = min(machine.plain.lanes, UNITS)
        body = _Nest(machine.plain, width, -(-self.units // width)).written(root.body)
        return within(list(root.alloc_buffers), body)


@dataclass(frozen=True)
class _Nest:
    """Writes the loops for vectors of ``width`` lanes, ``vectors`` of which hold all units."""

    machine: VectorMachine
    width: int
    vectors: int

    def written(self, statement: tirx.Stmt) -> tirx.Stmt:
        """The loops over time stay; each block inside them gets a new loop nest."""
        if isinstance(statement, tirx.SeqStmt):
            return block(*(self.written(part) for part in statement.seq))
        loops, inner = _loops_of(statement)
        if not isinstance(inner, s_tir.SBlockRealize):
            (step,) = loops
            return tirx.For(step.loop_var, step.min, step.extent, step.kind, self.written(inner))
        realized = {a.var: v for a, v in zip(inner.block.iter_vars, inner.iter_values, strict=True)}
        if inner.block.init is not None:
            return self.products(inner.block, realized)
        return self.elementwise(inner.block, realized, loops)

    def elementwise(
        self, statement: s_tir.SBlock, realized: Mapping[Any, Expr], loops: list[tirx.For]
    ) -> tirx.Stmt:
        """One statement for every unit of every sequence, the units in vectors."""
        batch, units = loops

        def vector(b: Expr, first: Expr) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                inner = {batch.loop_var: b, units.loop_var: first + v}
                return _replaced(_replaced(statement.body, realized), inner)

            return lanes(self.width, lane)

        return loop(
            int(batch.extent),
            lambda b: loop(self.vectors, lambda i: vector(b, i * self.width), "vector"),
            "sequence",
        )

    def products(self, statement: s_tir.SBlock, realized: Mapping[Any, Expr]) -> tirx.Stmt:
        """The products of one step."""
        step, *axes = statement.iter_vars
        batch, gates, _, _, depth = (int(axis.dom.extent) for axis in axes)
        product = _Product(
            statement,
            {step.var: realized[step.var]},
            (gates, depth),
            self.width,
            self.machine.broadcast_operand,
        )
        rows, width = tile_of(batch, self.vectors, gates, depth, self.machine)
        return block(
            *(
                loop(
                    units.count * sequences.count,
                    lambda i, u=units, s=sequences: product.tile(
                        (i % s.count * s.width + s.start, s.width),
                        (i // s.count * u.width + u.start, u.width),
                    ),
                    "tile",
                )
                for units in tile_runs(self.vectors, width, lambda *_: None)
                for sequences in tile_runs(batch, rows, lambda *_: None)
            )
        )


def tile_of(
    batch: int, vectors: int, gates: int, depth: int, machine: VectorMachine
) -> tuple[int, int]:
    """The size of a tile in sequences and vectors, by the cost model of `cycles.py`."""

    def cycles(tile: tuple[int, int]) -> float:
        rows, width = tile
        return sum(
            groups * tiles * depth * step_cycles(p, o * gates, 0, machine)
            for o, groups in tile_counts(vectors, width)
            for p, tiles in tile_counts(batch, rows)
        )

    tiles = [(p, o // gates) for p, o in register_tiles(machine) if o % gates == 0]
    lanes = min(machine.lanes, UNITS)
    # a tile that ends within a block reads two blocks of weights side by side: 1.07 to 1.11 of the
    # time of an LSTM of 256 units on AVX2
    fitting = [(p, o) for p, o in tiles if UNITS % (o * lanes) == 0 or o * lanes % UNITS == 0]
    return min(fitting or [(1, 1)], key=cycles)


@dataclass(frozen=True)
class _Product:
    """``sums[b, g, j] = start + sum over k of state[b, k] * weight[block, k, g, lane]``."""

    statement: s_tir.SBlock  # the block
    realized: Mapping[Any, Expr]  # the time step by its block variable
    size: tuple[int, int]  # the number of gates, and of products per sum
    width: int  # the number of lanes of a vector
    by_element: bool  # see `Accumulators.add_products`

    def placed(self, value: Any, *places: Expr) -> Any:
        """An expression of the block with values for its axes; the step is already known."""
        axes = self.statement.iter_vars[1:]
        values = {axis.var: place for axis, place in zip(axes, places, strict=False)}
        return _replaced(value, {**self.realized, **values})

    def load(self, element: Any, *places: Expr) -> Expr:
        """A load at these places; it loads a vector if one of them is a ramp."""
        return load(element.source, *(self.placed(index, *places) for index in element.indices))

    def tile(self, sequences: tuple[Expr, int], units: tuple[Expr, int]) -> tirx.Stmt:
        """The sums of a tile; sequences and vectors of units are given as (start, count)."""
        (gates, depth), (row, rows), (first, vectors) = self.size, sequences, units
        acc = Accumulators(rows, gates * vectors, self.width, dtype=self.dtype)
        zero, each_block = const(0), UNITS // self.width
        total = self.statement.body.value
        state, weight = total.b.a, total.b.b

        def place(p: Expr, o: Expr, v: Expr) -> tuple[Expr, ...]:
            vector = first + o % vectors
            lane = vector % each_block * self.width + v
            return row + p, o // vectors, vector // each_block, lane

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            sums = self.placed(total.a, *place(p, o, v))
            return store(sums.source, value, *sums.indices)

        start = self.statement.init.value
        return within(
            acc.buffers,
            *acc.start(lambda p, o, v: self.placed(start, *place(p, o, v))),
            acc.add_products(
                range(rows),
                lambda p, k: self.load(state, row + p, zero, zero, zero, k),
                lambda k, o, v: self.load(weight, *place(zero, o, v), k),
                depth,
                self.by_element,
            ),
            *acc.for_each(finish),
        )

    @property
    def dtype(self) -> str:
        return str(self.statement.body.buffer.dtype)


def _loops_of(statement: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    """The loops around a statement, and their body: a block, or several statements."""
    loops: list[tirx.For] = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _replaced(node: Any, values: Mapping[Any, Expr]) -> Any:
    return rewrite(node, (tirx.Var, lambda var: values.get(var, var)))
