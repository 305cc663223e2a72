"""Give every operator a unique name, by which plans, branches and timelines refer to it.

    lv = R.nn.conv2d(x, w)           conv2d = R.nn.conv2d(x, w)
    lv = R.add(lv, b)          ->    add = R.add(conv2d, b)
    lv2 = R.nn.conv2d(lv, v)         conv2d1 = R.nn.conv2d(add, v)

Names that a person chose (not ``lv7``, ``gv``) stay if they are unique. A frontend whose operators
have names records the operator of each binding (`from_source`): the convolution among an operator's
bindings, or else the last one, gets its name, and the others get a suffix that says what they do.

    lv = R.nn.conv2d(x, w)   from conv1           conv1 = R.nn.conv2d(x, w)
    lv1 = R.add(lv, b)       from conv1     ->    conv1.add = R.add(conv1, b)
    lv2 = R.nn.relu(lv1)     from relu1           relu1 = R.nn.relu(conv1.add)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from tvm_stretch.network.attributes import SOURCES
from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.provenance import (
    SOURCE,
    Provenance,
    from_source,
    is_made_up,
    same_source,
    show_dots,
    source_of,
    table_of,
    with_table,
)

REGION = "region_"
"""Prefix of the functions of a plan's regions, which no kernel and no operator has."""

_RESERVED = re.compile(rf"([lg]v|::)\d*|{REGION}[^.]*")
_HEAVY = ("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv2d_transpose", "matmul")


def name_inner(mod: tvm.IRModule) -> tvm.IRModule:
    """Give bindings that TVM's builder made for nested calls the source of the outer call."""
    source, names = "", {}
    for block in mod["main"].body.blocks:
        for binding in reversed(block.bindings):
            if not is_made_up(binding.var.name):
                source = same_source(binding.var)
            elif source and not binding.var.name.startswith("::"):
                names[binding.var] = source
            else:
                source = ""
    return rename_variables(mod, names)


def rename_variables(mod: tvm.IRModule, names: dict[relax.Var, str]) -> tvm.IRModule:
    """Rename variables of ``main``."""
    if not names:
        return mod
    mod = mod.clone()
    mod["main"] = Renamer(mod, names).visit_expr(mod["main"])
    return mod


def keep_names(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark every binding of ``main`` as an operator of the frontend, so that passes keep its name.

    conv = R.nn.conv2d(x, w); bn = R.nn.batch_norm(conv, ..)[0]   ->   conv::, bn::
        after folding, and naming again: conv, bn (the addition)
    """
    bindings = [*bindings_of(mod["main"])]
    return rename_variables(mod, {b.var: from_source(source_of(b.var.name)) for b in bindings})


@relax.expr_functor.mutator
class Renamer(relax.PyExprMutator):
    """Replaces the variables in ``names`` by ones of those names."""

    def __init__(self, mod: tvm.IRModule, names: Mapping[relax.Var, str]) -> None:
        super().__init__(mod)
        self.names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        """Rename a variable that is a result of the function."""
        return self._renamed(var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        """Rename any other variable."""
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
        names = choose_names(mod["main"])
        if not names:
            return mod
        sources = table_of(mod["main"], SOURCES)
        for var, name in names.items():
            if SOURCE.fullmatch(var.name) and name != source_of(var.name):
                sources[name] = Provenance((source_of(var.name),))
        renamed = rename_variables(mod, names)
        if sources:
            renamed["main"] = with_table(renamed["main"], SOURCES, sources)
        return renamed


def choose_names(function: relax.Function) -> dict[relax.Var, str]:
    """New names for the variables of ``function`` that need one."""
    bindings = [*bindings_of(function)]
    heads = _heads(bindings)
    wanted = {binding.var: _wanted(binding, heads) for binding in bindings}
    taken = {param.name for param in function.params}
    taken |= {name for var, name in wanted.items() if name == var.name}
    seen = {param.name for param in function.params}
    numbers: Counter[str] = Counter()
    renamed = {}
    for binding in bindings:
        var, name = binding.var, wanted[binding.var]
        if name != var.name or name in seen:
            renamed[var] = _next(name if name != var.name else _stem(binding.value), numbers, taken)
        seen.add(name)
    return renamed


def _heads(bindings: Sequence[relax.Binding]) -> dict[str, relax.Var]:
    """By operator of the frontend, the binding that gets its name."""
    heads: dict[str, relax.Binding] = {}
    for binding in bindings:
        match = SOURCE.fullmatch(binding.var.name)
        if match is None:
            continue
        head = heads.get(match["source"])
        if head is None or kind_of(head.value) not in _HEAVY:
            heads[match["source"]] = binding
    return {source: head.var for source, head in heads.items()}


def _wanted(binding: relax.Binding, heads: Mapping[str, relax.Var]) -> str:
    """The name that a binding gets unless another binding has it."""
    name = binding.var.name
    match = SOURCE.fullmatch(name)
    if match is not None:
        source = show_dots(match["source"])
        is_head = heads[match["source"]].same_as(binding.var) and not _RESERVED.fullmatch(source)
        return source if is_head else f"{source}.{_stem(binding.value)}"
    return _stem(binding.value) if _RESERVED.fullmatch(name) else show_dots(name)


def _stem(value: relax.Expr) -> str:
    """``conv2d`` for R.nn.conv2d."""
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
