"""Questions that passes ask about Relax expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

Rewriter = Callable[[tvm.IRModule, relax.Function], relax.Function]


def shape_of(expr: relax.Expr) -> list[int]:
    """The static shape of a tensor expression."""
    return [int(dim) for dim in expr.ty.shape.values[:]]  # a slice is one FFI call in all


def tensor_types(expr: relax.Expr) -> list[relax.TensorType]:
    """The type of a tensor, or the types of a tuple of tensors; none for anything else."""
    types = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return [ty for ty in types if isinstance(ty, relax.TensorType)]


def flat_args(call: relax.Call) -> list[relax.Expr]:
    """The operands of a call, with the fields of tuples in their places."""
    args = (arg.fields if isinstance(arg, relax.Tuple) else [arg] for arg in call.args)
    return [field for fields in args for field in fields]


def is_float(expr: relax.Expr) -> bool:
    """Whether ``expr`` is a tensor of floating-point numbers."""
    return isinstance(expr.ty, relax.TensorType) and "float" in str(expr.ty.dtype)


def constant_value(
    expr: relax.Expr, definition: Callable[[relax.Expr], relax.Expr | None]
) -> np.ndarray | None:
    """The value of a constant or of a variable bound to one; None for anything else."""
    value = definition(expr)
    return value.value.numpy() if isinstance(value, GenericConst) else None


def tensor_bytes(value: tvm.runtime.Tensor) -> np.ndarray:
    """The bytes of a tensor, without a copy where possible."""
    try:
        array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):  # a dtype that NumPy does not know
        array = value.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def constant(value: np.ndarray) -> relax.Expr:
    """A constant with the values of an array, perhaps not contiguous; scalars stay scalars."""
    return relax.const(np.ascontiguousarray(value).reshape(value.shape), str(value.dtype))


def bindings_of(function: relax.Function) -> Iterator[relax.Binding]:
    """The bindings of all blocks, in program order."""
    return (binding for block in function.body.blocks for binding in block.bindings)


def count_uses(function: relax.Function) -> dict[relax.Var, int]:
    """How often each variable of ``function`` is read."""
    uses: dict[relax.Var, int] = {}

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Var):
            uses[expr] = uses.get(expr, 0) + 1

    for block in function.body.blocks:
        for binding in block.bindings:
            relax.analysis.post_order_visit(binding.value, visit)
    relax.analysis.post_order_visit(function.body.body, visit)
    return uses


def with_variables(expr: relax.Expr, replace: Callable[[relax.Var], relax.Expr]) -> relax.Expr:
    """``expr`` with ``replace(variable)``, of the same type, for every variable that it reads."""
    if isinstance(expr, relax.Var):
        return replace(expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([with_variables(field, replace) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(with_variables(expr.tuple_value, replace), expr.index)
    if isinstance(expr, relax.Call):
        args = [with_variables(arg, replace) for arg in expr.args[:]]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args, ret_ty=expr.ty)
    return expr


def builder_with_kernels(mod: tvm.IRModule) -> relax.BlockBuilder:
    """A builder for functions and kernels of a pass, which contains the kernels of ``mod``."""
    functions = mod.functions.items()
    return relax.BlockBuilder(
        tvm.IRModule({v: f for v, f in functions if isinstance(f, tirx.PrimFunc)})
    )


def rewrite_functions(mod: tvm.IRModule, rewrite: Rewriter) -> tvm.IRModule:
    """Apply ``rewrite`` to every Relax function of ``mod`` and drop what became dead."""
    updated = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
    for var, function in mod.functions.items():
        if isinstance(function, relax.Function):
            updated.update_func(var, rewrite(mod, function))
    return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(updated))
