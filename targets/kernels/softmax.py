"""Softmax along the last axis, row by row, so that a row stays in the first-level cache.

    for row:                                     # parallel
      top = max of vectors of x
      for vector:  power = exp(x - top);  sum += power
      for vector:  out = epilogue(power * (1 / sum))

Where vectors do not divide the row, the last one ends with it; what it computes again it does not
add again.

Denormal numbers, with which multiplications take a hundred times as long, are kept only where
somebody may tell them from zero: log(softmax(x)) does, a product of matrices does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from math import log, prod

import tvm_ffi
from tvm import te, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from .fused import FusedKernel
from .loops import (
    PARALLEL,
    SERIAL,
    block,
    const,
    f32,
    lanes,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)
from .machine import VectorMachine

_TINY = 2.0**-125
"""Twice the least float32 that is not denormal."""
_NOTHING = 2.0**-150
"""Half of the least float32."""


@dataclass(frozen=True)
class SoftmaxConfig:
    """The tensor, the lanes of a vector, and whether denormal results are kept or are 0."""

    shape: tuple[int, ...]
    lanes: int
    denormals: bool = True


def choose_softmax(
    shape: tuple[int, ...], axis: int, machine: VectorMachine, denormals: bool = True
) -> SoftmaxConfig | None:
    """None where the template does not fit."""
    last = axis in (-1, len(shape) - 1)
    if machine.group_items > 1 or not last or 0 in shape or shape[-1] < machine.lanes:
        return None
    return SoftmaxConfig(shape, machine.lanes, denormals)


def softmax_compute(cfg: SoftmaxConfig, x: te.Tensor, annotation: dict[str, str]) -> te.Tensor:
    """What it means."""
    rows, columns = cfg.shape[:-1], cfg.shape[-1]
    k, j = (te.reduce_axis((0, columns), name) for name in "kj")
    top = te.compute(rows, lambda *row: te.max(x(*row, k.var), axis=k), name="top")
    power = te.compute(cfg.shape, lambda *at: tirx.exp(x[at] - top[at[:-1]]), name="power")
    total = te.compute(rows, lambda *row: te.sum(power(*row, j.var), axis=j), name="total")
    return te.compute(
        cfg.shape, lambda *at: power[at] / total[at[:-1]], name="softmax", attrs=annotation
    )


def write_softmax(cfg: SoftmaxConfig, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
    """The loop nest of one (fused) softmax."""
    rows = prod(cfg.shape[:-1])
    kind = PARALLEL if machine.threads > 1 else SERIAL
    return loop(rows, _Row(cfg, fused).write, "row", kind)


_Vector = Callable[[Expr, Expr, Expr, int], tirx.Stmt]
"""From a vector's number, the column and the number of a lane, and how many lanes came before."""


@dataclass(frozen=True)
class _Row:
    cfg: SoftmaxConfig
    fused: FusedKernel
    difference: tirx.Var = field(default_factory=lambda: tirx.Var("difference", "float32"))
    """One, since TVM wants the variables within the exponential to have one meaning."""

    def write(self, row: Expr) -> tirx.Stmt:
        """One row of all passes."""
        cfg = self.cfg
        at = unravelled(row, cfg.shape[:-1])
        width, count = cfg.lanes, -(-cfg.shape[-1] // cfg.lanes)
        again = count * width - cfg.shape[-1]
        top, total = scratch("top", width), scratch("total", width)
        power = scratch("power", count * width)
        x = self.fused.operands[0]

        def each(vector: _Vector, first: int = 0) -> tirx.Stmt:
            """``vector(number, column, lane, again)`` for every vector of the row."""

            def one(number: Expr, column: Expr, again: int) -> tirx.Stmt:
                return lanes(width, lambda v: vector(number, column + v, v, again))

            whole = count - (again > 0)
            parts = [
                loop(whole - first, lambda i: one(i + first, (i + first) * width, 0), "vector")
            ]
            if again:
                parts.append(one(const(count - 1), const(cfg.shape[-1] - width), again))
            return block(parts if whole > first else parts[1:])

        def raise_top(_: Expr, column: Expr, v: Expr, _again: int) -> tirx.Stmt:
            return store(top, tirx.max(load(top, v), load(x, *at, column)), v)

        def exponential(number: Expr, column: Expr, v: Expr, _again: int) -> tirx.Stmt:
            value = self.power((*at, column), load(top, 0))
            return store(power, value, number * width + v)

        def add(number: Expr, _: Expr, v: Expr, again: int) -> tirx.Stmt:
            value = load(power, number * width + v)
            if again:
                value = tirx.Select(v >= again, value, f32(0.0))
            return store(total, load(total, v) + value, v)

        def finish(number: Expr, column: Expr, v: Expr, _again: int) -> tirx.Stmt:
            value = load(power, number * width + v)
            if not cfg.denormals:  # they are less than this times their sum
                value = tirx.Select(value < load(top, 0), f32(0.0), value)
            return self.fused.epilogue.store((*at, column), value * load(total, 0))

        return within(
            [top, total, power],
            [
                lanes(width, lambda v: store(top, load(x, *at, v), v)),
                *([each(raise_top, 1)] if count > 1 else []),
                store(top, _joined(top, width, tirx.max), 0),
                lanes(width, lambda v: store(total, f32(0.0), v)),
                each(exponential),
                each(add),
                store(total, _joined(total, width, lambda a, b: a + b), 0),
                *([] if cfg.denormals else [store(top, f32(_TINY) * load(total, 0), 0)]),
                store(total, f32(1.0) / load(total, 0), 0),
                each(finish),
            ],
        )

    def power(self, at: tuple[Expr, ...], top: Expr) -> Expr:
        """The exponential of one element, as earlier passes wrote it; 0 where it would be less.

        What it is computed of there is never so small that a denormal number came up on the way.
        """
        meaning, data = self.fused.blocks[1], self.fused.operands[0]
        least, small = f32(log(_NOTHING if self.cfg.denormals else _TINY)), f32(log(_TINY))
        x = self.difference
        axes = {axis.var: i for axis, i in zip(meaning.iter_vars, at, strict=True)}

        def replace(node: Expr) -> Expr:
            if isinstance(node, TensorLoad):
                is_data = node.source.same_as(data)
                return tirx.Select(x < least, small, x) if is_data else f32(0.0)
            return axes.get(node, node)

        value = tvm_ffi.structural_map(meaning.body.value, ((TensorLoad, tirx.Var), replace))
        zero = tirx.Select(x < least, f32(0.0), value)
        return tirx.Let(x, load(data, *at) - top, zero)


def _joined(buffer: tirx.Buffer, count: int, join: Callable[[Expr, Expr], Expr]) -> Expr:
    """All lanes as one number, in pairs."""
    values = [load(buffer, i) for i in range(count)]
    while len(values) > 1:
        values = [reduce(join, values[i : i + 2]) for i in range(0, len(values), 2)]
    return values[0]
