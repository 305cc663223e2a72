"""Every operator of a network by itself: what a processor makes of it, beside another one.

    every_value(mod)    x -> what each operator of `main` computes
    one_by_one(mod)     x, all of these values -> the same, each operator reading them from outside

A difference in the second is an operator's own; in a whole network it also comes from before.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

Values = Mapping[relax.Var, relax.Expr]


def every_value(mod: tvm.IRModule) -> tvm.IRModule:
    """See the module docstring; values that are tuples are left out."""
    return _written(mod, {})


def one_by_one(mod: tvm.IRModule) -> tvm.IRModule:
    """See the module docstring."""
    given = {var: relax.Var(f"given_{var.name}", var.ty) for var in computed(mod)}
    return _written(mod, given)


def computed(mod: tvm.IRModule) -> list[relax.Var]:
    """The tensors that `main` computes, in order."""
    bindings = (b for block in mod["main"].body.blocks for b in block.bindings)
    return [b.var for b in bindings if _is_tensor(b)]


def _written(mod: tvm.IRModule, given: Values) -> tvm.IRModule:
    main, values, results = mod["main"], dict(given), []
    builder = relax.BlockBuilder(mod)
    with builder.function("every", [*main.params, *given.values()]):
        with builder.dataflow():
            for binding in (b for block in main.body.blocks for b in block.bindings):
                emit = builder.emit_output if _is_tensor(binding) else builder.emit
                value = emit(_reading(binding.value, values), name_hint=binding.var.name)
                values.setdefault(binding.var, value)
                if _is_tensor(binding):
                    results.append(value)
        builder.emit_func_output(relax.Tuple(results))
    made = builder.get()
    every = made["every"].with_attr("global_symbol", "main")
    del made[made.get_global_var("every")]
    made.update_func(made.get_global_var("main"), every)
    return made


def _is_tensor(binding: relax.Binding) -> bool:
    return isinstance(binding.value, relax.Call) and isinstance(binding.var.ty, relax.TensorType)


def _reading(expr: relax.Expr, values: Values) -> relax.Expr:
    """The same expression of other operands."""
    if isinstance(expr, relax.Var):
        return values.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_reading(field, values) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_reading(expr.tuple_value, values), expr.index)
    if isinstance(expr, relax.Call):
        args = [_reading(arg, values) for arg in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    return expr
