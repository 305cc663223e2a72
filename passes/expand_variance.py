"""Write variances as means, for which there are kernels.

    v = variance(x: (1, 8, 4, 56, 56), [2, 3, 4])
        ->
    r = reshape(x, (1, 8, 12544))        # innermost axes are one: a row
    c = subtract(r, mean(r, [2]))
    v = reshape(mean(multiply(c, c), [2]), shape of v)

Means of images stay means of images, because those lie in blocks of channels.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax

from tvm_stretch.network.expressions import rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter

_OF_IMAGES = [2, 3]
_NOT_ROUNDED = ("float32", "float64")
"""Types of two bytes would round each step; one kernel of a variance rounds once."""


@relax.expr_functor.mutator
class _Expander(SourceRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """The variance as the mean of the squares of deviations."""
        if kind_of(call) != "variance" or str(call.ty.dtype) not in _NOT_ROUNDED:
            return None
        x, shape = call.args[0], shape_of(call.args[0])
        reduced = range(len(shape)) if call.attrs.axis is None else call.attrs.axis
        axes, first = sorted(int(axis) % len(shape) for axis in reduced), len(shape) - len(reduced)
        if axes == [*range(first, len(shape))] and axes != _OF_IMAGES:
            rows = relax.ShapeExpr([*shape[:first], prod(shape[first:])])
            x, axes = self.emit(relax.op.reshape(x, rows)), [first]
        apart = self.emit(relax.op.subtract(x, self.emit(relax.op.mean(x, axes, keepdims=True))))
        squares = self.emit(relax.op.multiply(apart, apart))
        mean = self.emit(relax.op.mean(squares, axes, keepdims=True))
        return relax.op.reshape(mean, relax.ShapeExpr(shape_of(call)))


@tvm.transform.module_pass(opt_level=0, name="ExpandVariance")
class ExpandVariance:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Expander(mod).visit_expr(function))
