"""Compute operators that depend on constants only.

    lv = R.multiply(c1, c2)
    lv1 = R.add(x, lv)         ->    lv1 = R.add(x, c3)

TVM's FoldConstant makes a kernel of every operator before it asks whether the operands are
constant, which takes longer than all other passes together; so it only receives operators that are
constant.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import bindings_of


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        known = [b for b in constant_bindings(mod["main"]) if isinstance(b.value, relax.Call)]
        if not known:
            return mod
        values = _computed(constant_bindings(mod["main"]))
        mod = mod.clone()
        mod["main"] = _with_values(mod["main"], values)
        return mod


def constant_bindings(function: relax.Function) -> list[relax.VarBinding]:
    """The bindings that depend on constants only, in order."""
    found: list[relax.VarBinding] = []
    variables: set[relax.Var] = set()
    for binding in bindings_of(function):
        if isinstance(binding, relax.VarBinding) and is_constant(binding.value, variables):
            variables.add(binding.var)
            found.append(binding)
    return found


def is_constant(value: relax.Expr, constants: set[relax.Var]) -> bool:
    """Whether ``value`` depends on constants only: the compiler can compute it."""
    if isinstance(value, relax.Var):
        return value in constants
    if isinstance(value, relax.Tuple):
        return all(is_constant(field, constants) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return is_constant(value.tuple_value, constants)
    if isinstance(value, relax.Call):
        return all(is_constant(arg, constants) for arg in value.args)
    return True


_QUOTIENTS = {"relax.divide": np.divide, "relax.floor_divide": np.floor_divide}
_QUOTIENTS |= {"relax.mod": np.fmod, "relax.floor_mod": np.mod}


def _computed(bindings: list[relax.VarBinding]) -> dict[relax.Var, relax.Expr]:
    """The values of ``bindings``, which depend on nothing else, if TVM can compute them.

    TVM refuses to divide one number by zero; NumPy's quotient is IEEE 754's.
    """
    try:
        return _by_tvm(bindings)
    except tvm.error.InternalError:
        values: dict[relax.Var, relax.Expr] = {}
    for binding in bindings:
        earlier = [relax.VarBinding(var, value) for var, value in values.items()]
        try:
            values.update(_by_tvm([*earlier, binding]))
        except tvm.error.InternalError:
            call = binding.value
            if not isinstance(call, relax.Call) or call.op.name not in _QUOTIENTS:
                raise
            operands = [values.get(x, x).value.numpy() for x in call.args]
            with np.errstate(all="ignore"):
                quotient = _QUOTIENTS[call.op.name](*operands)
            values[binding.var] = relax.const(quotient, str(call.ty.dtype))
    return values


def _by_tvm(bindings: list[relax.VarBinding]) -> dict[relax.Var, relax.Expr]:
    values = relax.Tuple([binding.var for binding in bindings])
    result = relax.Var("values", values.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, values)])
    function = relax.Function([], relax.SeqExpr([block], result), ret_ty=values.ty)
    function = function.with_attr("global_symbol", "main")
    folded = relax.transform.FoldConstant()(tvm.IRModule({"main": function}))["main"]
    fields = folded.body.blocks[-1].bindings[-1].value.fields
    pairs = zip(bindings, fields, strict=True)
    return {b.var: value for b, value in pairs if isinstance(value, tvm.ir.GenericConst)}


def _with_values(function: relax.Function, values: dict[relax.Var, relax.Expr]) -> relax.Function:
    """``function`` with ``values`` bound instead of the calls that compute them."""

    def bound(binding: relax.Binding) -> relax.Binding:
        value = values.get(binding.var)
        return binding if value is None else relax.VarBinding(binding.var, value)

    blocks = [
        type(block)([bound(binding) for binding in block.bindings])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
