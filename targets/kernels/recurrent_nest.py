"""The loop nest of a layer that steps through time: its plain loops with vectors over units.

    for step:
      for tile of units, tile of sequences:          # the product with the state
        acc[sequence][gate, vector] = given          # in registers over all of k
        for k:  acc += broadcast(state[k]) * weight[k]
        sums = acc
      for sequence:  for vector:  cell = ..          # every other statement, as it stands there

A step needs all of the one before, so nothing runs in parallel. Each tile reads the weights of its
units once and in their order, from the second-level cache where they fit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Expr

from tvm_stretch.rewriting import rewrite

from .accumulators import Accumulators
from .choose import register_tiles, step_cycles, tile_counts
from .loops import block, const, lanes, load, loop, store, tile_runs, within
from .machine import VectorMachine
from .recurrent import UNITS


def write_recurrence(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.Stmt:
    """The scheduled body of a kernel of `recurrent.py`."""
    root = func.body.block
    width = min(machine.plain.lanes, UNITS)
    body = _Nest(machine.plain, width).written(root.body)
    return within(list(root.alloc_buffers), [body])


@dataclass(frozen=True)
class _Nest:
    machine: VectorMachine
    width: int

    def written(self, statement: tirx.Stmt) -> tirx.Stmt:
        """Loops over time stay; each block inside gets a nest of its own."""
        if isinstance(statement, tirx.SeqStmt):
            return block([self.written(part) for part in statement.seq])
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

        vectors = int(units.extent) // self.width
        return loop(
            int(batch.extent),
            lambda b: loop(vectors, lambda i: vector(b, i * self.width), "vector"),
            "sequence",
        )

    def products(self, statement: s_tir.SBlock, realized: Mapping[Any, Expr]) -> tirx.Stmt:
        """Every sum of one step."""
        step, *axes = statement.iter_vars
        batch, gates, blocks, _, depth = (int(axis.dom.extent) for axis in axes)
        product = _Product(
            statement,
            {step.var: realized[step.var]},
            (gates, depth),
            self.width,
            self.machine.broadcast_operand,
        )
        vectors = blocks * UNITS // self.width
        rows, width = _tile(batch, vectors, gates, depth, self.machine)
        return block(
            [
                loop(
                    units.count * sequences.count,
                    lambda i, u=units, s=sequences: product.tile(
                        (i % s.count * s.width + s.start, s.width),
                        (i // s.count * u.width + u.start, u.width),
                    ),
                    "tile",
                )
                for units in tile_runs(vectors, width, lambda *_: None)
                for sequences in tile_runs(batch, rows, lambda *_: None)
            ]
        )


def _tile(
    batch: int, vectors: int, gates: int, depth: int, machine: VectorMachine
) -> tuple[int, int]:
    """Sequences and vectors of units of a tile, by the model of `choose.py`."""

    def cycles(tile: tuple[int, int]) -> float:
        rows, width = tile
        return sum(
            groups * tiles * depth * step_cycles(p, o * gates, 0, machine)
            for o, groups in tile_counts(vectors, width)
            for p, tiles in tile_counts(batch, rows)
        )

    fitting = [(p, o // gates) for p, o in register_tiles(machine) if o % gates == 0]
    return min(fitting or [(1, 1)], key=cycles)


@dataclass(frozen=True)
class _Product:
    """The block ``sums[b, g, j] = start + sum over k of state[b, k] * weight[block, k, g, lane]``.

    Attributes:
        statement: the block.
        realized: the value of its step.
        size: gates, and how many products each sum has.
        width: lanes of a vector.
        by_element: as for `Accumulators.add_products`.
    """

    statement: s_tir.SBlock
    realized: Mapping[Any, Expr]
    size: tuple[int, int]
    width: int
    by_element: bool

    def at(self, value: Any, *places: Expr) -> Any:
        """The block's expression or statement for places along its axes behind the step."""
        axes = self.statement.iter_vars[1:]
        known = {axis.var: place for axis, place in zip(axes, places, strict=False)}
        return _replaced(value, {**self.realized, **known})

    def load(self, element: Any, *places: Expr) -> Expr:
        """The load of an element, or of a vector where a place is one."""
        return load(element.source, *(self.at(index, *places) for index in element.indices))

    def tile(self, sequences: tuple[Expr, int], units: tuple[Expr, int]) -> tirx.Stmt:
        """The sums of some sequences and vectors of units; both are given as start and number."""
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
            sums = self.at(total.a, *place(p, o, v))
            return store(sums.source, value, *sums.indices)

        start = self.statement.init.value
        return within(
            acc.buffers,
            [
                *acc.start(lambda p, o, v: self.at(start, *place(p, o, v))),
                acc.add_products(
                    range(rows),
                    lambda p, k: self.load(state, row + p, zero, zero, zero, k),
                    lambda k, o, v: self.load(weight, *place(zero, o, v), k),
                    depth,
                    self.by_element,
                ),
                *acc.each(finish),
            ],
        )

    @property
    def dtype(self) -> str:
        return str(self.statement.body.buffer.dtype)


def _loops_of(statement: tirx.Stmt) -> tuple[list[tirx.For], tirx.Stmt]:
    """The loops around a statement, and what is in them: a block, or several statements."""
    loops: list[tirx.For] = []
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    return loops, statement


def _replaced(node: Any, values: Mapping[Any, Expr]) -> Any:
    return rewrite(node, (tirx.Var, lambda var: values.get(var, var)))
