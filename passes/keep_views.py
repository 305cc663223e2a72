"""Legalise every operator to a PrimFunc, except those that are views of memory.

R.nn.relu(x)                          ->  R.call_tir(relu, (x,))
R.reshape(x, (1, 64))                 stays: a second tensor on the same bytes
R.concat((a, b), axis=1), one image   stays: a and b are written next to each other
R.strided_slice(x, rows 8 to 16)      stays: some rows of each block of channels

R.scatter_nd(x, places, rows)         ->  a PrimFunc whose attribute says that it writes rows
R.multiply(x, 0.0)                    ->  a PrimFunc that reads the zero from a tensor

Slices stay views if they begin at the alignment that kernels need; otherwise they are copied.

A zero stays a tensor because TVM folds it as a real number: a product with it is 0, also that of
NaN, and a division by it is an error. So do infinity and NaN, which drivers fold.
"""

from __future__ import annotations

import math

import tvm
from tvm import relax, topi

from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.network.expressions import ALIGNMENT, PIECES, RESHAPES, is_float, is_view

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
        return relax.transform.LegalizeOps(_legalizers(), skip_ops=skipped)(mod)


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
