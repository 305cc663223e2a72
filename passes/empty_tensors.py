"""Compute operators on tensors without elements here: no kernel is needed, and TVM has none.

y: (0, 3) = R.nn.relu(x)              ->   a constant without elements
y: (3,) = R.sum(x: (0, 3), axis=0)    ->   zeros
y = R.concat((x: (0, 3), z))          ->   z
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import bindings_of, constant, flat_args
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import CallRewriter

_OF_NOTHING = {"sum": 0, "prod": 1, "mean": math.nan, "variance": math.nan, "std": math.nan}
_WRITES = ("scatter_nd", "scatter_elements", "index_put")


@tvm.transform.module_pass(opt_level=0, name="EmptyTensors")
class EmptyTensors:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        bindings = [*bindings_of(mod["main"])]
        variables = [*mod["main"].params, *(binding.var for binding in bindings)]
        if not any(_is_empty(kind) for var in variables for kind in _tensors(var.ty)):
            return mod
        return _Rewriter(mod).rewritten(mod)


def _tensors(kind: tvm.ir.Type) -> list[tvm.ir.Type]:
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _is_empty(kind: tvm.ir.Type) -> bool:
    """Whether a type is that of a tensor without elements."""
    shape = getattr(kind, "shape", None)
    sizes = shape.values if isinstance(shape, relax.ShapeExpr) else ()
    return any(isinstance(size, tvm.tirx.IntImm) and int(size) == 0 for size in sizes)


@relax.expr_functor.mutator
class _Rewriter(CallRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        call = self.builder_.normalize(call)
        kinds = _tensors(call.ty)
        if kinds and all(map(_is_empty, kinds)):
            parts = [_filled(kind, 0) for kind in kinds]
            return relax.Tuple(parts) if isinstance(call.ty, relax.TupleType) else parts[0]
        if not any(_is_empty(arg.ty) for arg in flat_args(call)) or len(kinds) != 1:
            return None
        kind = kind_of(call)
        if kind == "concat":
            left = [arg for arg in flat_args(call) if not _is_empty(arg.ty)]
            return relax.op.concat(left, call.attrs.axis) if len(left) > 1 else left[0]
        if kind == "matmul":
            return _filled(call.ty, 0)
        if kind == "pad":
            return _filled(call.ty, call.attrs.pad_value)
        if kind in _WRITES and not _is_empty(call.args[0].ty):
            return call.args[0]
        number = _OF_NOTHING.get(kind)
        return None if number is None else _filled(call.ty, number)


def _filled(kind: relax.TensorType, number: float) -> relax.Expr:
    """A constant of a type."""
    return constant(np.full([int(size) for size in kind.shape.values], number, str(kind.dtype)))
