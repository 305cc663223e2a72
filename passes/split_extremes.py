"""Find the greatest of a long row in two steps, for GPUs.

    max(x: (1, 49152), -1)   ->   max(max(reshape(x, (1, 256, 192)), -1), -1)

A GPU computes a row's maximum in one work-item, unless there are as many rows as work-items. TVM's
rules for work-groups are for sums alone: no other operation may begin with an infinity. The result
is the same, because a maximum does not depend on the order.
"""

from __future__ import annotations

from math import isqrt, prod

import tvm
from tvm import relax

from tvm_stretch.network.expressions import rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter

_LONG = 2048
"""Shorter rows take less time than a second kernel."""

_FEW = 256  # rows: more of them keep a GPU busy


@relax.expr_functor.mutator
class _Splitter(SourceRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Rows become rows of pieces, as many as a piece has numbers, or nearly."""
        kind = kind_of(call)
        if kind not in ("max", "min"):
            return None
        x, axes = call.args[0], call.attrs.axis
        shape = shape_of(x)
        along = [*range(len(shape))] if axes is None else [int(axis) % len(shape) for axis in axes]
        if along != [len(shape) - 1] or shape[-1] < _LONG:
            return None
        *rows, columns = shape
        pieces = max(p for p in range(1, isqrt(columns) + 1) if columns % p == 0)
        if prod(rows) > _FEW or pieces == 1:
            return None
        extreme = getattr(relax.op, kind)
        cut = self.emit(relax.op.reshape(x, [*rows, columns // pieces, pieces]))
        return extreme(self.emit(extreme(cut, -1)), -1, keepdims=bool(call.attrs.keepdims))


@tvm.transform.module_pass(opt_level=0, name="SplitExtremes")
class SplitExtremes:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Splitter(mod).visit_expr(function))
