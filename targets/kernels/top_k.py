"""TopK: the indices of the k largest or smallest values of each row, in order.

    x = [3, 9, 5, 9], k = 2   ->   [1, 3]

    for place in row:                          # `kept`: the best k values so far, sorted
      if place < k or x[place] precedes kept[k - 1]:
        where = number of kept values that precede x[place]    # bisection; ties keep their order
        shift the values from `where` on by one, and insert x[place]

Few values of a long row are inserted, so the time is about that of reading the row. NaN is larger
than every number, as in ONNX Runtime, NumPy and PyTorch.
"""

from __future__ import annotations

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.ir.steps import steps_call


def top_k_call(bb: relax.BlockBuilder, x: relax.Expr, k: int, *, largest: bool) -> relax.Call:
    """The int64 indices of the first ``k`` values of each row of a matrix."""
    rows, extent = (int(d) for d in x.ty.shape.values)
    kernel = _kernel(rows, extent, k, str(x.ty.dtype), largest=largest)
    return steps_call(bb, "ordering.top_k", kernel, [x], relax.TensorType((rows, k), "int64"))


def _long(*values: int) -> list[Expr]:
    return [tirx.const(value, "int64") for value in values]


def _kernel(rows: int, extent: int, k: int, dtype: str, *, largest: bool) -> tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        x = T.arg("x", tirx.decl_buffer(_long(rows, extent), dtype, "x"))
        places = T.arg("places", tirx.decl_buffer(_long(rows, k), "int64", "places"))
        kept = T.sblock_alloc_buffer(_long(k), dtype)
        ends = T.sblock_alloc_buffer(_long(2), "int64")  # bounds of the bisection
        with T.grid(*_long(rows, extent)) as (row, place), T.sblock("insert"):
            row = T.axis.spatial(*_long(rows), row)
            place = T.axis.opaque(*_long(extent), place)
            value = x[row, place]
            enters = _before(value, kept[k - 1], largest=largest)
            with T.If(tirx.any(place < k, enters)), T.Then():
                _bisect(value, kept, ends, tirx.min(place, *_long(k)), largest=largest)
                last, where = tirx.min(place, *_long(k - 1)), ends[0]
                with T.serial(*_long(0), last - where) as moved:
                    to = last - moved
                    T.buffer_store(kept, kept[to - 1], [to])
                    T.buffer_store(places, places[row, to - 1], [row, to])
                T.buffer_store(kept, value, [where])
                T.buffer_store(places, place, [row, where])
    return builder.get()


def _bisect(
    value: Expr, kept: tirx.Buffer, ends: tirx.Buffer, count: Expr, *, largest: bool
) -> None:
    """Set ``ends[0]`` to the number of kept values that precede a value."""
    T.buffer_store(ends, tirx.const(0, "int64"), [0])
    T.buffer_store(ends, count, [1])
    halvings = _long(0, int(kept.shape[0]).bit_length())
    with T.serial(*halvings), T.If(ends[0] < ends[1]), T.Then():
        middle = (ends[0] + ends[1]) // 2
        with T.If(_before(value, kept[middle], largest=largest)):
            with T.Then():
                T.buffer_store(ends, middle, [1])
            with T.Else():
                T.buffer_store(ends, middle + 1, [0])


def _before(a: Expr, b: Expr, *, largest: bool) -> Expr:
    """Whether ``a`` strictly precedes ``b``."""
    less, greater = (a < b, a > b)
    if "float" in str(a.ty.dtype):
        nan = [tirx.isnan(x) for x in (a, b)]
        less = tirx.any(less, tirx.all(tirx.Not(nan[0]), nan[1]))
        greater = tirx.any(greater, tirx.all(nan[0], tirx.Not(nan[1])))
    return greater if largest else less
