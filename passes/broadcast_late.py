"""Let operators broadcast small operands themselves, instead of reading them from full tensors.

    s1 = broadcast_to(s: (1, 8, 1, 1, 1), (1, 8, 4, 56, 56))
    y = divide(x: (1, 32, 56, 56), reshape(s1, (1, 32, 56, 56)))
        ->
    s1 = broadcast_to(s, (1, 8, 4, 1, 1))
    y = divide(x, reshape(s1, (1, 32, 1, 1)))

So the statistics of groups of channels, as EvoNorm computes them, stay small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import tvm
from tvm import relax

from tvm_stretch.network.expressions import rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter

_BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum"}


@relax.expr_functor.mutator
class _Shrinker(SourceRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        """Replace an operand that was broadcast, if the other one has the shape of the result."""
        if kind_of(call) not in _BINARY:
            return None
        for place, other in ((0, 1), (1, 0)):
            if shape_of(call.args[other]) != shape_of(call):
                continue
            if (small := self._small(call.args[place])) is not None:
                operands = [small, call.args[other]] if place == 0 else [call.args[other], small]
                return relax.Call(call.op, operands, call.attrs)
        return None

    def _small(self, operand: relax.Expr) -> relax.Expr | None:
        """The operand before it was broadcast along whole axes; None if it was not."""
        wide, shape = self.definition(operand), shape_of(operand)
        if kind_of(wide) == "reshape":
            wide = self.definition(wide.args[0])
        if kind_of(wide) != "broadcast_to":
            return None
        source, full = wide.args[0], shape_of(wide)
        own = [1] * (len(full) - len(shape_of(source))) + shape_of(source)
        kept, left = [*own], [*shape]
        for before, after in groups_of(full, shape):
            if all(own[axis] == 1 for axis in before):
                for axis in after:
                    left[axis] = 1
            else:
                for axis in before:
                    kept[axis] = full[axis]
        if prod(left) == prod(shape):
            return None
        small = source
        if kept != shape_of(small):
            small = self.emit(relax.op.broadcast_to(small, relax.ShapeExpr(kept)))
        return self.emit(relax.op.reshape(small, relax.ShapeExpr(left)))


def groups_of(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The axes of two shapes that a reshape makes of each other: the shortest groups."""
    i = j = 0
    while i < len(before) or j < len(after):
        begin, size, other = (i, j), 1, 1
        while (i, j) == begin or size != other:
            if j >= len(after) or (i < len(before) and size <= other):
                size, i = size * before[i], i + 1
            else:
                other, j = other * after[j], j + 1
        yield [*range(begin[0], i)], [*range(begin[1], j)]


@tvm.transform.module_pass(opt_level=0, name="BroadcastLate")
class BroadcastLate:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Shrinker(mod).visit_expr(function))
