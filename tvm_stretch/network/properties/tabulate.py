"""Compute the results of an elementwise expression for all numbers of its 8-bit input.

y = sigmoid(dequantize(x: uint8, 0.1, 128))   ->   x, [2.76e-06, 3.05e-06, .. 256 float32]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.operators import kind_of

_DEEPEST = 16
"""The most operators between input and result; no activation has more."""


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, np.float32(0))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.float32(0.5) * x * (1 + _erf(x * np.float32(math.sqrt(0.5))))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


_erf = np.vectorize(math.erf, otypes=["float32"])

_FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "abs": np.abs,
    "add": np.add,
    "ceil": np.ceil,
    "cos": np.cos,
    "divide": np.divide,
    "erf": _erf,
    "exp": np.exp,
    "floor": np.floor,
    "greater": np.greater,
    "less": np.less,
    "log": np.log,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negative": np.negative,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.relu": lambda x: np.maximum(x, 0),
    "nn.silu": lambda x: x * _sigmoid(x),
    "nn.softplus": _softplus,
    "power": np.power,
    "round": np.rint,
    "sigmoid": _sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "subtract": np.subtract,
    "tanh": np.tanh,
    "where": np.where,
}


class _Scaled(Protocol):
    @property
    def scale(self) -> Any:
        """Scale, zero point and type of the numbers."""


Tensor = TypeVar("Tensor", bound=_Scaled)


def tabulated(
    x: relax.Expr,  # an expression
    definition: Callable[[relax.Expr], Any],  # returns the expression that a variable is bound to
    # returns the integers that an expression is dequantised from
    tensor: Callable[[relax.Expr], Tensor | None],
) -> tuple[Tensor, np.ndarray] | None:
    """The one tensor that ``x`` is computed from, and the 256 results; None for anything else."""
    sources: dict[relax.Expr, Tensor] = {}
    known: dict[relax.Expr, np.ndarray | None] = {}

    def value(part: relax.Expr, depth: int) -> np.ndarray | None:
        if part not in known:
            known[part] = computed(part, depth)
        return known[part]

    def computed(part: relax.Expr, depth: int) -> np.ndarray | None:
        call = definition(part)
        if isinstance(call, GenericConst):
            array = call.value.numpy()
            return array.reshape(()) if array.size == 1 else None
        kind = kind_of(call)
        if kind == "dequantize":
            found = tensor(part)
            if found is None:
                return None
            sources[call.args[0]] = found
            return _numbers(found.scale)
        if depth > _DEEPEST or kind not in (*_FUNCTIONS, "clip", "nn.leakyrelu"):
            return None
        operands = call.args[:1] if kind in ("clip", "nn.leakyrelu") else call.args[:]
        values = [value(arg, depth + 1) for arg in operands]
        if any(v is None for v in values):
            return None
        return _results(kind, call, values)

    with np.errstate(all="ignore"):
        result = value(x, 0)
    if result is None or len(sources) != 1 or result.shape != (256,):
        return None
    return next(iter(sources.values())), result


def _numbers(scale: Any) -> np.ndarray:
    """The values of the 256 numbers, from the least one up."""
    low, high = scale.limits
    return (np.arange(low, high + 1) - scale.zero).astype("float32") * scale.scale


def _results(kind: str, call: relax.Call, values: list[Any]) -> np.ndarray:
    if kind == "clip":
        low, high = (np.float32(float(arg.value)) for arg in call.args[1:])
        return np.clip(values[0], low, high)
    if kind == "nn.leakyrelu":
        return np.where(values[0] < 0, values[0] * np.float32(call.attrs.alpha), values[0])
    made = np.asarray(_FUNCTIONS[kind](*values))
    return made if made.dtype == bool else made.astype("float32")
