"""Join integer operators of one tensor into one table.

    s = R.call_tir(integer_table, (x, sigmoid))
    y = R.call_tir(integer_multiply, (x, s))     # swish: x times its sigmoid, rounded twice
        ->
    y = R.call_tir(integer_table, (x, swish))    # the same 256 results

The number is looked up in a table anyway, so a table that contains the product costs nothing more.
A table of a table becomes one table as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of, operands_of, rounding_of
from tvm_stretch.network.properties.integer_summary import has_integers, with_integers
from tvm_stretch.network.rewriting import CallRewriter


@tvm.transform.module_pass(opt_level=0, name="JoinTables")
class JoinTables:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not has_integers(mod["main"]):
            return mod
        joined = _Joiner(mod).rewritten(mod)
        return with_integers(relax.transform.DeadCodeElimination()(joined))


@dataclass(frozen=True)
class _Lookup:
    """A tensor, and the result for each of its possible numbers, from the least one up."""

    data: relax.Expr
    numbers: np.ndarray
    table: Integer | None = None  # the operator; None if the result is the number itself


@relax.expr_functor.mutator
class _Joiner(CallRewriter):
    """Replaces products and tables whose operands are one tensor or tables of it."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        integer = integer_of(call)
        if integer is None or integer.kind not in ("multiply", "table"):
            return None
        joined = self.product(call, integer) if integer.kind == "multiply" else self.chain(call)
        if joined is None or joined.table is None or shape_of(joined.data) != shape_of(call):
            return None
        return integer_call(self.builder_, joined.table, joined.data, constant(joined.numbers))

    def lookup(self, x: relax.Expr) -> _Lookup:
        """The tensor and table that compute ``x``; ``x`` and the identity if it is no table."""
        call = self.definition(x)
        integer = integer_of(call)
        if integer is not None and integer.kind == "table":
            data, table = operands_of(call)
            if isinstance(table, GenericConst):
                return _Lookup(data, table.value.numpy(), integer)
        limits = np.iinfo(str(x.ty.dtype))
        return _Lookup(x, np.arange(limits.min, limits.max + 1).astype(str(x.ty.dtype)))

    def chain(self, call: relax.Call) -> _Lookup | None:
        """A table of a table."""
        last = self.lookup(call)
        first = self.lookup(last.data)
        if last.table is None or first.table is None:
            return None
        index = first.numbers.astype("int32") - np.iinfo(first.numbers.dtype).min
        zeros = first.table.zeros[0], last.table.zeros[1]
        scales = first.table.factors[0], last.table.factors[1]
        return _Lookup(first.data, last.numbers[index], Integer("table", None, zeros, scales))

    def product(self, call: relax.Call, integer: Integer) -> _Lookup | None:
        """A product with at least one factor that is a table."""
        operands = operands_of(call)
        first, second = map(self.lookup, operands)
        lookup = first.table or second.table
        if lookup is None or not first.data.same_as(second.data):
            return None
        zero, scale = lookup.zeros[0], lookup.factors[0]
        scales = [one.table.factors[1] if one.table else scale for one in (first, second)]
        factor, offset = integer.factors
        of_result = scales[0] * scales[1] / factor
        table = Integer("table", None, (zero, round(offset)), (scale, of_result))
        return _Lookup(first.data, _multiplied(integer, first.numbers, second.numbers), table)


def _multiplied(integer: Integer, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply and round as the operator's kernel does, in float32."""
    factor, offset = np.array(integer.factors, "float32")
    zero_a, zero_b = integer.zeros
    rounding = rounding_of(integer)
    product = (a.astype("int32") - zero_a) * (b.astype("int32") - zero_b)
    whole = np.rint(product.astype("float32") * factor + offset)
    low, high = rounding.low - rounding.zero, rounding.high - rounding.zero
    return (np.clip(whole, low, high) + rounding.zero).astype(rounding.dtype)
