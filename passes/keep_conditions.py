"""Return the conditions that decide which operators matter, so that the executor can skip others.

    y = where(c, conv(x), relu(x))      c: one bool
        ->   results (y, c); conv: when c; relu: when not c

An operator depends on a condition if everything that reads it is such a selection, or depends on
the same condition. Selections stay: the network computes the same with every operator. Networks
with states stay as they are, and so do selections between single numbers, such as an index that
may count from the end: a result would cost more than the skipped operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import tvm
from tvm import relax

from tvm_stretch.network.codec import to_text
from tvm_stretch.network.expressions import (
    bindings_of,
    shape_of,
    tensor_types,
    variables_of,
    with_variables,
)
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.states import CONDITIONS, STATES, Condition, read_guards
from tvm_stretch.passes.guard_operators import returned_tensors, returning

_Wanted = tuple[str, bool]


@tvm.transform.module_pass(opt_level=0, name="KeepConditions")
class KeepConditions:
    """See the module docstring; operators have names of their own."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        main = mod["main"]
        conditions = {} if STATES in (main.attrs or {}) else _conditions(main)
        if not conditions:
            return mod
        wanted = {flag for flag, _ in conditions.values()}
        results, inputs = returned_tensors(main), {param.name for param in main.params}
        count, guards = read_guards(main)
        count = len(results) if count is None else count
        places = {r.name: i for i, r in enumerate(results) if isinstance(r, relax.Var)}
        outside = {
            b.var.name: relax.Var(b.var.name, b.var.ty)
            for b in bindings_of(main)
            if b.var.name in wanted and b.var.name not in places
        }
        places |= {name: len(results) + i for i, name in enumerate(outside)}
        places |= dict.fromkeys(wanted & inputs, -1)
        listed = {
            name: Condition(flag if flag in inputs else "", places[flag], is_wanted)
            for name, (flag, is_wanted) in conditions.items()
        }
        results += outside.values()
        kept = returning(main, [_with_results(main, outside)], results, count, guards)
        updated = mod.clone()
        updated["main"] = kept.with_attr(CONDITIONS, to_text(listed))
        return updated


def _conditions(main: relax.Function) -> dict[str, _Wanted]:
    """By operator, the variable that has to be true, or false, for anything to read it."""
    uses: dict[str, set[_Wanted | None]] = {}
    for result in returned_tensors(main):
        if isinstance(result, relax.Var):
            uses.setdefault(result.name, set()).add(None)
    wanted_of: dict[str, _Wanted] = {}
    worth: set[str] = set()
    for binding in reversed([*bindings_of(main)]):
        name, value = binding.var.name, binding.value
        own = uses.get(name, {None})
        (only,) = own if len(own) == 1 else (None,)
        if only is not None:
            wanted_of[name] = only
            if _has_several(binding.var):
                worth.add(only[0])
        for read, wanted in _reads(value, only):
            uses.setdefault(read, set()).add(wanted)
    return {name: wanted for name, wanted in wanted_of.items() if wanted[0] in worth}


def _reads(value: relax.Expr, own: _Wanted | None) -> list[tuple[str, _Wanted | None]]:
    """What an expression reads, and on which condition."""
    args = list(value.args) if isinstance(value, relax.Call) else []
    if kind_of(value) == "where" and isinstance(args[0], relax.Var) and _is_one(args[0]):
        flag, chosen = args[0].name, (True, False)
        named = [arg.name if isinstance(arg, relax.Var) else "" for arg in args[1:]]
        return [(flag, own), *((n, (flag, w)) for n, w in zip(named, chosen, strict=True) if n)]
    return [(var.name, own) for var in variables_of(value)]


def _has_several(var: relax.Var) -> bool:
    """Whether a variable holds more than one number."""
    return any(prod(int(n) for n in ty.shape.values) > 1 for ty in tensor_types(var))


def _is_one(flag: relax.Var) -> bool:
    return str(flag.ty.dtype) == "bool" and all(size == 1 for size in shape_of(flag))


def _with_results(main: relax.Function, outside: Mapping[str, relax.Var]) -> relax.BindingBlock:
    """The bindings of ``main``, some of whose variables may be returned from now on."""
    renamed: dict[relax.Var, relax.Var] = {}
    bindings = []
    for binding in bindings_of(main):
        value = with_variables(binding.value, lambda var: renamed.get(var, var))
        renamed[binding.var] = outside.get(binding.var.name, binding.var)
        bindings.append(relax.VarBinding(renamed[binding.var], value))
    return relax.DataflowBlock(bindings)
