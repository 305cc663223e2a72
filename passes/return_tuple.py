"""Return the results of a network as a tuple of variables, not as a variable that holds a tuple.

    lv2 = (lv, lv1)         gv = lv
    return lv2        ->    gv1 = lv1
                            return (gv, gv1)

Passes that convert results one by one (to float32, to rows of channels) see each of them so.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.rewriting import with_body


@tvm.transform.module_pass(opt_level=0, name="ReturnTuple")
class ReturnTuple:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main = mod["main"]
        result, blocks = main.body.body, list(main.body.blocks)
        if not isinstance(result, relax.Var) or not isinstance(result.ty, relax.TupleType):
            return mod
        if not blocks or not isinstance(blocks[-1], relax.DataflowBlock):
            return mod
        fields = _fields(result, main)
        names = [getattr(field, "name", result.name) for field in fields]
        variables = [relax.Var(n, ty) for n, ty in zip(names, result.ty.fields, strict=True)]
        pairs = zip(variables, fields, strict=True)
        bindings = [*blocks[-1].bindings, *(relax.VarBinding(*pair) for pair in pairs)]
        body = relax.SeqExpr([*blocks[:-1], relax.DataflowBlock(bindings)], relax.Tuple(variables))
        return with_body(mod, body)


def _fields(result: relax.Var, main: relax.Function) -> list[relax.Expr]:
    """What a variable's tuple is made of."""
    bound = {b.var: b.value for b in bindings_of(main)}
    value: relax.Expr = result
    while isinstance(value, relax.Var) and value in bound:
        value = bound[value]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [relax.TupleGetItem(result, index) for index in range(len(result.ty.fields))]
