"""Sorting and running sums of Relax networks, out of operators that every target has.

topk(x, 2)[1], argsort(x), sort(x)   ->   the operators that `onnx_ops.ordering` emits for TopK
argmax(x, 1), argmin(x, 1)           ->   those for ArgMax and ArgMin
cumsum(x, 1), cumprod(x, 1)          ->   those for CumSum and CumProd
median(x: int8)                      ->   median(astype(x, int32)), which TVM's runtime can sort
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.call_rewriter import CallRewriter
from tvm_stretch.network.operators import kind_of
from tvm_stretch.read.onnx.node import CONVERTERS, Node
from tvm_stretch.read.onnx.operators.ordering import place_of_extreme

_SORTS = {"topk", "argsort", "sort"}
_RUNNING = {"cumsum": "CumSum", "cumprod": "CumProd"}
_PLACES = {"argmax", "argmin"}
_NARROW = {"bool", "int8", "uint8", "int16", "uint16"}


def expand_ordering(mod: tvm.IRModule) -> tvm.IRModule:
    """Replace the sorts and running sums of ``main``.

    Raises:
        UnsupportedError: One sorts too many elements, or adds up to booleans.
    """
    blocks = mod["main"].body.blocks
    calls = [binding.value for block in blocks for binding in block.bindings]
    if not any(kind_of(call) in {*_SORTS, *_RUNNING, *_PLACES, "median"} for call in calls):
        return mod
    return _Expander(mod).rewritten(mod)


@relax.expr_functor.mutator
class _Expander(CallRewriter):
    """Writes each as the converter of its operator in ONNX does."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        name = kind_of(call)
        if name in _RUNNING:
            return self.running(call, _RUNNING[name])
        if name == "median":
            return self.median(call)
        if name in _PLACES:
            return self.place(call)
        if name not in _SORTS:
            return None
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
        x = call.args[0]
        is_bool = str(x.ty.dtype) == "bool"
        if is_bool:  # TVM does not compare booleans
            x = self.builder_.emit(relax.op.astype(x, "uint8"))
        attrs = {"axis": int(call.attrs.axis), "largest": int(largest)}
        inputs, outputs = [x, np.asarray([k])], ["values", "indices"]
        values, indices = CONVERTERS["TopK"](
            Node("TopK", "", 18, inputs, attrs, outputs, self.builder_)
        )
        values = self.builder_.emit(values)
        return self.builder_.emit(relax.op.astype(values, "bool")) if is_bool else values, indices

    def place(self, call: relax.Call) -> relax.Expr:
        """The place of the largest or least number along an axis, or of all without an axis."""
        x, axis, keepdims = call.args[0], call.attrs.axis, bool(call.attrs.keepdims)
        if axis is None:
            x, keepdims = self.builder_.emit(relax.op.flatten(x)), False
        if str(x.ty.dtype) == "bool":
            x = self.builder_.emit(relax.op.astype(x, "uint8"))
        node = Node(kind_of(call), "", 18, [x], {}, ["place"], self.builder_)
        found = place_of_extreme(
            node,
            int(axis or 0) % node.rank(),
            largest=kind_of(call) == "argmax",
            last=False,
            keepdims=keepdims,
        )
        if axis is None:
            found = relax.op.reshape(self.builder_.emit(found), call.ty.shape)
        return found

    def median(self, call: relax.Call) -> relax.Expr | None:
        """The same median, of a type that TVM's runtime can sort."""
        dtype = str(call.args[0].ty.dtype)
        if dtype not in _NARROW:
            return None
        wide = self.builder_.emit(relax.op.astype(call.args[0], "int32"))
        found = self.builder_.emit(relax.Call(call.op, [wide], call.attrs))
        if not isinstance(found.ty, relax.TupleType):
            return relax.op.astype(found, dtype)
        values, indices = (self.builder_.emit(relax.TupleGetItem(found, i)) for i in range(2))
        return relax.Tuple([self.builder_.emit(relax.op.astype(values, dtype)), indices])

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
