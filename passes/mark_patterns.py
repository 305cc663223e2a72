"""Correct the patterns by which TVM decides which kernels it fuses.

    winograd_conv2d  opaque        ->   out-elementwise-fusable   its followers become an epilogue
    pad              elementwise   ->   injective                 no epilogue of the template before
    take             opaque        ->   injective                 computes the indices that it reads
    nibbles          reduction     ->   opaque                    its nest takes no epilogue

TVM calls a kernel of several blocks opaque, and so each template. Where stores are packed
(`hvx_stores.py`), templates stay opaque: an addition after the rounding of their sums would break
the pattern of packed stores, and the rounding would work on single numbers of 64 bits.

A slice from the first element on, or padding after the last, reads each element where it writes it,
so TVM takes it for elementwise and fuses it into the template before it. The template would then
write all of its own result, which has another size than the fused one.

TVM calls a kernel opaque too if it reads at computed positions. A fused operand is computed again
for every element that the gather writes. For an index this costs nothing next to the memory access
(`guard_operators.py` puts five operators before each gather), but it does for the data: a gather
stays opaque if a kernel that could be fused computes its data. Integer tables stay opaque where
`hvx_bytes.py` looks them up in vectors, which works for unfused tables only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.network.expressions import bindings_of, nodes_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import rewrite_kernels
from tvm_stretch.targets.hexagon.kernels.hvx_bytes import lookup_of
from tvm_stretch.targets.kernels.fused import blocks_of
from tvm_stretch.targets.kernels.template import read_template

_ELEMENTWISE, _INJECTIVE, _OUT_ELEMENTWISE_FUSABLE, _OPAQUE = 0, 2, 4, 8


@tvm.transform.module_pass(opt_level=0, name="MarkPatterns")
class MarkPatterns:
    """See the module docstring.

    Args:
        epilogues: whether templates take epilogues, and tables of integers are fused.
    """

    def __init__(self, epilogues: bool = True) -> None:
        self.epilogues = epilogues

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = rewrite_kernels(mod, self._marked)
        data_of = {
            var: _gathered(func)
            for var, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and self._may_fuse(func)
        }
        gathers = {var for var, data in data_of.items() if data}
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                gathers -= _fed_by_kernels(mod, func, data_of)
        for var in gathers:
            mod.update_func(var, mod[var].with_attr("op_pattern", _INJECTIVE))
        return mod

    def _marked(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        notes = [block.annotations for block in blocks_of(func)]
        marks = [str(note[ANNOTATION]) for note in notes if ANNOTATION in note]
        if marks:
            takes_epilogue = self.epilogues and read_template(marks[-1]).takes_epilogue
            pattern = _OUT_ELEMENTWISE_FUSABLE if takes_epilogue else _OPAQUE
            return func.with_attr("op_pattern", pattern)
        return func.with_attr("op_pattern", _INJECTIVE) if _cuts(func) else func

    def _may_fuse(self, func: tirx.PrimFunc) -> bool:
        return _pattern(func) == _OPAQUE and (self.epilogues or lookup_of(func) is None)


def _cuts(func: tirx.PrimFunc) -> bool:
    """Whether an elementwise result has another shape than all of its operands.

    An operand that is broadcast beside one of the result's shape, such as a bias, is no cut.
    """
    if _pattern(func) != _ELEMENTWISE:
        return False
    tensors = [param for param in func.params if isinstance(param, tirx.Buffer)]
    *operands, result = [list(map(str, tensor.shape)) for tensor in tensors]
    return bool(operands) and result not in operands


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
    return [load for expr in exprs for load in nodes_of(expr, TensorLoad)]


def _fed_by_kernels(
    mod: tvm.IRModule, func: relax.Function, data_of: dict[Any, list[int]]
) -> set[Any]:
    """Gathers that somewhere receive data from a kernel that TVM fuses into others."""
    kernels: dict[relax.Var, relax.Call] = {}
    fed = set()
    for binding in bindings_of(func):
        call: Any = getattr(binding, "value", None)
        if kind_of(call) != "call_tir":
            continue
        kernels[binding.var] = call
        for place in data_of.get(call.args[0], []):
            maker = kernels.get(call.args[1].fields[place])
            if maker is not None and _pattern(mod[maker.args[0]]) <= _INJECTIVE:
                fed.add(call.args[0])
    return fed
