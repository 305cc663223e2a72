"""Regions of engines become one kernel each, which holds the region as a model.

    r1(x):                                  r1(x):
        conv = R.nn.conv2d(x, w)     ->         conv = R.call_tir(r1_model, (x,))
        relu = R.nn.relu(conv)                  return conv
        return relu

An engine (a vendor's runtime) takes no kernels of ours: it compiles the whole region, so operators
in it get neither layouts nor templates. The kernel's attribute `MODEL` is the model. Its body is a
call that is never made or, for a spare, all loops of the region, with its constants as operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_stretch.network.attributes import KERNELS, MODEL
from tvm_stretch.network.expressions import (
    bindings_of,
    builder_with_kernels,
    network_of,
    results_of,
    shape_of,
)
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.network.provenance import Provenance, with_table
from tvm_stretch.targets.processor import ModelWriter


@tvm.transform.module_pass(opt_level=0, name="WholeRegions")
class WholeRegions:
    """See the module docstring.

    Args:
        writers: what writes the model of a region, by name of the processor; regions of other
            processors stay as they are.
        spare: whether the CPU can run the kernels too.
    """

    def __init__(self, writers: Mapping[str, ModelWriter], *, spare: bool = False) -> None:
        self.writers, self.spare = dict(writers), spare

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        updated = mod.clone()
        for var, function in mod.functions.items():
            attrs = getattr(function, "attrs", None) or {}
            name = str(attrs.get(PROCESSOR, ""))
            if isinstance(function, relax.Function) and name in self.writers:
                data = np.frombuffer(self.writers[name](function), "uint8").copy()
                kernel, constants = _fused(mod, function) if self.spare else (_stub(function), [])
                kernel = kernel.with_attr(MODEL, tvm.runtime.tensor(data))
                whole, kernel_var = _whole(var.name_hint, function, kernel, constants)
                updated.update_func(kernel_var, kernel)
                updated.update_func(var, whole)
        return updated


def model_of(kernel: tirx.PrimFunc) -> bytes:
    """The model that a kernel holds."""
    data: bytes = kernel.attrs[MODEL].numpy().tobytes()
    return data


def _whole(
    name: str, function: relax.Function, kernel: tirx.PrimFunc, constants: Sequence[relax.Expr]
) -> tuple[relax.Function, tvm.ir.GlobalVar]:
    """The region as one call of a kernel, and the kernel's name."""
    results = results_of(function)
    builder = relax.BlockBuilder(tvm.IRModule({}))
    var = builder.add_func(kernel, f"{name}_model")
    operators = tuple(b.var.name for b in bindings_of(function))
    params = [relax.Var(param.name, param.ty) for param in function.params]
    types = [relax.TensorType(shape_of(r), str(r.ty.dtype)) for r in results]
    with builder.function(name, params, attrs=dict(function.attrs or {})):
        with builder.dataflow():
            several = len(types) > 1
            call = relax.call_tir(var, [*params, *constants], types if several else types[0])
            result = builder.emit(call, name_hint=operators[-1])
            fields = [relax.TupleGetItem(result, i) for i in range(len(types))]
            outputs = [builder.emit_output(field) for field in (fields if several else [result])]
        is_tuple = isinstance(function.body.body, relax.Tuple)
        builder.emit_func_output(relax.Tuple(outputs) if is_tuple else outputs[0])
    table = {operators[-1]: Provenance(operators)}
    return with_table(builder.get()[name], KERNELS, table), var


def _stub(function: relax.Function) -> tirx.PrimFunc:
    """A function of the region's parameters and results."""
    results = results_of(function)
    inputs = [te.placeholder(shape_of(p), str(p.ty.dtype), p.name) for p in function.params]
    outputs = te.extern(
        [tuple(shape_of(result)) for result in results],
        inputs,
        lambda ins, outs: tirx.call_packed("tvm_stretch.run_model", *ins, *outs),
        dtype=[str(result.ty.dtype) for result in results],
        name="model",
    )
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    stub = te.create_prim_func([*inputs, *listed], "int64")
    return stub.without_attr("global_symbol")


def _fused(mod: tvm.IRModule, function: relax.Function) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """All operators of a region in one function, and the constants that it takes as operands."""
    lifter = _Lifter(mod)
    body = lifter.visit_expr(function)
    params = [*body.params, *lifter.params.values()]
    group = relax.Function(params, body.body, body.ret_ty, is_pure=True)
    builder = builder_with_kernels(mod)
    var = builder.add_func(group.with_attr("Primitive", True), "region")
    given = [relax.Var(param.name, param.ty) for param in params]
    main = network_of(given, lambda _: relax.Call(var, given), builder)
    fused = relax.transform.FuseTIR()(relax.transform.LegalizeOps()(main))
    (kernel,) = (f for v, f in fused.functions.items() if v.name_hint == "region")
    return kernel.without_attr("global_symbol"), list(lifter.params)


@relax.expr_functor.mutator
class _Lifter(relax.PyExprMutator):
    """Replaces constants by parameters, which a function that FuseTIR fuses must have."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.params: dict[relax.Expr, relax.Var] = {}

    def visit_generic_const_(self, constant: tvm.ir.GenericConst) -> relax.Expr:
        name = f"constant{len(self.params)}"
        return self.params.setdefault(constant, relax.Var(name, constant.ty))
