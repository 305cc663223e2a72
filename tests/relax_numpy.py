"""Runs small Relax functions in NumPy: TVM's virtual machine compiles them for seconds first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.ir.operators import kind_of


def evaluate(mod: tvm.IRModule, *inputs: np.ndarray) -> np.ndarray:
    """The result of ``main``, which is one tensor."""
    main = mod["main"]
    known: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))

    def value(expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            return known[expr]
        if isinstance(expr, GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Call):
            compute = _OPERATORS[kind_of(expr)]
            tensors = [a for a in expr.args if not isinstance(a, relax.ShapeExpr)]
            return compute(expr, *[value(a) if _is_tensor(a) else a for a in tensors])
        return expr

    for block in main.body.blocks:
        for binding in block.bindings:
            known[binding.var] = value(binding.value)
    return np.asarray(known[main.body.body])


def _is_tensor(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.Var | GenericConst | relax.Tuple | relax.TupleGetItem)


def _conv(call: relax.Call, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    attrs = call.attrs
    top, left, bottom, right = (int(p) for p in attrs.padding)
    rows, columns = (int(s) for s in attrs.strides)
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::rows, ::columns]
    groups = int(attrs.groups)
    parts = zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", w, f) for w, f in parts], 1)


def _batch_norm(call: relax.Call, x: np.ndarray, *statistics: np.ndarray) -> list[np.ndarray]:
    gamma, beta, mean, var = (s[:, None, None] for s in statistics)
    return [(x - mean) / np.sqrt(var + float(call.attrs.epsilon)) * gamma + beta]


def _mean(call: relax.Call, x: np.ndarray) -> np.ndarray:
    axes = tuple(int(axis) for axis in call.attrs.axis)
    return x.mean(axes, keepdims=bool(call.attrs.keepdims))


def _max_pool(call: relax.Call, x: np.ndarray) -> np.ndarray:
    attrs = call.attrs
    top, left, bottom, right = (int(p) for p in attrs.padding)
    rows, columns = (int(s) for s in attrs.strides)
    pads = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(x, pads, constant_values=-np.inf)
    windows = sliding_window_view(padded, [int(k) for k in attrs.pool_size], axis=(2, 3))
    return windows[:, :, ::rows, ::columns].max((4, 5))


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
    "multiply": lambda _, x, y: x * y,
    "matmul": lambda _, x, y: x @ y,
    "mean": _mean,
    "nn.max_pool2d": _max_pool,
    "clip": lambda _, x, low, high: np.clip(x, float(low.value), float(high.value)),
    "concat": lambda call, parts: np.concatenate(parts, int(call.attrs.axis)),
    "split": _split,
    "reshape": lambda call, x: x.reshape(_shape(call)),
    "permute_dims": lambda call, x: x.transpose([int(a) for a in call.attrs.axes]),
}
