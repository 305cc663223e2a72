"""Rows with mean 0 and variance 1, as layer normalisation needs them, while they are in the cache.

RMSNorm leaves out the mean.

    for row:                                     # parallel
      mean = sum of vectors of x / extent
      for vector:  squares += (x - mean) ** 2
      for vector:  out = epilogue((x - mean) / sqrt(squares / extent + epsilon))

The last vector ends with the row. Elements that it reads again are added once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from operator import add
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import Layer, NormShape
from tvm_stretch.targets.kernels.loops import (
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
    vectors,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .softmax import joined

_SUMS = 4
"""Vectors of sums, because a vector has to wait for its last addition."""


@dataclass(frozen=True)
class NormTemplate(Template, NormShape):
    """A normalisation, however it is computed."""

    layers: ClassVar[tuple[type[Layer], ...]] = (NormShape,)

    @property
    def operands(self) -> int:
        return 1

    @property
    def sampled(self) -> object:
        return None

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.shape

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The normalisation in plain loops."""
        (x,), extent, rows = operands, self.shape[-1], self.shape[:-1]
        k, j = (te.reduce_axis((0, extent), name) for name in "kj")
        total = te.compute(rows, lambda *row: te.sum(x(*row, k.var), axis=k), name="total")
        apart = x
        if self.is_centred:
            apart = te.compute(
                self.shape, lambda *at: x[at] - total[at[:-1]] / extent, name="apart"
            )
        squares = te.compute(
            rows,
            lambda *row: te.sum(apart(*row, j.var) * apart(*row, j.var), axis=j),
            name="squares",
        )
        return te.compute(
            self.shape,
            lambda *at: apart[at] / tirx.sqrt(squares[at[:-1]] / extent + f32(self.epsilon)),
            name="norm",
            attrs=self.annotation,
        )


@dataclass(frozen=True)
class NormConfig(NormTemplate):
    """A normalisation in vectors of ``lanes``."""

    template: ClassVar[str] = "norm"
    machines: ClassVar[tuple[str, ...]] = ("core",)

    lanes: int

    @classmethod
    def configure(cls, layer: NormShape, machine: VectorMachine, block: int) -> Iterable[Template]:
        """The configuration, if a row fills a vector."""
        fits = 0 not in layer.shape and layer.shape[-1] >= machine.lanes
        return [cls(layer.shape, layer.epsilon, layer.is_centred, machine.lanes)] if fits else []

    def cycles(self, machine: VectorMachine) -> float:
        return prod(self.shape) * 4.0 / self.lanes

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        kind = PARALLEL if machine.threads > 1 else SERIAL
        return loop(prod(self.shape[:-1]), lambda row: self.row(fused, row), "row", kind)

    def row(self, fused: FusedKernel, number: Expr) -> tirx.Stmt:
        """One row: its mean, its squares, its result."""
        x, extent, width = fused.operands[0], self.shape[-1], self.lanes
        at = unravelled(number, self.shape[:-1])
        mean, inverse = scratch("mean", 1), scratch("inverse", 1)

        def apart(column: Expr) -> Expr:
            value = load(x, *at, column)
            return value - load(mean, 0) if self.is_centred else value

        def square(column: Expr) -> Expr:
            return apart(column) * apart(column)

        def finish(first: Expr) -> tirx.Stmt:
            def one(v: Expr) -> tirx.Stmt:
                value = apart(first + v) * load(inverse, 0)
                return fused.epilogue.store((*at, first + v), value)

            return lanes(width, one)

        each = f32(1.0 / extent)
        squares, squares_of = self.sum_of(square)
        spread = tirx.sqrt(squares_of * each + f32(self.epsilon))
        rest = [finish(const(extent - width))] if extent % width else []
        centre = []
        if self.is_centred:
            total, total_of = self.sum_of(lambda column: load(x, *at, column))
            centre = [within(total.buffers, *total.parts, store(mean, total_of * each, 0))]
        return within(
            [mean, inverse] if self.is_centred else [inverse],
            *centre,
            within(squares.buffers, *squares.parts, store(inverse, f32(1.0) / spread, 0)),
            loop(extent // width, lambda i: finish(i * width), "vector"),
            *rest,
        )

    def sum_of(self, value: Callable[[Expr], Expr]) -> tuple[_Sum, Expr]:
        """Statements that add ``value(column)`` for all columns, and their result."""
        width, extent = self.lanes, self.shape[-1]
        whole = extent // width
        sums = vectors("sums", min(_SUMS, whole), width)
        count = len(sums)

        def increase(number: int, first: Expr, again: int = 0) -> tirx.Stmt:
            def one(v: Expr) -> tirx.Stmt:
                more = value(first + v)
                more = tirx.Select(v >= again, more, f32(0.0)) if again else more
                return store(sums[number], load(sums[number], v) + more, v)

            return lanes(width, one)

        def several(i: Expr) -> tirx.Stmt:
            return block(*(increase(j, (i * count + j) * width) for j in range(count)))

        left = range(whole // count * count, whole)
        parts = [
            *(lanes(width, lambda v, s=s: store(s, f32(0.0), v)) for s in sums),
            loop(whole // count, several, "vectors"),
            *(increase(j, const(i * width)) for j, i in enumerate(left)),
        ]
        if extent % width:
            parts.append(increase(0, const(extent - width), width - extent % width))
        for other in sums[1:]:
            parts.append(
                lanes(
                    width,
                    lambda v, o=other: store(sums[0], load(sums[0], v) + load(o, v), v),
                )
            )
        return _Sum(sums, parts), joined(sums[0], width, add)


@dataclass(frozen=True)
class _Sum:
    """Vectors of sums, and the statements that compute them; the first vector holds all."""

    buffers: list[tirx.Buffer]
    parts: list[tirx.Stmt]
