"""Let NaN through running maxima and minima.

    m[0] = T.max(x[i], m[0])    ->    m[0] = T.Select(x[i] <= inf, T.max(x[i], m[0]), x[i])

A comparison with NaN is false, and then ``T.max`` gives its second operand: what was found before.
So NaN that was found stays, and one that comes has to be taken by itself. Kernels are changed after
they are scheduled, because TVM splits only reductions that it knows.
"""

from __future__ import annotations

from math import inf

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.rewriting import rewrite


def maximum(found: Expr, value: Expr) -> Expr:
    """The larger one, or NaN."""
    return _or_nan(value, tirx.max(value, found))


def _or_nan(value: Expr, otherwise: Expr) -> Expr:
    """Everything but NaN is at most infinity; of ``value == value`` TVM thinks that it is true."""
    dtype = str(value.ty.dtype).partition("x")[0]
    if "float" not in dtype:
        return otherwise
    return tirx.Select(value <= tirx.const(inf, dtype), otherwise, value)


def take_nan(body: tirx.Stmt) -> tirx.Stmt:
    """The same with NaN taken into every maximum and minimum that runs through memory."""

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
