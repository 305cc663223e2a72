"""Products of a mixture of experts: each row of x with the matrix of the expert it is routed to.

    x = [a, a, b, c], sorted by expert; ends = [2, 2, 4]   ->   [a w0, a w0, b w2, c w2]

    for block of columns, expert e:
      for rows from ends[e - 1] to ends[e], some at a time:
        sums[row, 16] += x[row, k] * w[e, block, k, 16]      # all k

An expert without rows costs nothing: its weights are not read. The last rows of an expert are
computed several times where fewer are left, always with the same result. Rows after the
last end have no expert and are 0. Blocks of columns are independent of each other.
"""

from __future__ import annotations

from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.steps import steps_call

from .halves import NARROW

_MOST_ROWS = 6
"""The sums of this many rows and their operands fit into the 16 registers of AVX2."""
_WIDTHS = (16, 8, 4, 1)


def experts_call(
    bb: relax.BlockBuilder,
    x: relax.Expr,  # (rows, inner), sorted by expert
    weights: relax.Expr,  # (experts, inner, columns)
    ends: relax.Expr,  # for each expert, the place after its last row; integers
) -> relax.Call:
    """The product of each row with its expert's matrix."""
    experts, inner, columns = shape_of(weights)
    lanes = next(width for width in _WIDTHS if columns % width == 0)
    blocked = bb.emit(relax.op.reshape(weights, [experts, inner, columns // lanes, lanes]))
    blocked = bb.emit(relax.op.permute_dims(blocked, [0, 2, 1, 3]))
    rows, dtype = shape_of(x)[0], str(x.ty.dtype)
    kernel = _kernel(rows, (experts, columns // lanes, inner, lanes), dtype, str(ends.ty.dtype))
    result = relax.TensorType((rows, columns), dtype)
    return steps_call(bb, "experts.product", kernel, [x, blocked, ends], result)


def _long(*values: int) -> list[Expr]:
    return [tirx.const(value, "int64") for value in values]


def _kernel(rows: int, shape: tuple[int, ...], dtype: str, index: str) -> tirx.PrimFunc:
    experts, blocks, inner, lanes = shape
    at_once = min(-(-rows // experts), _MOST_ROWS)  # what an expert gets if all get as many
    wide = "float32" if dtype in NARROW else dtype
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        x = T.arg("x", tirx.decl_buffer(_long(rows, inner), dtype, "x"))
        w = T.arg("w", tirx.decl_buffer(_long(*shape), dtype, "w"))
        ends = T.arg("ends", tirx.decl_buffer(_long(experts), index, "ends"))
        y = T.arg("y", tirx.decl_buffer(_long(rows, blocks * lanes), dtype, "y"))
        sums = T.sblock_alloc_buffer(_long(at_once, lanes), wide)

        def end_of(expert: Expr) -> Expr:
            end = ends[tirx.max(expert, tirx.const(0, "int64"))].astype("int64")
            return tirx.max(tirx.min(end, *_long(rows)), *_long(0))

        def clear(count: int) -> None:
            for i in range(count):
                with T.vectorized(*_long(0, lanes)) as lane:
                    T.buffer_store(sums, tirx.const(0, wide), [*_long(i), lane])

        def store(i: int, row: Expr, block: Expr) -> None:
            with T.vectorized(*_long(0, lanes)) as lane:
                value = sums[tirx.const(i, "int64"), lane].astype(dtype)
                T.buffer_store(y, value, [row, block * lanes + lane])

        with T.serial(*_long(0, blocks)) as block, T.sblock("experts"):
            block = T.axis.spatial(*_long(blocks), block)
            clear(1)
            with T.serial(*_long(0, rows)) as row:
                store(0, row, block)
            with T.serial(*_long(0, experts)) as expert:
                first = end_of(expert - 1) * (expert > 0).astype("int64")
                last = end_of(expert)
                with T.serial(*_long(0), (last - first + at_once - 1) // at_once) as group:
                    places = [
                        tirx.min(first + group * at_once + i, last - 1) for i in range(at_once)
                    ]
                    clear(at_once)
                    with T.serial(*_long(0, inner)) as k:
                        for i, place in enumerate(places):
                            with T.vectorized(*_long(0, lanes)) as lane:
                                added = x[place, k].astype(wide)
                                added *= w[expert, block, k, lane].astype(wide)
                                total = sums[tirx.const(i, "int64"), lane] + added
                                T.buffer_store(sums, total, [*_long(i), lane])
                    for i, place in enumerate(places):
                        store(i, place, block)
    return builder.get()
