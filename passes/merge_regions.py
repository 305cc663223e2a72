"""Merge the regions of all processors into one module; every kernel gets one owner.

    cpu:     r0: call_tir(conv2d, ..)        r0: call_tir(conv2d, ..)
    opencl:  r1: call_tir(pack, (w,))   ->   r1: call_tir(pack, (w,))
                 call_tir(conv2d, ..)            call_tir(conv2d1, ..)
                                             conv2d, pack: processor = "cpu"
                                             conv2d1: processor = "opencl"

Names of kernels become unique. Kernels that only read constants run on the CPU once, when the model
is loaded, so they belong to the CPU wherever their region runs, and equal ones become one.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.passes.fold_constants import constant_bindings, is_constant


def merge_regions(
    main: relax.Function,
    parts: Mapping[str, tvm.IRModule],  # regions and kernels of each processor, the CPU first
) -> tvm.IRModule:
    """One module of ``main`` and the regions that it calls."""
    host = next(iter(parts))
    builder = relax.BlockBuilder()
    regions: dict[str, GlobalVar] = {}
    for name, part in parts.items():
        linker = _Linker(part, name, host, builder)
        for var, function in part.functions.items():
            if isinstance(function, relax.Function):
                linked = linker.link(function)
                regions[var.name_hint] = builder.add_func(linked, var.name_hint)
    builder.add_func(_Caller(builder.get(), regions).visit_expr(main), "main")
    return builder.get()


@relax.expr_functor.mutator
class _Linker(relax.PyExprMutator):
    """Points the kernel calls of one processor's regions to kernels of the merged module."""

    def __init__(
        self, part: tvm.IRModule, name: str, host: str, target: relax.BlockBuilder
    ) -> None:
        super().__init__(part)
        self.part = part
        self.name = name
        self.host = host
        self.target = target
        self.constants: set[relax.Var] = set()
        self.added: dict[tuple[str, str], GlobalVar] = {}

    def link(self, function: relax.Function) -> relax.Function:
        """``function``, calling kernels of the merged module."""
        self.constants = {binding.var for binding in constant_bindings(function)}
        return self.visit_expr(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if str(getattr(call.op, "name", "")) != "relax.call_tir":
            return super().visit_call_(call)
        owner = self.host if is_constant(call.args[1], self.constants) else self.name
        kernel = self._kernel(call.args[0], owner)
        args = [kernel, *(self.visit_expr(arg) for arg in call.args[1:])]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _kernel(self, var: GlobalVar, owner: str) -> GlobalVar:
        key = (var.name_hint, owner)
        if key not in self.added:
            function = self.part[var].with_attr(PROCESSOR, owner)
            self.added[key] = self.target.add_func(function, var.name_hint)
        return self.added[key]


@relax.expr_functor.mutator
class _Caller(relax.PyExprMutator):
    """Points the calls of ``main`` to the regions of the merged module."""

    def __init__(self, mod: tvm.IRModule, regions: Mapping[str, GlobalVar]) -> None:
        super().__init__(mod)
        self.regions = regions

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        args = [self.visit_expr(arg) for arg in call.args]
        return relax.Call(self.regions[call.op.name_hint], args)


def kernels_of(mod: tvm.IRModule, processor: str) -> tvm.IRModule:
    """The kernels that belong to ``processor``."""
    return tvm.IRModule(
        {
            var: function
            for var, function in mod.functions.items()
            if isinstance(function, tirx.PrimFunc) and function.attrs[PROCESSOR] == processor
        }
    )
