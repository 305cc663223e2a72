"""TopK: the indices of the k largest or smallest values of each row, in order.

    x = [3, 9, 5, 9], k = 2   ->   [1, 3]

    for 64 places of a row:
      if these are of the first k, or any x[place] may precede kept[k - 1]:    # in vectors
        for place in them:                     # `kept`: the best k values so far, sorted
          if place < k or x[place] precedes kept[k - 1]:
            where = number of kept values that precede x[place]  # bisection; ties keep their order
            shift the values from `where` on by one, in vectors, and insert x[place]

Few values of a long row are inserted, so the time is about that of reading the row. NaN is larger
than every number, as in ONNX Runtime, NumPy and PyTorch.

CumSum and CumProd: each element is the sum or product of all elements up to it along an axis.

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
    kernel = _running_kernel(shape, dtype, running)
    described = {BACKWARDS: "yes" if running.backwards else ""}
    return steps_call(bb, kind, kernel, [x], relax.TensorType(shape, dtype), **described)


def _running_kernel(shape: list[int], dtype: str, running: Running) -> tirx.PrimFunc:
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


_LANES = 16
_LOOK = 64
"""Places that are looked at together."""
_FEW = 3
"""Kept values that are shifted one by one: a vector would wait for the last one that was stored."""
_LEAST = 256
"""Places of a row that are worth it: in a shorter one, most looks find one of the best."""


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
        kept = _Kept(k, dtype, largest)
        looks = extent // _LOOK if extent >= _LEAST else 0
        with T.serial(*_long(0, rows)) as row, T.sblock("first"):
            row = T.axis.spatial(*_long(rows), row)
            with T.serial(*_long(0, looks)) as look:
                first = look * _LOOK
                kept.look_at(x, row, first)
                may_enter = tirx.any(first < k, kept.found[0] != 0)
                with T.If(may_enter), T.Then(), T.serial(*_long(0, _LOOK)) as place:
                    kept.offer(x[row, first + place], first + place)
            with T.serial(*_long(looks * _LOOK, extent)) as place:
                kept.offer(x[row, place], place)
            with T.serial(*_long(0, k)) as place:
                T.buffer_store(places, kept.places[place].astype("int64"), [row, place])
    return builder.get()


class _Kept:
    """The best values of a row so far, and statements that change them."""

    def __init__(self, k: int, dtype: str, largest: bool) -> None:
        room = _long(k + 2 * _LANES)  # whole vectors are shifted
        self.k, self.largest = k, largest
        self.moved = _LANES if k > _FEW else 1
        self.values = T.sblock_alloc_buffer(room, dtype)
        self.places = T.sblock_alloc_buffer(room, "int32")
        self.ends = T.sblock_alloc_buffer(_long(3), "int64")  # of the bisection
        self.found = T.sblock_alloc_buffer(_long(_LANES), "int32")

    def look_at(self, x: tirx.Buffer, row: Expr, first: Expr) -> None:
        """Set ``found[0]`` to 0 if none of the next values precedes the last kept one."""
        last = self.values[self.k - 1]
        one, none = tirx.const(1, "int32"), tirx.const(0, "int32")
        with T.vectorized(*_long(0, _LANES)) as lane:
            T.buffer_store(self.found, none, [lane])
        with T.unroll(*_long(0, _LOOK // _LANES)) as part, T.vectorized(*_long(0, _LANES)) as lane:
            value = x[row, first + part * _LANES + lane]
            after = value <= last if self.largest else value >= last  # false with NaN
            seen = self.found[lane] | tirx.Select(after, none, one)
            T.buffer_store(self.found, seen, [lane])
        for half in (_LANES >> i for i in range(1, _LANES.bit_length())):
            with T.vectorized(*_long(0, half)) as lane:
                both = self.found[lane] | self.found[lane + half]
                T.buffer_store(self.found, both, [lane])

    def offer(self, value: Expr, place: Expr) -> None:
        """Insert a value if it is among the best."""
        enters = _before(value, self.values[self.k - 1], largest=self.largest)
        with T.If(tirx.any(place < self.k, enters)), T.Then():
            self._bisect(value, tirx.min(place, *_long(self.k)))
            where = self.ends[0]
            moved = tirx.min(place, *_long(self.k - 1)) - where
            parts = (moved + (self.moved - 1)) // self.moved
            with T.serial(tirx.const(0, "int64"), parts) as part:
                first = where + (parts - 1 - part) * self.moved
                for kept in (self.values, self.places):
                    with T.vectorized(*_long(0, self.moved)) as lane:
                        T.buffer_store(kept, kept[first + lane], [first + lane + 1])
            T.buffer_store(self.values, value, [where])
            T.buffer_store(self.places, place.astype("int32"), [where])

    def _bisect(self, value: Expr, count: Expr) -> None:
        """Set ``ends[0]`` to the number of kept values that precede a value, without branches."""
        ends, one, none = self.ends, *_long(1, 0)
        T.buffer_store(ends, none, [0])
        T.buffer_store(ends, count, [1])  # places that are left
        with T.serial(*_long(0, self.k.bit_length())):
            half = ends[1] // 2
            before = _before(value, self.values[ends[0] + half], largest=self.largest)
            # not tirx.Not: TVM makes a >= b of not a < b, which NaN tells apart
            after = tirx.Select(tirx.any(before, ends[1] == 0), none, one)
            T.buffer_store(ends, after, [2])
            T.buffer_store(ends, ends[0] + ends[2] * (half + one), [0])
            rest = tirx.Select(ends[2] > 0, ends[1] - half - one, half)
            T.buffer_store(ends, rest, [1])


def _before(a: Expr, b: Expr, *, largest: bool) -> Expr:
    """Whether ``a`` strictly precedes ``b``."""
    less, greater = (a < b, a > b)
    if "float" in str(a.ty.dtype):
        nan = [tirx.isnan(x) for x in (a, b)]
        less = tirx.any(less, tirx.all(tirx.Not(nan[0]), nan[1]))
        greater = tirx.any(greater, tirx.all(nan[0], tirx.Not(nan[1])))
    return greater if largest else less
