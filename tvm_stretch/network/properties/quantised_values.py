"""Read what the numbers of a quantised network stand for: tensors, constants, results.

R.dequantize(x: uint8, 0.02, 3)       ->   Tensor(x, Scale(0.02, 3, "uint8"))
R.dequantize(w: int8, [0.1, ..], 0)   ->   Weight(w, [0.1, ..])

An elementwise expression of one such tensor is computed for all of its numbers:

y = sigmoid(dequantize(x: uint8, 0.1, 128))   ->   x, [2.76e-06, 3.05e-06, .. 256 float32]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import axes_of, shape_of
from tvm_stretch.network.integers import Rounding
from tvm_stretch.network.operators import kind_of

EIGHT_BITS = ("int8", "uint8")

Definition = Callable[[relax.Expr], Any]
"""Returns the expression that a variable is bound to, and other expressions unchanged."""


@dataclass(frozen=True)
class Scale:
    """The value of the numbers of an integer tensor: ``(number - zero) * scale``."""

    scale: np.float32
    zero: int
    dtype: str

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number of the type."""
        limits = np.iinfo(self.dtype)
        return int(limits.min), int(limits.max)


@dataclass(frozen=True)
class Result:
    """Requested integers: their scale, and the limits at which an activation clips them."""

    scale: Scale
    low: int
    high: int

    def clipped(self, low: float, high: float) -> Result:
        """The result of ``clip(x, low, high)`` in integers: rounding keeps the order."""
        least, most = (self.number(v) for v in (low, high))
        low_, high_ = min(max(self.low, least), self.high), max(min(self.high, most), self.low)
        return replace(self, low=low_, high=high_)

    def number(self, value: float) -> int:
        """The integer for ``value``."""
        with np.errstate(over="ignore"):
            rounded = np.rint(np.float32(value) / self.scale.scale) + self.scale.zero
        return int(np.clip(rounded, *self.scale.limits))

    def holds(self, value: float) -> bool:
        """Whether an integer stands for ``value`` exactly."""
        return (self.number(value) - self.scale.zero) * self.scale.scale == np.float32(value)

    def rounding(self, zero: int | None = None) -> Rounding:
        """The rounding to these integers; operators add the zero point unless one is given."""
        zero = self.scale.zero if zero is None else zero
        return Rounding(self.scale.dtype, zero, self.low, self.high)

    @property
    def cuts(self) -> bool:
        """Whether the limits exclude numbers of the type."""
        return (self.low, self.high) != self.scale.limits


@dataclass(frozen=True)
class Tensor:
    """An integer tensor and its scale."""

    value: relax.Expr
    scale: Scale


@dataclass(frozen=True)
class Weight:
    """Constant weights without zero point, and the scale of each output channel."""

    value: np.ndarray
    scale: np.ndarray


def scale_of(call: relax.Call, dtype: str, definition: Definition) -> Scale | None:
    """Scale and zero point of a (de)quantising with one scale for the tensor; None otherwise."""
    scale, zero = (definition(arg) for arg in call.args[1:])
    if not isinstance(scale, GenericConst) or not isinstance(zero, GenericConst):
        return None
    numbers = scale.value.numpy().reshape(-1), zero.value.numpy().reshape(-1)
    if any(n.size != 1 for n in numbers):
        return None
    return Scale(np.float32(numbers[0][0]), int(numbers[1][0]), dtype)


def numbers_of(x: relax.Expr, definition: Definition) -> tuple[np.ndarray, np.ndarray] | None:
    """A constant as ``numbers * scales``; without quantisation, floats with scales of 1."""
    value = definition(x)
    if isinstance(value, GenericConst):
        array = value.value.numpy()
        return array.astype("float64"), np.ones_like(array, "float32")
    kind = kind_of(value)
    if kind in ("reshape", "permute_dims"):
        inner = numbers_of(value.args[0], definition)
        if inner is None:
            return None
        if kind == "reshape":
            return inner[0].reshape(shape_of(value)), inner[1].reshape(shape_of(value))
        return inner[0].transpose(axes_of(value)), inner[1].transpose(axes_of(value))
    if kind != "dequantize":
        return None
    data, scale, zero = (definition(arg) for arg in value.args)
    if not all(isinstance(part, GenericConst) for part in (data, scale, zero)):
        return None
    array = data.value.numpy()
    full = [1] * array.ndim
    if scale.value.numpy().size > 1:
        full[int(value.attrs.axis)] = -1
    aligned = [part.value.numpy().reshape(full) for part in (scale, zero)]
    scales = np.broadcast_to(aligned[0].astype("float32"), array.shape)
    return array.astype("int64") - aligned[1].astype("int64"), scales


def weight_of(x: relax.Expr, axis: int, definition: Definition) -> Weight | None:
    """8-bit weights without zero point and with one scale for each index of ``axis``."""
    numbers = numbers_of(x, definition)
    if numbers is None or numbers[0].dtype.kind == "f" or not numbers[0].size:
        return None
    values, scales = numbers
    rows = np.moveaxis(scales, axis, 0).reshape(scales.shape[axis], -1)
    limits = np.iinfo("int8")
    if (rows != rows[:, :1]).any() or values.min() < limits.min or values.max() > limits.max:
        return None
    return Weight(values.astype("int8"), rows[:, 0].copy())


def bias_of(
    bias: relax.Expr | None,
    call: relax.Call,
    scale: np.ndarray,
    definition: Definition,
    axis: int,  # of the channels in the result of `call`
) -> np.ndarray | None:
    """A layer's bias as int32 in units of ``scale``; None if it is not one number per channel."""
    if bias is None:
        return np.zeros(len(scale), "int32")
    scaled, shape = numbers_of(bias, definition), shape_of(call)
    if scaled is None or scaled[0].ndim > len(shape):
        return None
    numbers, scales = scaled
    full = [1] * (len(shape) - numbers.ndim) + list(numbers.shape)
    if numbers.size not in (1, full[axis]):
        return None
    units = scales.reshape(-1).astype("float64") / scale
    units[np.abs(units - 1) < 1e-5] = 1.0  # the file may round scales to fewer digits
    rounded = np.rint(numbers.reshape(-1) * units)
    if not np.abs(rounded).max(initial=0) < 2**31:
        return None  # too large, or NaN
    return rounded.astype("int32")


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


Given = TypeVar("Given", bound=_Scaled)


def tabulated(
    x: relax.Expr,  # an expression
    definition: Callable[[relax.Expr], Any],  # returns the expression that a variable is bound to
    # returns the integers that an expression is dequantised from
    tensor: Callable[[relax.Expr], Given | None],
) -> tuple[Given, np.ndarray] | None:
    """The one tensor that ``x`` is computed from, and the 256 results; None for anything else."""
    sources: dict[relax.Expr, Given] = {}
    values_of: dict[relax.Expr, np.ndarray | None] = {}

    def value(part: relax.Expr, depth: int) -> np.ndarray | None:
        if part not in values_of:
            values_of[part] = computed(part, depth)
        return values_of[part]

    def computed(part: relax.Expr, depth: int) -> np.ndarray | None:
        call = definition(part)
        if isinstance(call, GenericConst):
            array = call.value.numpy()
            return array.reshape(()) if array.size == 1 else None
        kind = kind_of(call)
        if kind == "dequantize":
            source = tensor(part)
            if source is None:
                return None
            sources[call.args[0]] = source
            return _numbers(source.scale)
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
    results = np.asarray(_FUNCTIONS[kind](*values))
    return results if results.dtype == bool else results.astype("float32")
