"""Sorting and running sums of Relax networks, out of operators that every target has.

topk(x, 2)[1], argsort(x), sort(x)   ->   what `onnx_ops.ordering` makes of TopK
cumsum(x, 1), cumprod(x, 1)          ->   what it makes of CumSum and CumProd
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.frontend.onnx_node import CONVERTERS, Node
from tvm_stretch.frontend.onnx_ops import ordering  # noqa: F401  registers the converter
from tvm_stretch.ir.operators import kind_of

_SORTS = {"topk", "argsort", "sort"}
_RUNNING = {"cumsum": "CumSum", "cumprod": "CumProd"}


def expand_ordering(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace the sorts and running sums of ``main``.

    Raises:
        UnsupportedError: One sorts too many elements, or adds up to booleans.
    """
    blocks = mod["main"].body.blocks
    calls = [binding.value for block in blocks for binding in block.bindings]
    if not any(kind_of(call) in {*_SORTS, *_RUNNING} for call in calls):
        return mod
    mod = mod.clone()
    mod["main"] = _Expander(mod).visit_expr(mod["main"])
    return mod


@relax.expr_functor.mutator
class _Expander(relax.PyExprMutator):
    """Writes each as the converter of its operator in ONNX does."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = kind_of(call)
        if name in _RUNNING:
            return self.running(call, _RUNNING[name])
        if name not in _SORTS:
            return call
        attrs, shape = call.attrs, call.args[0].ty.shape.values
        k = int(attrs.k) if name == "topk" else int(shape[int(attrs.axis)])
        largest = bool(attrs.largest if name == "topk" else attrs.descending)
        values, indices = self.sorted(call, k, largest)
        if name == "sort":
            return values
        indices = self.builder_.emit(relax.op.astype(indices, str(attrs.dtype)))
        kind = str(attrs.ret_type) if name == "topk" else "indices"
        return {"both": relax.Tuple([values, indices]), "values": values}.get(kind, indices)

    def sorted(self, call: relax.Call, k: int, largest: bool) -> tuple[relax.Expr, relax.Expr]:
        """The ``k`` first values and their indices."""
        inputs = [call.args[0], np.asarray([k])]
        attrs = {"axis": int(call.attrs.axis), "largest": int(largest)}
        node = Node("TopK", "", 18, inputs, attrs, ["values", "indices"], self.builder_)
        values, indices = CONVERTERS["TopK"](node)
        return self.builder_.emit(values), indices

    def running(self, call: relax.Call, operator: str) -> relax.Expr:
        """Sums or products of all elements up to each; of all axes if none is given."""
        if str(call.ty.dtype) == "bool":
            raise UnsupportedError(
                f'expected numbers for the result of {kind_of(call)}, got bool; write dtype="int64"'
            )
        x, axis = call.args[0], call.attrs.axis
        if axis is None:
            x, axis = relax.op.reshape(x, call.ty.shape), 0
        x = self.builder_.emit(relax.op.astype(x, str(call.ty.dtype)))
        inputs, attrs = [x, np.asarray(int(axis))], {"exclusive": int(call.attrs.exclusive or 0)}
        node = Node(operator, "", 18, inputs, attrs, ["result"], self.builder_)
        return CONVERTERS[operator](node)
