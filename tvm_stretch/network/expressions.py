"""Questions that passes ask about Relax expressions, and which operators are views of memory.

R.reshape(x, (1, 64))                 a second tensor on the same bytes
R.concat((a, b), axis=1), one image   a and b are written next to each other
R.strided_slice(x, rows 8 to 16)      some rows of each block of channels
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
import tvm_ffi
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


def axes_of(call: relax.Call) -> list[int]:
    """The order of axes that a transpose makes; by default it reverses them."""
    axes, rank = call.attrs.axes, len(shape_of(call.args[0]))
    return [*reversed(range(rank))] if axes is None else [int(axis) % rank for axis in axes]


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


def network_of(
    params: Sequence[relax.Var],
    body: Callable[[relax.BlockBuilder], relax.Expr],  # emits the network, and returns its result
    builder: relax.BlockBuilder | None = None,  # with the kernels that the network calls
    name: str = "",  # of the result
) -> tvm.IRModule:
    """A module whose ``main`` is one block."""
    bb = builder or relax.BlockBuilder()
    with bb.function("main", [*params]):
        with bb.dataflow():
            result = bb.emit_output(body(bb), name_hint=name)
        bb.emit_func_output(result)
    return bb.get()


def results_of(function: relax.Function) -> list[relax.Expr]:
    """What a function returns: the fields of a tuple, or one value."""
    result = function.body.body
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


@contextmanager
def written_again(
    builder: relax.BlockBuilder,
    name: str,
    function: relax.Function,
    result: Callable[[relax.Expr], relax.Expr],  # what becomes of each result of the function
) -> Iterator[Iterator[relax.Binding]]:
    """A function of the same parameters and as many results; the block emits the bindings."""
    with builder.function(name, list(function.params), attrs=dict(function.attrs or {})):
        with builder.dataflow():
            yield bindings_of(function)
            results = [builder.emit_output(result(field)) for field in results_of(function)]
        is_tuple = isinstance(function.body.body, relax.Tuple)
        builder.emit_func_output(relax.Tuple(results) if is_tuple else results[0])


def bindings_of(function: relax.Function) -> Iterator[relax.Binding]:
    """The bindings of all blocks, in program order."""
    return (binding for block in function.body.blocks for binding in block.bindings)


def count_uses(function: relax.Function) -> Counter[relax.Var]:
    """How often each variable of ``function`` is read."""
    readers = [*(binding.value for binding in bindings_of(function)), function.body.body]
    return Counter(var for reader in readers for var in variables_of(reader))


def nodes_of(root: Any, *kinds: Any) -> list[Any]:
    """The nodes of some classes in a tree of Relax or TIR, children before parents."""
    nodes: list[Any] = []
    tvm_ffi.structural_walk(root, (kinds, nodes.append))
    return nodes


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


def variables_of(expr: relax.Expr) -> list[relax.Var]:
    """The variables that an expression reads, in order."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.TupleGetItem):
        return variables_of(expr.tuple_value)
    parts = getattr(expr, "args" if isinstance(expr, relax.Call) else "fields", [])
    return [var for part in parts[:] for var in variables_of(part)]


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


RESHAPES = frozenset({"expand_dims", "flatten", "reshape", "squeeze"})
"""Operators that are always views."""

PIECES = frozenset({"concat", "split", "strided_slice"})
"""Operators that are views if `is_view` accepts the pieces of the whole tensor."""

ALIGNMENT = 64
"""Kernels read whole vector registers: TVM's generated code assumes this alignment unchecked."""

_MOST_PIECES = 256
"""A limit, because lowering copies each piece separately if a tensor must also lie elsewhere."""

_LEAST_RUN = 512
"""Bytes of a part's pieces, below which a concat of several is a kernel that is fused with others.

A copy of one costs what a call costs. The halves of rotary embeddings are such pieces: a
step of Qwen2's layer in 4 bits takes 0.95 of the time (paired, a busy Zen 4).
"""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; types of less than a byte take one."""
    kind = tvm.DataType(dtype)
    return -(-kind.bits // 8) * kind.lanes


def ends_of(dtype: str) -> tuple[float, float]:
    """The lowest and the highest value of a type."""
    if "float" in dtype:
        return -np.inf, np.inf
    return (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def is_view(call: relax.Call, alignment: int = 1) -> bool:
    """Whether a call of one of `PIECES` is a view of memory.

    True for axis 1 of (1, 64, 56, 56), where each part is one piece, and for axis 2 of
    (1, 8, 56, 56, 8), where each part has a piece in each of the 8 blocks; false if there are too
    many pieces, several that do not begin and end at multiples of ``alignment`` bytes, or a concat
    of short ones.
    """
    cut = _cut(call)
    if cut is None:
        return False
    whole, axis, borders = cut
    pieces = math.prod(whole[:axis])
    if pieces == 1 or pieces > _MOST_PIECES:
        return pieces == 1
    row = math.prod(whole[axis + 1 :]) * dtype_bytes(_dtype(call))
    longest = max(after - before for before, after in itertools.pairwise((0, *borders)))
    if call.op.name == "relax.concat" and longest * row < _LEAST_RUN:
        return False
    return all(border * row % alignment == 0 for border in (*borders, whole[axis]))


def _cut(call: relax.Call) -> tuple[list[int], int, list[int]] | None:
    """The shape of the whole tensor, the axis along which it is cut, and the positions of cuts."""
    if call.op.name == "relax.strided_slice":
        return _slice(call)
    parts = call.args[0].ty.fields if call.op.name == "relax.concat" else call.ty.fields
    whole = shape_of(call) if call.op.name == "relax.concat" else shape_of(call.args[0])
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(whole)
    sizes = [int(part.shape.values[axis]) for part in parts]
    return whole, axis, list(itertools.accumulate(sizes))


def _slice(call: relax.Call) -> tuple[list[int], int, list[int]] | None:
    """As `_cut`, for a slice of neighbours along one axis; None for other slices."""
    whole, part = shape_of(call.args[0]), shape_of(call)
    try:
        axes, begin, _, *steps = ([int(v) for v in arg.fields] for arg in call.args[1:])
    except (AttributeError, TypeError):
        return None
    shortened = [axis for axis, size in enumerate(part) if size != whole[axis]]
    if len(shortened) != 1 or any(step != 1 for listed in steps for step in listed):
        return None
    (axis,) = shortened
    first = dict(zip((a % len(whole) for a in axes), begin, strict=True))[axis]
    first = min(max(first + whole[axis] if first < 0 else first, 0), whole[axis])
    return whole, axis, [first, first + part[axis]]


def _dtype(call: relax.Call) -> str:
    return str((call.args[0] if call.op.name == "relax.split" else call).ty.dtype)
