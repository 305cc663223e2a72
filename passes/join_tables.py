"""Join integer operators of one tensor into one table.

    s = R.call_tir(integer_table, (x, sigmoid))
    y = R.call_tir(integer_multiply, (x, s))     # swish: x times its sigmoid, rounded twice
        ->
    y = R.call_tir(integer_table, (x, swish))    # the same 256 results

The number is looked up in a table anyway, so a table that contains the product costs nothing more.
A table of a table becomes one table as well.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.analysis.integer_summary import has_integers, with_integers
from tvm_stretch.ir.call_rewriter import CallRewriter
from tvm_stretch.ir.expressions import constant, shape_of
from tvm_stretch.ir.integer_kernels import integer_call
from tvm_stretch.ir.integers import Integer, integer_of, operands_of, rounding_of


@tvm.transform.module_pass(opt_level=0, name="JoinTables")
class JoinTables:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not has_integers(mod["main"]):
            return mod
        joined = _Joiner(mod).rewritten(mod)
        return with_integers(relax.transform.DeadCodeElimination()(joined))


_Lookup = tuple[relax.Expr, np.ndarray]
"""A tensor, and the result for each of its possible numbers, from the least one up."""


@relax.expr_functor.mutator
class _Joiner(CallRewriter):
    """Replaces products and tables whose operands are one tensor or tables of it."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        integer = integer_of(call)
        if integer is None or integer.kind not in ("multiply", "table"):
            return None
        found = self.product(call, integer) if integer.kind == "multiply" else self.chain(call)
        if found is None or shape_of(found[0]) != shape_of(call):
            return None
        return integer_call(self.builder_, Integer("table"), found[0], constant(found[1]))

    def lookup(self, x: relax.Expr) -> _Lookup:
        """The tensor and table that compute ``x``; ``x`` and the identity if it is no table."""
        call = self.definition(x)
        integer = integer_of(call)
        if integer is not None and integer.kind == "table":
            data, table = operands_of(call)
            if isinstance(table, GenericConst):
                return data, table.value.numpy()
        limits = np.iinfo(str(x.ty.dtype))
        return x, np.arange(limits.min, limits.max + 1).astype(str(x.ty.dtype))

    def chain(self, call: relax.Call) -> _Lookup | None:
        """A table of a table."""
        between, last = self.lookup(call)
        if between is call:
            return None
        data, first = self.lookup(between)
        index = first.astype("int32") - np.iinfo(first.dtype).min
        return None if data is between else (data, last[index])

    def product(self, call: relax.Call, integer: Integer) -> _Lookup | None:
        """A product with at least one factor that is a table."""
        operands = operands_of(call)
        (data, first), (other, second) = map(self.lookup, operands)
        if not data.same_as(other) or all(map(data.same_as, operands)):
            return None
        return data, _multiplied(integer, first, second)


def _multiplied(integer: Integer, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply and round as the operator's kernel does, in float32."""
    factor, offset = np.array(integer.factors, "float32")
    zero_a, zero_b = integer.zeros
    rounding = rounding_of(integer)
    product = (a.astype("int32") - zero_a) * (b.astype("int32") - zero_b)
    whole = np.rint(product.astype("float32") * factor + offset)
    low, high = rounding.low - rounding.zero, rounding.high - rounding.zero
    return (np.clip(whole, low, high) + rounding.zero).astype(rounding.dtype)
