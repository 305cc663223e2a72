"""Give every operator a name of its own: plans, branches and timelines speak of them by name.

    lv = R.nn.conv2d(x, w)           conv2d = R.nn.conv2d(x, w)
    lv = R.add(lv, b)          ->    add = R.add(conv2d, b)
    lv2 = R.nn.conv2d(lv, v)         conv2d1 = R.nn.conv2d(add, v)

Names that somebody chose (not ``lv7``, ``gv``) stay where they are unique.
"""

from __future__ import annotations

import re
from collections import Counter

import tvm
from tvm import relax
from tvm_stretch.passes.operators import kind_of

_MADE_UP = re.compile(r"[lg]v\d*")


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    """Replaces the variables in ``names`` by ones of those names."""

    def __init__(self, mod: tvm.IRModule, names: dict[relax.Var, str]) -> None:
        super().__init__(mod)
        self.names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._renamed(var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._renamed(var)

    def _renamed(self, var: relax.Var) -> relax.Var:
        if var not in self.names:
            return var
        renamed = type(var)(self.names[var], var.ty)
        self.set_var_remap(var, renamed)
        return renamed


@tvm.transform.module_pass(opt_level=0, name="NameOperators")
class NameOperators:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rename the bindings of ``main``."""
        names = choose_names(mod["main"])
        if names:
            mod = mod.clone()
            mod["main"] = _Renamer(mod, names).visit_expr(mod["main"])
        return mod


def choose_names(function: relax.Function) -> dict[relax.Var, str]:
    """New names for the variables of ``function`` that need one."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    variables = [*function.params, *(binding.var for binding in bindings)]
    counts = Counter(var.name for var in variables)
    taken = set(counts)
    seen = {param.name for param in function.params}
    numbers: Counter[str] = Counter()
    renamed = {}
    for binding in bindings:
        name = binding.var.name
        if name in seen or _MADE_UP.fullmatch(name):
            renamed[binding.var] = _next(_stem(binding.value), numbers, taken)
        seen.add(name)
    return renamed


def _stem(value: relax.Expr) -> str:
    """``conv2d`` of R.nn.conv2d."""
    return kind_of(value).rpartition(".")[2].lower()


def _next(stem: str, numbers: Counter[str], taken: set[str]) -> str:
    """The first of ``conv2d``, ``conv2d1``, ``conv2d2`` that is free."""
    while True:
        number = numbers[stem]
        numbers[stem] += 1
        name = f"{stem}{number or ''}"
        if name not in taken:
            taken.add(name)
            return name
