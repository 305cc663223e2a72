"""Multiply along an outer axis where it lies, instead of moving it to the end and back.

    x1 = permute_dims(x: (1, 4, 196, 196), [0, 2, 3, 1])
    y = permute_dims(add(matmul(x1, w: (4, 8)), b: (8,)), [0, 3, 1, 2])
        ->
    x1 = reshape(x, (1, 4, 38416))
    y = reshape(add(matmul(w1: (8, 4), x1), b1: (8, 1)), (1, 8, 196, 196))

Heads of attention are mixed so (talking heads): an innermost axis of 4 would fill a quarter of a
vector. Where channels are many, kernels for blocks of channels are as fast.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import axes_of, constant, rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter

_MOST = 32
"""More numbers fill vectors wherever they lie."""


@relax.expr_functor.mutator
class _Mixer(SourceRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Replace the transpose that moves the axis back."""
        if kind_of(call) != "permute_dims":
            return None
        product, bias = self._of_rows(call.args[0]), None
        if kind_of(product) == "add" and (bias := self.constant(product.args[1])) is not None:
            product = self._of_rows(product.args[0])
        if kind_of(product) != "matmul" or (weight := self.constant(product.args[1])) is None:
            return None
        moved, back = self._of_rows(product.args[0]), axes_of(call)
        rank = len(back)
        if (
            weight.ndim != 2
            or max(weight.shape) > _MOST
            or back != [0, rank - 1, *range(1, rank - 1)]
        ):
            return None
        if kind_of(moved) != "permute_dims" or axes_of(moved) != [0, *range(2, rank), 1]:
            return None
        if bias is not None and (bias.size != weight.shape[1] or bias.shape[-1] != bias.size):
            return None
        x, shape = moved.args[0], shape_of(call)
        flat = relax.ShapeExpr([shape[0], weight.shape[0], prod(shape[2:])])
        turned, how = constant(np.ascontiguousarray(weight.T)), product.attrs.out_dtype
        mixed = self.emit(relax.op.matmul(turned, self.emit(relax.op.reshape(x, flat)), how))
        if bias is not None:
            mixed = self.emit(relax.op.add(mixed, constant(bias.reshape(-1, 1))))
        return relax.op.reshape(mixed, relax.ShapeExpr(shape))

    def _of_rows(self, expr: relax.Expr) -> relax.Expr:
        """The definition before reshapes that keep the last axis."""
        value = self.definition(expr)
        while kind_of(value) == "reshape" and shape_of(value)[-1:] == shape_of(value.args[0])[-1:]:
            value = self.definition(value.args[0])
        return value


@tvm.transform.module_pass(opt_level=0, name="MixAxes")
class MixAxes:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Mixer(mod).visit_expr(function))
