"""Regions of engines become one kernel each, which holds the region as a model.

    r1(x):                                  r1(x):
        conv = R.nn.conv2d(x, w)     ->         conv = R.call_tir(r1_model, (x,))
        relu = R.nn.relu(conv)                  return conv
        return relu

An engine (a vendor's runtime) takes no kernels of ours: it compiles the whole region, so operators
in it get neither layouts nor templates. The kernel's body is a call that is never made; its
attribute `MODEL` is the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_stretch.ir.calls import PROCESSOR
from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.provenance import KERNELS, Provenance, with_table
from tvm_stretch.targets.processor import ModelWriter

MODEL = "tvm_stretch.model"
"""Attribute of such a kernel: the bytes of the model, as a tensor."""


@tvm.transform.module_pass(opt_level=0, name="WholeRegions")
class WholeRegions:
    """See the module docstring.

    Args:
        writers: what writes the model of a region, by name of the processor; regions of other
            processors stay as they are.
    """

    def __init__(self, writers: Mapping[str, ModelWriter]) -> None:
        self.writers = dict(writers)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite the regions of engines."""
        updated = mod.clone()
        for var, function in mod.functions.items():
            attrs = getattr(function, "attrs", None) or {}
            name = str(attrs.get(PROCESSOR, ""))
            if isinstance(function, relax.Function) and name in self.writers:
                model = self.writers[name](function)
                whole, kernel, region = _whole(var.name_hint, function, model)
                updated.update_func(kernel, region)
                updated.update_func(var, whole)
        return updated


def model_of(kernel: tirx.PrimFunc) -> bytes:
    """The model that a kernel holds."""
    data: bytes = kernel.attrs[MODEL].numpy().tobytes()
    return data


def _whole(
    name: str, function: relax.Function, model: bytes
) -> tuple[relax.Function, tvm.ir.GlobalVar, tirx.PrimFunc]:
    """The region as one call, and its kernel."""
    results = list(getattr(function.body.body, "fields", [function.body.body]))
    kernel = _kernel(function, results).with_attr(
        MODEL, tvm.runtime.tensor(np.frombuffer(model, "uint8").copy())
    )
    builder = relax.BlockBuilder(tvm.IRModule({}))
    kernel_var = builder.add_func(kernel, f"{name}_model")
    operators = tuple(b.var.name for block in function.body.blocks for b in block.bindings)
    params = [relax.Var(param.name, param.ty) for param in function.params]
    types = [relax.TensorType(shape_of(r), str(r.ty.dtype)) for r in results]
    with builder.function(name, params, attrs=dict(function.attrs or {})):
        with builder.dataflow():
            call = relax.call_tir(kernel_var, params, types if len(types) > 1 else types[0])
            made = builder.emit(call, name_hint=operators[-1])
            fields = [relax.TupleGetItem(made, i) for i in range(len(types))]
            listed = [made] if len(types) == 1 else fields
            outputs = [builder.emit_output(field) for field in listed]
        is_tuple = isinstance(function.body.body, relax.Tuple)
        builder.emit_func_output(relax.Tuple(outputs) if is_tuple else outputs[0])
    whole = next(f for v, f in builder.get().functions.items() if v.name_hint == name)
    return with_table(whole, KERNELS, {operators[-1]: Provenance(operators)}), kernel_var, kernel


def _kernel(function: relax.Function, results: list[relax.Expr]) -> tirx.PrimFunc:
    """A function of the region's parameters and results."""
    inputs = [te.placeholder(shape_of(p), str(p.ty.dtype), p.name) for p in function.params]
    shapes = [tuple(shape_of(result)) for result in results]
    outputs = te.extern(
        shapes,
        inputs,
        lambda ins, outs: tirx.call_packed("tvm_stretch.run_model", *ins, *outs),
        dtype=[str(result.ty.dtype) for result in results],
        name="model",
    )
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    made = te.create_prim_func([*inputs, *listed], "int64")
    return made.without_attr("global_symbol")
