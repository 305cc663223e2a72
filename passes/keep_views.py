"""Legalise every operator to a PrimFunc, except those that are views of memory.

R.nn.relu(x)                          ->  R.call_tir(relu, (x,))
R.reshape(x, (1, 64))                 stays: a second tensor on the same bytes
R.concat((a, b), axis=1), one image   stays: a and b are written next to each other
R.strided_slice(x, rows 8 to 16)      stays: some rows of each block of channels

R.scatter_nd(x, places, rows)         ->  a PrimFunc whose attribute says that it writes rows
R.multiply(x, 0.0)                    ->  a PrimFunc that reads the zero from a tensor

Equal calls get one PrimFunc, which TVM makes once: language models have thirty equal layers.
Slices stay views if they begin at the alignment that kernels need; otherwise they are copied.

A zero stays a tensor because TVM folds it as a real number: a product with it is 0, also that of
NaN, and a division by it is an error. So do infinity and NaN, which drivers fold.
"""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax, topi
from tvm_ffi.serialization import to_json_graph_str

from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.network.expressions import (
    ALIGNMENT,
    PIECES,
    RESHAPES,
    bindings_of,
    is_float,
    is_view,
    shape_of,
)

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_ARITHMETIC = {
    "add": topi.add,
    "subtract": topi.subtract,
    "multiply": topi.multiply,
    "divide": topi.divide,
}


@tvm.transform.module_pass(opt_level=0, name="KeepViews")
class KeepViews:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        skipped = [f"relax.{name}" for name in RESHAPES]
        own = _legalizers()
        used = {call.op.name for one in mod.functions.values() for call in _operators(one)}
        stock = {name: tvm.ir.Op.get(name).get_attr("FLegalize") for name in used - {*skipped}}
        known = {name: legalize for name, legalize in {**stock, **own}.items() if legalize}
        memo = {name: _Once(legalize) for name, legalize in known.items()}
        return relax.transform.LegalizeOps(memo, skip_ops=skipped)(mod)


def _operators(function: ir.BaseFunc) -> list[relax.Call]:
    if not isinstance(function, relax.Function):
        return []
    values = (binding.value for binding in bindings_of(function))
    return [v for v in values if isinstance(v, relax.Call) and isinstance(v.op, tvm.ir.Op)]


class _Once:
    """Legalises equal calls once: the same attributes, and operands of the same types.

    Scalars become a part of a PrimFunc, so calls with constants are legalised each.
    """

    def __init__(self, legalize: relax.transform.LegalizeFunc) -> None:
        self.legalize = legalize
        self.made: dict[tuple[object, ...], relax.Call] = {}

    def __call__(self, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        operands = [*call.args]
        if len({*operands}) < len(operands) or not all(map(_is_tensor, operands)):
            return self.legalize(bb, call)
        attrs = "" if call.attrs is None else to_json_graph_str(call.attrs)
        key = (attrs, *((*shape_of(arg), str(arg.ty.dtype)) for arg in operands))
        if (made := self.made.get(key)) is not None:
            args = [made.args[0], relax.Tuple(operands)]
            return relax.Call(made.op, args, made.attrs, made.ty_args, ret_ty=made.ty)
        expr = self.legalize(bb, call)
        if isinstance(expr, relax.Call) and expr.op.same_as(_CALL_TIR) and len(expr.args) == 2:
            given = [*expr.args[1]]
            if len(given) == len(operands) and all(map(relax.Var.same_as, operands, given)):
                self.made[key] = expr
        return expr


def _is_tensor(operand: relax.Expr) -> bool:
    return isinstance(operand, relax.Var) and isinstance(operand.ty, relax.TensorType)


def _legalizers() -> dict[str, relax.transform.LegalizeFunc]:
    """How operators become PrimFuncs where TVM's own way will not do."""
    legalizers = {f"relax.{name}": _unless_view(f"relax.{name}") for name in PIECES}
    legalizers["relax.scatter_nd"] = _marked
    legalizers["relax.scatter_elements"] = _in_order
    legalizers["relax.negative"] = _negated
    legalizers |= {f"relax.{name}": _zeros_as_tensors(f"relax.{name}") for name in _ARITHMETIC}
    return legalizers


def _in_order(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's kernel for OpenCL updates elements that other work-items have yet to copy."""
    with tvm.target.Target("llvm"):
        return call.op.get_attr("FLegalize")(bb, call)


def _marked(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    new = _in_order(bb, call)
    if str(call.attrs.reduction) != "update":
        return new
    function = bb.get()[new.args[0]].with_attr(WRITES_PLACES, True)
    kernel = bb.add_func(function, "scatter_nd")
    return relax.Call(new.op, [kernel, *new.args[1:]], new.attrs, new.ty_args, ret_ty=new.ty)


def _unless_view(name: str) -> relax.transform.LegalizeFunc:
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return call if is_view(call, ALIGNMENT) else stock(bb, call)

    return legalize


def _negated(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A product with -1: TVM writes 0 - x, which is 0 and not -0 for 0."""
    if not is_float(call):
        return tvm.ir.Op.get("relax.negative").get_attr("FLegalize")(bb, call)
    minus = tvm.tirx.const(-1.0, str(call.ty.dtype))
    return bb.call_te(topi.multiply, call.args[0], minus, primfunc_name_hint="negative")


def _zeros_as_tensors(name: str) -> relax.transform.LegalizeFunc:
    stock = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not is_float(call) or not any(map(_is_special, call.args)):
            return stock(bb, call)
        kind = name.removeprefix("relax.")
        return bb.call_te(_ARITHMETIC[kind], *call.args, primfunc_name_hint=kind)

    return legalize


def _is_special(operand: relax.Expr) -> bool:
    """Whether an operand is a scalar constant that is 0 or no finite number."""
    if not isinstance(operand, tvm.ir.GenericConst) or operand.ty.shape.values:
        return False
    value = float(operand.value.numpy())
    return value == 0 or not math.isfinite(value)
