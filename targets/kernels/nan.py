"""Propagate NaN through maximum and minimum reductions.

    m[0] = T.max(x[i], m[0])    ->    m[0] = T.Select(x[i] <= inf, T.max(x[i], m[0]), x[i])

Comparisons with NaN are false, and ``T.max`` then returns its second operand, the accumulator. So
an accumulated NaN stays, but a new NaN needs its own condition. The rewrite runs after scheduling,
because ``rfactor`` accepts only reductions that TVM has registered.
"""

from __future__ import annotations

from math import inf

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.rewriting import rewrite


def maximum(found: Expr, value: Expr) -> Expr:
    """The maximum of an accumulator and a value; NaN if one of them is NaN."""
    return _or_nan(value, tirx.max(value, found))


def _or_nan(value: Expr, otherwise: Expr) -> Expr:
    """Compares with infinity, because TVM simplifies ``value == value`` to true."""
    dtype = str(value.ty.dtype).partition("x")[0]
    if "float" not in dtype:
        return otherwise
    return tirx.Select(value <= tirx.const(inf, dtype), otherwise, value)


def take_nan(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with NaN propagated by every store of the form ``m[i] = max(x, m[i])``."""

    def taken(store: tirx.BufferStore) -> tirx.BufferStore:
        value = store.value
        if not isinstance(value, tirx.Max | tirx.Min) or not isinstance(value.b, TensorLoad):
            return store
        if not value.b.source.same_as(store.buffer):
            return store
        if not tvm_ffi.structural_equal(value.b.indices, store.indices):
            return store
        return tirx.BufferStore(store.buffer, _or_nan(value.a, value), store.indices)

    return rewrite(body, (tirx.BufferStore, taken))
