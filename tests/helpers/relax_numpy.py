"""Runs small Relax functions in NumPy: TVM's virtual machine compiles them for seconds first.

Every value is compared with its type, so that shapes that a pass states wrongly are found too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tvm
from helpers.integer_numpy import INTEGERS
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.operators import kind_of, operands


def knows(mod: tvm.IRModule) -> bool:
    """Whether `evaluate` can compute it: a single function of known operators on known types."""
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    return (
        sum(isinstance(f, relax.Function) for f in mod.functions.values()) == 1
        and all(_is_plain(var.ty) for var in (*main.params, *(b.var for b in bindings)))
        and all(_is_known(binding.value) for binding in bindings)
    )


def _is_plain(ty: Any) -> bool:
    """A tensor of a known shape and type, or a tuple of such tensors."""
    if isinstance(ty, relax.TensorType):
        dims = getattr(ty.shape, "values", None)
        known = dims is not None and all(isinstance(dim, tvm.tirx.IntImm) for dim in dims)
        return known and str(ty.dtype) in ("float32", "int8", "uint8", "int32", "int64", "bool")
    return isinstance(ty, tvm.ir.TupleType) and all(map(_is_plain, ty.fields))


def _is_known(expr: relax.Expr) -> bool:
    if not isinstance(expr, relax.Call):
        return not isinstance(expr, relax.If)
    plain = {"data_layout": "NCHW", "kernel_layout": "OIHW", "layout": "NCHW"}
    layouts = ((name, getattr(expr.attrs, name, None)) for name in plain)
    if kind_of(expr) == "nn.batch_norm" and int(expr.attrs.axis) != 1:
        return False
    if kind_of(expr) == "nn.pad" and str(expr.attrs.pad_mode) != "constant":
        return False
    return kind_of(expr) in _OPERATORS and all(
        found is None or str(found) == plain[name] for name, found in layouts
    )


def evaluate(
    mod: tvm.IRModule,
    *inputs: np.ndarray,
    constant: Callable[[np.ndarray], np.ndarray] = np.asarray,
    instead: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> Any:
    """The result of ``main``: a tensor, or a list of them.

    Args:
        mod: a module that `knows` accepts.
        inputs: its inputs.
        constant: what becomes of each constant.
        instead: operators that are computed otherwise.
    """
    table = {**_OPERATORS, **instead}
    main = mod["main"]
    known: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))

    def value(expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, GenericConst):
            return constant(expr.value.numpy())
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            compute = table[kind_of(expr)]
            tensors = [a for a in operands(expr) if not isinstance(a, relax.ShapeExpr)]
            return compute(expr, *[value(a) if _is_tensor(a) else a for a in tensors])
        return expr

    for block in main.body.blocks:
        for binding in block.bindings:
            known[binding.var] = value(binding.value)
            _check(binding.var.ty, known[binding.var])
    return value(main.body.body)


def _check(ty: Any, found: Any) -> None:
    """A value is what its type says."""
    if isinstance(found, list):
        for field, part in zip(ty.fields, found, strict=True):
            _check(field, part)
    else:
        assert found.dtype == str(ty.dtype)
        assert list(found.shape) == [int(dim) for dim in ty.shape.values]


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.Var | GenericConst | relax.Tuple | relax.TupleGetItem)


def _windows(call: relax.Call, x: np.ndarray, size: Any, fill: float) -> np.ndarray:
    """What each place of a window's result sees: two more axes, for its rows and columns."""
    attrs = call.attrs
    top, left, bottom, right = (int(p) for p in attrs.padding)
    steps, gaps = [int(s) for s in attrs.strides], [int(d) for d in attrs.dilation]
    height, width = (int(dim) for dim in call.ty.shape.values[2:])
    spans = [(int(k) - 1) * gap + 1 for k, gap in zip(size, gaps, strict=True)]
    # Rounding up may need more than the padding.
    more = [
        max(0, (count - 1) * step + span - length)
        for count, step, span, length in zip(
            (height, width),
            steps,
            spans,
            (x.shape[2] + top + bottom, x.shape[3] + left + right),
            strict=True,
        )
    ]
    pads = ((0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1]))
    seen = sliding_window_view(np.pad(x, pads, constant_values=fill), spans, axis=(2, 3))
    seen = seen[:, :, :: steps[0], :: steps[1], :: gaps[0], :: gaps[1]]
    return seen[:, :, :height, :width]


def _conv(call: relax.Call, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    windows = _windows(call, x, weight.shape[2:], 0)
    groups = int(call.attrs.groups)
    if groups == 1:
        sums = np.tensordot(windows, weight, ((1, 4, 5), (1, 2, 3)))
        return np.ascontiguousarray(sums.transpose(0, 3, 1, 2))
    n, channels, *rest = windows.shape
    parts = windows.reshape(n, groups, channels // groups, *rest)
    filters = weight.reshape(groups, -1, *weight.shape[1:])
    sums = np.einsum("ngchwij,gocij->ngohw", parts, filters)
    return sums.reshape(_shape(call))


def _batch_norm(call: relax.Call, x: np.ndarray, *statistics: np.ndarray) -> list[np.ndarray]:
    gamma, beta, mean, var = (s.reshape(-1, *[1] * (x.ndim - 2)) for s in statistics)
    return [(x - mean) / np.sqrt(var + float(call.attrs.epsilon)) * gamma + beta, *statistics[2:]]


def _axes(call: relax.Call) -> tuple[int, ...] | None:
    """The axes of a reduction or a normalisation; None: all of them."""
    found = getattr(call.attrs, "axes", None) or call.attrs.axis
    return None if found is None else tuple(int(axis) for axis in found)


def _reduced(reduce: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda call, x: reduce(x, axis=_axes(call), keepdims=bool(call.attrs.keepdims))


def _softmax(call: relax.Call, x: np.ndarray) -> np.ndarray:
    axis = int(call.attrs.axis)
    shares = np.exp(x - x.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def _layer_norm(call: relax.Call, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    spread = np.sqrt(x.var(_axes(call), keepdims=True) + np.float32(call.attrs.epsilon))
    return (x - x.mean(_axes(call), keepdims=True)) / spread * gamma + beta


def _rms_norm(call: relax.Call, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    squares = np.mean(x * x, _axes(call), keepdims=True)
    return x / np.sqrt(squares + np.float32(call.attrs.epsilon)) * weight


def _gelu(x: np.ndarray) -> np.ndarray:
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return x * np.float32(0.5) * (1 + erf(x / np.float32(math.sqrt(2))))


def _pad(call: relax.Call, x: np.ndarray) -> np.ndarray:
    sides = np.array([int(side) for side in call.attrs.pad_width]).reshape(-1, 2)
    return np.pad(x, sides, constant_values=float(call.attrs.pad_value))


def _take(call: relax.Call, x: np.ndarray, places: np.ndarray) -> np.ndarray:
    axis = call.attrs.axis
    return x.take(places, None if axis is None else int(axis))


def _max_pool(call: relax.Call, x: np.ndarray) -> np.ndarray:
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return _windows(call, x, call.attrs.pool_size, least).max((4, 5))


def _avg_pool(call: relax.Call, x: np.ndarray) -> np.ndarray:
    size = call.attrs.pool_size
    sums = _windows(call, x, size, 0).sum((4, 5))
    if call.attrs.count_include_pad:
        return sums / int(np.prod([int(k) for k in size]))
    return sums / _windows(call, np.ones_like(x), size, 0).sum((4, 5))


def _slice(
    call: relax.Call, x: np.ndarray, axes: list[Any], begin: list[Any], end: list[Any], *step: Any
) -> np.ndarray:
    steps = step[0] if step else [1] * len(begin)
    found = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, steps, strict=True):
        found[_number(axis)] = slice(*map(_number, bounds))
    return x[tuple(found)]


def _number(expr: Any) -> int:
    return int(getattr(expr, "value", expr))


def _split(call: relax.Call, x: np.ndarray) -> list[np.ndarray]:
    axis = int(call.attrs.axis)
    sizes = [int(field.shape.values[axis]) for field in call.ty.fields]
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _shape(call: relax.Call) -> list[int]:
    return [int(dim) for dim in call.ty.shape.values]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "nn.conv2d": _conv,
    "nn.batch_norm": _batch_norm,
    "nn.relu": lambda _, x: np.maximum(x, 0),
    "nn.silu": lambda _, x: x * _sigmoid(x),
    "sigmoid": lambda _, x: _sigmoid(x),
    "add": lambda _, x, y: x + y,
    "subtract": lambda _, x, y: x - y,
    "multiply": lambda _, x, y: x * y,
    "divide": lambda _, x, y: x / y,
    "maximum": lambda _, x, y: np.maximum(x, y),
    "minimum": lambda _, x, y: np.minimum(x, y),
    "negative": lambda _, x: -x,
    "sqrt": lambda _, x: np.sqrt(x),
    "exp": lambda _, x: np.exp(x),
    "tanh": lambda _, x: np.tanh(x),
    "matmul": lambda _, x, y: x @ y,
    "mean": _reduced(np.mean),
    "sum": _reduced(np.sum),
    "max": _reduced(np.max),
    "min": _reduced(np.min),
    "nn.softmax": _softmax,
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "nn.gelu": lambda _, x: _gelu(x),
    "nn.pad": _pad,
    "take": _take,
    "astype": lambda call, x: x.astype(str(call.ty.dtype)),
    "power": lambda _, x, y: x**y,
    "expand_dims": lambda call, x: x.reshape(_shape(call)),
    "squeeze": lambda call, x: x.reshape(_shape(call)),
    "nn.max_pool2d": _max_pool,
    "nn.avg_pool2d": _avg_pool,
    "strided_slice": _slice,
    "clip": lambda _, x, low, high: np.clip(x, float(low.value), float(high.value)),
    "concat": lambda call, parts: np.concatenate(parts, int(call.attrs.axis)),
    "split": _split,
    "reshape": lambda call, x: x.reshape(_shape(call)),
    "flatten": lambda call, x: x.reshape(_shape(call)),
    "permute_dims": lambda call, x: x.transpose([int(a) for a in call.attrs.axes]),
    **INTEGERS,
}
