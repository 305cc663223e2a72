"""CumSum and CumProd: each element is the sum or product of all elements up to it along an axis.

    y[o, 0, i] = x[o, 0, i]
    y[o, p, i] = y[o, p - 1, i] + x[o, p, i]

The steps follow each other, so results equal those of NumPy and ONNX Runtime, which add in the same
order. The elements after the axis (``i``) are independent of each other and become vectors.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.steps import BACKWARDS, steps_call


@dataclass(frozen=True)
class Running:
    """Which running sum or product."""

    product: bool = False
    exclusive: bool = False  # whether an element itself is left out of its own sum
    backwards: bool = False


def running_call(bb: relax.BlockBuilder, x: relax.Expr, running: Running) -> relax.Call:
    """The running sums along the middle axis of a tensor of three axes."""
    shape, dtype = [int(d) for d in x.ty.shape.values], str(x.ty.dtype)
    kind = "running.product" if running.product else "running.sum"
    kernel = _kernel(shape, dtype, running)
    described = {BACKWARDS: "yes" if running.backwards else ""}
    return steps_call(bb, kind, kernel, [x], relax.TensorType(shape, dtype), **described)


def _kernel(shape: list[int], dtype: str, running: Running) -> tirx.PrimFunc:
    outer, extent, inner = (tirx.const(size, "int64") for size in shape)
    combine = operator.mul if running.product else operator.add
    unit = tirx.const(int(running.product), dtype)
    back = -1 if running.backwards else 1
    lanes = next(width for width in (16, 8, 4, 1) if shape[2] % width == 0)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        x = T.arg("x", tirx.decl_buffer([outer, extent, inner], dtype, "x"))
        y = T.arg("y", tirx.decl_buffer([outer, extent, inner], dtype, "y"))
        vectors = tirx.const(shape[2] // lanes, "int64")
        with T.grid(outer, extent, vectors) as (before, step, vector), T.sblock("run"):
            before = T.axis.spatial(outer, before)
            step = T.axis.opaque(extent, step)
            vector = T.axis.spatial(vectors, vector)
            place = extent - 1 - step if running.backwards else step
            added = place - back if running.exclusive else place
            with T.If(step == 0):
                with T.Then(), T.vectorized(*_lanes(lanes)) as lane:
                    after = vector * lanes + lane
                    first = unit if running.exclusive else x[before, place, after]
                    T.buffer_store(y, first, [before, place, after])
                with T.Else(), T.vectorized(*_lanes(lanes)) as lane:
                    after = vector * lanes + lane
                    total = combine(y[before, place - back, after], x[before, added, after])
                    T.buffer_store(y, total, [before, place, after])
    return builder.get()


def _lanes(count: int) -> tuple[Expr, Expr]:
    return tirx.const(0, "int64"), tirx.const(count, "int64")
