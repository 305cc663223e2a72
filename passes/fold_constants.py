"""Compute operators that depend on constants only.

    lv = R.multiply(c1, c2)
    lv1 = R.add(x, lv)         ->    lv1 = R.add(x, c3)

TVM's FoldConstant compiles a kernel for every operator, which takes longer than all other passes
together.  So NumPy computes what it computes to the bit as the network would: elements that move,
and arithmetic that IEEE 754 defines.  TVM gets the other operators whose operands are constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import bindings_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.properties.known_values import BINARY, UNARY


@tvm.transform.module_pass(opt_level=0, name="FoldConstants")
class FoldConstants:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        constants = [b for b in constant_bindings(mod["main"]) if isinstance(b.value, relax.Call)]
        if not constants:
            return mod
        values = _computed(constant_bindings(mod["main"]))
        mod = mod.clone()
        mod["main"] = _with_values(mod["main"], values)
        return mod


def constant_bindings(function: relax.Function) -> list[relax.VarBinding]:
    """The bindings that depend on constants only, in order."""
    constants: list[relax.VarBinding] = []
    variables: set[relax.Var] = set()
    for binding in bindings_of(function):
        if isinstance(binding, relax.VarBinding) and is_constant(binding.value, variables):
            variables.add(binding.var)
            constants.append(binding)
    return constants


def is_constant(value: relax.Expr, constants: set[relax.Var]) -> bool:
    """Whether ``value`` depends on constants only: the compiler can compute it."""
    if isinstance(value, relax.Var):
        return value in constants
    if isinstance(value, relax.Tuple):
        return all(is_constant(field, constants) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return is_constant(value.tuple_value, constants)
    if isinstance(value, relax.Call):
        return all(is_constant(arg, constants) for arg in value.args)
    if isinstance(value, relax.ShapeExpr):  # a size may come from a tensor
        return all(isinstance(size, tvm.tirx.IntImm) for size in value.values)
    return True


Values = dict[relax.Var, relax.Expr]


def _computed(bindings: list[relax.VarBinding]) -> Values:
    """The values of ``bindings``, which depend on nothing else, if they can be computed."""
    values: Values = {}
    left: dict[relax.Var, relax.VarBinding] = {}  # what TVM could not compute either: tuples
    for binding in bindings:
        if isinstance(binding.value, relax.TupleGetItem):
            value = _part(binding.value, values)
        else:
            value = by_numpy(binding.value, values)
        if value is None:
            value = by_tvm([*_read(binding, values, left), binding])
        if isinstance(value, GenericConst | relax.Tuple):
            values[binding.var] = value
        else:
            left[binding.var] = binding
    return values


def _part(item: relax.TupleGetItem, values: Values) -> relax.Expr | None:
    """The field of a tuple that was computed."""
    whole = values.get(item.tuple_value)
    return None if whole is None else whole.fields[item.index]


def _read(
    binding: relax.VarBinding, values: Values, left: dict[relax.Var, relax.VarBinding]
) -> list[relax.VarBinding]:
    """The bindings that one reads, in order; they are constants where those are computed."""
    earlier: dict[relax.Var, relax.VarBinding] = {}
    for var in relax.analysis.free_vars(binding.value):
        if var in left:
            earlier.update({read.var: read for read in _read(left[var], values, left)})
        earlier[var] = left[var] if var in left else relax.VarBinding(var, values[var])
    return list(earlier.values())


_QUOTIENTS = {"relax.divide": np.divide, "relax.floor_divide": np.floor_divide}
_QUOTIENTS |= {"relax.mod": np.fmod, "relax.floor_mod": np.mod}


def by_tvm(bindings: list[relax.VarBinding]) -> relax.Expr:
    """The value of the last binding; IEEE 754's quotient by zero, where TVM refuses it."""
    *earlier, binding = bindings
    alone = relax.Tuple([binding.var])  # a constant alone would leave no binding
    result = relax.Var("values", alone.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(result, alone)])
    function = relax.Function([], relax.SeqExpr([block], result), ret_ty=result.ty)
    function = function.with_attr("global_symbol", "main")
    try:
        folded = relax.transform.FoldConstant()(tvm.IRModule({"main": function}))["main"]
    except tvm.error.InternalError:
        call, values = binding.value, {known.var: known.value for known in earlier}
        if not isinstance(call, relax.Call) or call.op.name not in _QUOTIENTS:
            raise
        operands = [values.get(x, x).value.numpy() for x in call.args]
        with np.errstate(all="ignore"):
            quotient = _QUOTIENTS[call.op.name](*operands)
        return relax.const(quotient, str(call.ty.dtype))
    return folded.body.blocks[-1].bindings[-1].value.fields[0]


def by_numpy(call: relax.Expr, values: Values) -> relax.Expr | None:
    """The result of an operator that NumPy computes as the network would; None for others."""
    if not isinstance(call, relax.Call) or kind_of(call) not in _FUNCTIONS:
        return None
    args = [_operand(arg, values) for arg in call.args]
    if any(arg is None for arg in args):
        return None
    with np.errstate(all="ignore"):
        result = _FUNCTIONS[kind_of(call)](call, *args)
    if isinstance(result, list):
        parts = [_constant(part, ty) for part, ty in zip(result, call.ty.fields, strict=True)]
        return relax.Tuple(parts) if all(part is not None for part in parts) else None
    return None if result is None else _constant(result, call.ty)


def _constant(array: np.ndarray, ty: relax.TensorType) -> GenericConst | None:
    shape = tuple(int(extent) for extent in ty.shape.values)
    if (array.shape, str(array.dtype)) != (shape, str(ty.dtype)):
        return None
    return relax.const(np.ascontiguousarray(array).reshape(shape), str(ty.dtype))


def _operand(arg: relax.Expr, values: Values) -> Any:
    """An array, numbers, or several arrays; None for what NumPy does not hold."""
    arg = values.get(arg, arg)
    if isinstance(arg, GenericConst):
        dtype = str(arg.ty.dtype)
        return arg.value.numpy() if dtype in _DTYPES else None
    if isinstance(arg, tvm.tirx.IntImm | tvm.tirx.FloatImm):
        return arg.value
    fields = getattr(arg, "values", getattr(arg, "fields", None))
    if fields is None:
        return None
    parts = [_operand(field, values) for field in fields]
    return None if any(part is None for part in parts) else parts


_DTYPES = ("bool", "int8", "uint8", "int32", "int64", "float32", "float64")


def _cast(call: relax.Call, x: np.ndarray) -> np.ndarray | None:
    """Not from floats to integers, where values out of range have no result."""
    dtype = str(call.attrs.dtype)
    exact = dtype in ("bool", "float32", "float64") or x.dtype.kind in "biu"
    return x.astype(dtype) if exact and dtype in _DTYPES else None


def _take(call: relax.Call, x: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    """Where all places are within the tensor."""
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = x.size if axis is None else x.shape[axis]
    inside = places.size == 0 or (places.min() >= 0 and places.max() < size)
    return np.take(x, places, axis) if inside else None


def _slice(
    call: relax.Call, x: np.ndarray, axes: Any, first: Any, last: Any, step: Any = None
) -> Any:
    steps = step or [1] * len(axes)
    if any(by <= 0 for by in steps):
        return None
    return x[_places(x, axes, first, last, steps)]


def _places(x: np.ndarray, axes: Any, *spans: Any) -> tuple[slice, ...]:
    where = [slice(None)] * x.ndim
    for axis, *span in zip(axes, *spans, strict=True):
        where[axis] = slice(*span)
    return tuple(where)


def _slice_scatter(
    call: relax.Call, x: np.ndarray, part: np.ndarray, *span: int
) -> np.ndarray | None:
    if span[-1] <= 0:
        return None
    where, result = _places(x, [int(call.attrs.axis)], *zip(span)), x.copy()
    if result[where].shape != part.shape:
        return None
    result[where] = part
    return result


def _gather_nd(call: relax.Call, x: np.ndarray, places: np.ndarray) -> np.ndarray | None:
    depth = places.shape[-1]
    inside = places.size == 0 or ((places >= 0) & (places < x.shape[:depth])).all()
    return x[tuple(np.moveaxis(places, -1, 0))] if inside and not call.attrs.batch_dims else None


def _split(call: relax.Call, x: np.ndarray) -> list[np.ndarray] | None:
    where = call.attrs.indices_or_sections
    axis = int(call.attrs.axis)
    if not isinstance(where, tvm.tirx.IntImm):
        return np.split(x, [int(place) for place in where], axis)
    return np.split(x, int(where), axis) if x.shape[axis] % int(where) == 0 else None


def _axes(call: relax.Call) -> tuple[int, ...] | None:
    axes = call.attrs.axes if hasattr(call.attrs, "axes") else call.attrs.axis
    return None if axes is None else tuple(int(axis) for axis in axes)


def _where(_: relax.Call, which: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    return np.where(which, x, y) if which.dtype == bool else None


_Function = Callable[..., Any]
_MOVES: dict[str, _Function] = {
    "astype": _cast,
    "broadcast_to": lambda _, x, shape: np.broadcast_to(x, shape),
    "concat": lambda call, parts: np.concatenate(parts, int(call.attrs.axis or 0)),
    "expand_dims": lambda call, x: np.expand_dims(x, _axes(call) or ()),
    "flip": lambda call, x: np.flip(x, int(call.attrs.axis)),
    "gather_nd": _gather_nd,
    "full": lambda _, shape, x: np.full(shape, x, x.dtype),
    "permute_dims": lambda call, x: np.transpose(x, _axes(call)),
    "reshape": lambda _, x, shape: x.reshape(shape),
    "slice_scatter": _slice_scatter,
    "split": _split,
    "squeeze": lambda call, x: np.squeeze(x, _axes(call)),
    "strided_slice": _slice,
    "take": _take,
    "tile": lambda call, x: np.tile(x, [int(count) for count in call.attrs.repeats]),
    "where": _where,
}


def _of_one(function: Callable[..., np.ndarray]) -> _Function:
    return lambda _, x: function(x)


def _if(is_exact: Callable[..., bool], function: Callable[..., np.ndarray]) -> _Function:
    return lambda _, x, y: function(x, y) if x.dtype == y.dtype and is_exact(x, y) else None


def _are_floats(x: np.ndarray, _: np.ndarray) -> bool:
    return x.dtype.kind == "f"


def _are_integers(x: np.ndarray, _: np.ndarray) -> bool:
    return x.dtype.kind in "iu"


_FUNCTIONS: dict[str, _Function] = {
    **{kind: _of_one(function) for kind, function in UNARY.items()},
    "sign": _of_one(np.sign),  # of NaN, TVM says 0
    "nn.relu": _of_one(lambda x: np.where(x < 0, x.dtype.type(0), x)),
    "clip": lambda _, x, low, high: np.clip(x, x.dtype.type(low), x.dtype.type(high)),
    **{kind: _if(lambda *_: True, function) for kind, function in BINARY.items()},
    **_MOVES,
    "divide": _if(_are_floats, np.divide),
    "maximum": _if(_are_integers, np.maximum),  # of NaN, it is another one
    "minimum": _if(_are_integers, np.minimum),
    "mod": _if(lambda x, y: _are_integers(x, y) and y.all(), np.fmod),
    "floor_mod": _if(lambda x, y: _are_integers(x, y) and y.all(), np.mod),
}


def _with_values(function: relax.Function, values: dict[relax.Var, relax.Expr]) -> relax.Function:
    """``function`` with ``values`` bound instead of the calls that compute them."""

    def bound(binding: relax.Binding) -> relax.Binding:
        value = values.get(binding.var)
        constant = isinstance(value, GenericConst)
        return relax.VarBinding(binding.var, value) if constant else binding

    blocks = [
        type(block)([bound(binding) for binding in block.bindings])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
