"""Propagate NaN through maximum and minimum reductions.

    m[0] = T.max(x[i], m[0])    ->    m[0] = T.Select(x[i] <= inf, T.max(x[i], m[0]), x[i])

Comparisons with NaN are false, and ``T.max`` then returns its second operand, the accumulator. So
an accumulated NaN stays, but a new NaN needs its own condition. The rewrite runs after scheduling,
because ``rfactor`` accepts only reductions that TVM has registered. A reduction of ours could be
registered, but TVM would keep its Python functions until after Python has ended, and crash there.
"""

from __future__ import annotations

from math import copysign, inf

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.rewriting import changed_block, rewrite

from .loops import load


def maximum(accumulator: Expr, value: Expr) -> Expr:
    """The maximum of an accumulator and a value; NaN if one of them is NaN."""
    return _or_nan(value, tirx.max(value, accumulator))


def _or_nan(value: Expr, otherwise: Expr) -> Expr:
    """Compares with infinity, because TVM simplifies ``value == value`` to true."""
    dtype = str(value.ty.dtype).partition("x")[0]
    if "float" not in dtype:
        return otherwise
    return tirx.Select(value <= tirx.const(inf, dtype), otherwise, value)


def take_nan(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with NaN propagated by every store of the form ``m[i] = max(x, m[i])``.

    Such an ``m`` starts from infinity, see `with_known_reducers`.
    """
    running: list[tirx.Buffer] = []

    def taken(store: tirx.BufferStore) -> tirx.BufferStore:
        value = _value_beside(store)
        if value is None:
            return store
        running.append(store.buffer)
        best = type(store.value)(value, load(store.buffer, *store.indices))
        return tirx.BufferStore(store.buffer, _or_nan(value, best), store.indices)

    def started(store: tirx.BufferStore) -> tirx.BufferStore:
        if not any(store.buffer.same_as(buffer) for buffer in running):
            return store
        return tirx.BufferStore(store.buffer, moved(store.value, finite=False), store.indices)

    body = rewrite(body, (tirx.BufferStore, taken))
    return rewrite(body, (tirx.BufferStore, started)) if running else body


def _value_beside(store: tirx.BufferStore) -> Expr | None:
    """The value that a store compares with what its buffer holds at the same place."""
    best = store.value
    if not isinstance(best, tirx.Max | tirx.Min):
        return None

    def runs(operand: Expr) -> bool:
        is_own = isinstance(operand, TensorLoad) and operand.source.same_as(store.buffer)
        return is_own and tvm_ffi.structural_equal(operand.indices, store.indices)

    return best.a if runs(best.b) else best.b if runs(best.a) else None


def moved(number: Expr, *, finite: bool) -> Expr:
    """The largest number instead of infinity, or the other way; anything else stays."""
    dtype = str(number.ty.dtype)
    if not isinstance(number, tirx.FloatImm) or dtype not in ("float16", "float32", "float64"):
        return number
    most = float(np.finfo(dtype).max)
    if abs(number.value) != (inf if finite else most):
        return number
    return tirx.FloatImm(number.ty, copysign(most if finite else inf, number.value))


def with_known_reducers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose running maxima start from a finite number, as those that TVM's rfactor knows.

    `take_nan` undoes it after scheduling.
    """

    def known(block: s_tir.SBlock) -> s_tir.SBlock:
        start, update = block.init, block.body
        if not isinstance(start, tirx.BufferStore) or not isinstance(update, tirx.BufferStore):
            return block
        value = _value_beside(update)
        if value is None:
            return block
        best = type(update.value)(load(update.buffer, *update.indices), value)
        return changed_block(
            block,
            init=tirx.BufferStore(start.buffer, moved(start.value, finite=True), start.indices),
            body=tirx.BufferStore(update.buffer, best, update.indices),
        )

    return func.with_body(rewrite(func.body, (s_tir.SBlock, known)))
