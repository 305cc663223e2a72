"""Let gathers compute the indices that they read instead of reading them from another kernel.

    take      op_pattern=8 (opaque)   ->   op_pattern=2 (elementwise indices fuse into it)

TVM calls a kernel opaque if it reads at computed positions. A fused operand is computed again for
every element that the gather writes. For an index this costs nothing next to the memory access
(`guard_operators.py` puts five operators before each gather), but it does for the data: a gather
stays opaque if a kernel that could be fused computes its data. Integer tables stay opaque too where
`hvx_table.py` looks them up in vectors, which works for unfused tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad

from tvm_stretch.ir.operators import kind_of
from tvm_stretch.targets.kernels.fused import blocks_of
from tvm_stretch.targets.kernels.hvx_table import lookup_of

_INJECTIVE, _OPAQUE = 2, 8


@tvm.transform.module_pass(opt_level=0, name="MarkGathers")
class MarkGathers:
    """See the module docstring.

    Args:
        tables: whether tables of integers are marked too.
    """

    def __init__(self, tables: bool = True) -> None:
        self.tables = tables

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Set ``op_pattern`` of every gather whose data no fusable kernel computes."""
        data_of = {
            var: _gathered(func)
            for var, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and self._may_fuse(func)
        }
        marked = {var for var, data in data_of.items() if data}
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                marked -= _fed_by_kernels(mod, func, data_of)
        updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for var in marked:
            updated.update_func(var, mod[var].with_attr("op_pattern", _INJECTIVE))
        return updated

    def _may_fuse(self, func: tirx.PrimFunc) -> bool:
        return _pattern(func) == _OPAQUE and (self.tables or lookup_of(func) is None)


def _pattern(func: tirx.PrimFunc) -> int:
    return int((func.attrs or {}).get("op_pattern", _OPAQUE))


def _gathered(func: tirx.PrimFunc) -> list[int]:
    """The parameters that are read at loaded positions; none if the function does anything else."""
    inner = blocks_of(func)
    if len(inner) != 1 or not isinstance(inner[0].body, tirx.BufferStore):
        return []
    axes = [axis.var for axis in inner[0].iter_vars]
    store = inner[0].body
    in_place = len(store.indices) == len(axes) and all(
        index.same_as(axis) for index, axis in zip(store.indices, axes, strict=True)
    )
    spatial = all(axis.iter_type == tirx.IterVar.DataPar for axis in inner[0].iter_vars)
    if not in_place or not spatial or inner[0].init is not None:
        return []
    data = [load.source for load in _loads([store.value]) if _loads(load.indices)]
    return [i for i, p in enumerate(func.params) if any(p.same_as(source) for source in data)]


def _loads(exprs: Sequence[tvm.ir.Expr]) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    for expr in exprs:
        tvm_ffi.structural_walk(expr, (TensorLoad, found.append))
    return found


def _fed_by_kernels(
    mod: tvm.IRModule, func: relax.Function, data_of: dict[Any, list[int]]
) -> set[Any]:
    """Gathers that somewhere receive data from a kernel that TVM fuses into others."""
    kernels: dict[relax.Var, relax.Call] = {}
    fed = set()
    for block in func.body.blocks:
        for binding in block.bindings:
            call: Any = getattr(binding, "value", None)
            if kind_of(call) != "call_tir":
                continue
            kernels[binding.var] = call
            for place in data_of.get(call.args[0], []):
                maker = kernels.get(call.args[1].fields[place])
                if maker is not None and _pattern(mod[maker.args[0]]) <= _INJECTIVE:
                    fed.add(call.args[0])
    return fed
