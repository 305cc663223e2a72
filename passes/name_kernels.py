"""Name kernels after the operators in them: timelines and errors speak of the user's network.

    lv = R.call_tir(pack_weight, (w,))
    conv_1 = R.call_tir(conv2d, (x, lv))
    relu_1 = R.call_tir(relu, (conv_1,))
    gv = R.call_tir(unblock_channels, (relu_1,))
        -> MarkOperators (each call records its operator), FuseOps
    lv1 = fused_conv2d_relu(x, lv)
        -> NameKernels
    conv_1.pack_weight = R.call_tir(pack_weight, (w,))
    conv_1 + relu_1 = fused_conv2d_relu(x, conv_1.pack_weight)
    relu_1.unblock_channels = R.call_tir(unblock_channels, (conv_1 + relu_1,))

Calls without a name help the next named operator, or the last one. FuseOps invents names for its
results but keeps attributes of calls; FuseTIR keeps the names and drops those attributes. Therefore
each function gets a table of its names' operators (`network/provenance.py`); names are only for
people.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import GlobalVar

from tvm_stretch.network.attributes import KERNELS
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.provenance import Provenance, free_name, is_made_up, show_dots, with_table
from tvm_stretch.passes.name_operators import Renamer

_OPERATOR = "tvm_stretch.operator"
_HELPS = "tvm_stretch.helps"


@tvm.transform.module_pass(opt_level=0, name="MarkOperators")
class MarkOperators:
    """See the module docstring; to be run right before FuseOps."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for var, function in _functions(mod):
            updated[var] = _Marker(mod, _owners(function)).visit_expr(function)
        return updated


@tvm.transform.module_pass(opt_level=0, name="NameKernels")
class NameKernels:
    """See the module docstring; to be run between FuseOps and FuseTIR."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        taken: set[str] = set()
        updated = mod.clone()
        for var, function in _functions(mod):
            names, table = _named(mod, function, taken)
            renamed = Renamer(mod, names).visit_expr(function)
            updated[var] = with_table(renamed, KERNELS, table)
        return updated


def _functions(mod: tvm.IRModule) -> list[tuple[GlobalVar, relax.Function]]:
    """Every Relax function except those that FuseOps made."""
    return [
        (var, function)
        for var, function in mod.functions.items()
        if isinstance(function, relax.Function) and "Primitive" not in (function.attrs or {})
    ]


def _is_kernel_call(value: object) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir"


# --- marks ----------------------------------------------------------------------------------------


def _owners(function: relax.Function) -> dict[relax.Var, str]:
    """The operator that each unnamed variable helps: the next named one, or the last."""
    bindings = [*bindings_of(function)]
    named = [b.var.name for b in bindings if not is_made_up(b.var.name)]
    owner = named[-1] if named else ""
    owners = {}
    for binding in reversed(bindings):
        if is_made_up(binding.var.name):
            owners[binding.var] = owner
        else:
            owner = binding.var.name
    return owners


@relax.expr_functor.mutator
class _Marker(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, owners: Mapping[relax.Var, str]) -> None:
        super().__init__(mod)
        self.owners = owners

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if _is_kernel_call(call):
            owner = self.owners.get(binding.var)
            mark = {_OPERATOR: binding.var.name} if owner is None else {_HELPS: owner}
            call = relax.Call(call.op, call.args, mark, call.ty_args)
            binding = relax.VarBinding(binding.var, call)
        super().visit_var_binding_(binding)


# --- names ----------------------------------------------------------------------------------------


def _named(
    mod: tvm.IRModule, function: relax.Function, taken: set[str]
) -> tuple[dict[relax.Var, str], dict[str, Provenance]]:
    """New names of variables, and the provenance of each name of the function."""
    names: dict[relax.Var, str] = {}
    table: dict[str, Provenance] = {}
    nameless: list[str] = []
    for binding in bindings_of(function):
        var, value = binding.var, binding.value
        if value in names:  # a result of the function, which replaces the variable
            names[var] = names[value]
            continue
        if isinstance(value, relax.Var) and value.name in table:  # the same for a view
            table[var.name] = table[value.name]
            continue
        calls, kernel = _kernel_calls(mod, value)
        if calls:
            origins = _provenance(calls)
            names[var] = free_name(_label(origins, kernel), taken)
            table[names[var]] = origins
        elif is_made_up(var.name):
            nameless.append(var.name)
            continue
        else:  # a view: if it has to be copied, the copy is its kernel
            whole = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
            provenance = None if whole is None else table.get(names.get(whole, whole.name))
            served = (show_dots(var.name),) if provenance is None else provenance.served[:1]
            origins = Provenance(helpers=served)
            table[var.name] = origins
        table.update(dict.fromkeys(nameless, Provenance(helpers=origins.served[:1])))
        nameless.clear()
    last = next(reversed(table.values()), Provenance())
    table.update(dict.fromkeys(nameless, Provenance(helpers=last.served[-1:])))
    return names, table


def _kernel_calls(mod: tvm.IRModule, value: relax.Expr) -> tuple[list[relax.Call], str]:
    """The calls that one kernel will compute, and the kernel's name."""
    if _is_kernel_call(value):
        return [value], value.args[0].name_hint
    if isinstance(value, relax.Call) and isinstance(value.op, GlobalVar):
        group = mod[value.op]
        if isinstance(group, relax.Function) and "Primitive" in (group.attrs or {}):
            calls = [b.value for b in bindings_of(group) if _is_kernel_call(b.value)]
            return calls, value.op.name_hint
    return [], ""


def _provenance(calls: list[relax.Call]) -> Provenance:
    """The operators that a kernel computes, or the one that it helps."""
    marks = [dict(call.attrs or {}) for call in calls]
    operators = tuple(show_dots(str(mark[_OPERATOR])) for mark in marks if _OPERATOR in mark)
    helped = (show_dots(str(mark[_HELPS])) for mark in marks if mark.get(_HELPS))
    return Provenance(operators) if operators else Provenance((), tuple(helped)[:1])


def _label(provenance: Provenance, kernel: str) -> str:
    """The name for people."""
    if provenance.operators:
        return " + ".join(provenance.operators)
    kind = kernel.rstrip("0123456789")  # TVM numbers kernels of one kind
    return ".".join((*provenance.helpers, kind))
