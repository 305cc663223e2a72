"""Write places of a cache where they lie, without moving their axis to the front and back.

    a = R.permute_dims(cache, (2, 0, 1, 3))        (1, 2, 1024, 64) -> (1024, 1, 2, 64)
    b = R.scatter_nd(a, places, rows)              places: (k, 1), rows: (k, 1, 2, 64)
    c = R.permute_dims(b, (1, 2, 0, 3))

        ->   c = R.scatter_nd(cache as (2, 1024, 64), [[[0, place], ..], [[1, place], ..]], rows')
             b = R.permute_dims(c, (2, 0, 1, 3))     where something else reads it

Exporters write a cache of fixed size at a position in this way. Both transposes move the whole
cache; only the rows are transposed now, and reshapes are views. The cache is written once, whatever
else reads `a` or `b`.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import (
    axes_of,
    bindings_of,
    constant,
    rewrite_functions,
    shape_of,
)
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import SourceRewriter


@tvm.transform.module_pass(opt_level=0, name="WritePlaces")
class WritePlaces:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(
            mod, lambda mod, function: _Writer(mod, _moved_back(function)).visit_expr(function)
        )


def _moved_back(function: relax.Function) -> dict[relax.Var, list[list[int]]]:
    """For each variable, the axes of the transposes that read it."""
    places: dict[relax.Var, list[list[int]]] = {}
    for binding in bindings_of(function):
        if kind_of(binding.value) == "permute_dims":
            places.setdefault(binding.value.args[0], []).append(axes_of(binding.value))
    return places


@relax.expr_functor.mutator
class _Writer(SourceRewriter):
    def __init__(self, mod: tvm.IRModule, back: dict[relax.Var, list[list[int]]]) -> None:
        super().__init__(mod)
        self.back = back
        self.written: relax.Var | None = None  # what the visited binding binds

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.written = binding.var
        super().visit_var_binding_(binding)

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        if kind_of(call) != "scatter_nd" or str(call.attrs.reduction) != "update":
            return None
        moved = self.definition(call.args[0])
        count, *depth = shape_of(call.args[1])
        if kind_of(moved) != "permute_dims" or depth != [1]:
            return None
        there = axes_of(moved)
        back = [there.index(axis) for axis in range(len(there))]
        if back not in self.back.get(self.written, []):
            return None
        cache, axis = moved.args[0], there[0]
        shape = shape_of(cache)
        outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        written = self.emit(
            relax.op.scatter_nd(
                self.emit(relax.op.reshape(cache, (outer, shape[axis], inner))),
                self.pairs(outer, count, call.args[1]),
                self.rows(call.args[2], back, (outer, count, inner)),
                "update",
            )
        )
        return relax.op.permute_dims(self.emit(relax.op.reshape(written, shape)), there)

    def pairs(self, outer: int, count: int, places: relax.Expr) -> relax.Expr:
        """For each piece of the cache before the axis, its number beside each place."""
        numbers = np.arange(outer, dtype=str(places.ty.dtype)).reshape(outer, 1, 1)
        pieces = constant(np.broadcast_to(numbers, (outer, count, 1)).copy())
        one = self.emit(relax.op.reshape(places, (1, count, 1)))
        return self.emit(relax.op.concat([pieces, self.emit(_repeated(one, outer))], 2))

    def rows(self, rows: relax.Expr, back: list[int], shape: tuple[int, int, int]) -> relax.Expr:
        """The written rows, in the order of the cache."""
        return self.emit(relax.op.reshape(self.emit(relax.op.permute_dims(rows, back)), shape))


def _repeated(places: relax.Expr, outer: int) -> relax.Expr:
    return relax.op.broadcast_to(places, (outer, *shape_of(places)[1:]))
