"""Tables of 8 bits as functions that ONNX has, for engines, which take no tables.

    table[i] = limit(round(f(scale of x * (i - zero of x)) / scale of y) + zero of y)
        ->
    DequantizeLinear, the operator of f, QuantizeLinear

f is found by its results: all 256 have to be the table's, or next to them, since a network may
round between two operators that are one in ONNX. So it does not matter with which operators the
network writes its functions. Concatenations and sums of tensors with different scales have tables
that only change the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.integers import Integer, integer_of, operands_of

_MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Function:
    """A function of real numbers, as NumPy computes it and as ONNX writes it."""

    values: Callable[[np.ndarray], np.ndarray]
    operator: str = ""  # of ONNX; none for the number itself
    attributes: Mapping[str, float] = field(default_factory=dict)  # of the operator
    domain: str = ""  # of the operator
    gates: bool = False  # whether the result is multiplied by the number


@dataclass(frozen=True)
class Tabulated:
    """The function of a table, and limits that cut its results."""

    function: Function
    low: int  # the least result
    high: int  # the greatest result


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 6 + 0.5, 0, 1)


_erf = np.vectorize(math.erf, otypes=["float64"])

_ITSELF = Function(lambda x: x)
_FUNCTIONS = (
    Function(_sigmoid, "Sigmoid"),
    Function(np.tanh, "Tanh"),
    Function(_hard_sigmoid, "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    Function(lambda x: x * _hard_sigmoid(x), "HardSwish"),
    Function(lambda x: x * _sigmoid(x), "Sigmoid", gates=True),
    Function(lambda x: x * (1 + _erf(x * math.sqrt(0.5))) / 2, "Gelu", domain=_MICROSOFT),
    Function(lambda x: np.where(x < 0, np.expm1(x), x), "Elu"),
    Function(lambda x: np.logaddexp(x, 0), "Softplus"),
    Function(np.abs, "Abs"),
    Function(np.negative, "Neg"),
    Function(np.exp, "Exp"),
    Function(np.log, "Log"),
)


def function_of(call: relax.Call) -> Tabulated | None:
    """The function of an integer operator of kind ``table``; None if ONNX has none.

    The nearest one is taken. Only a change of the scale may be cut by limits of the table's own:
    engines join these with the rounding, and have no form for other functions.
    """
    integer, (data, table) = integer_of(call), operands_of(call)
    assert integer is not None
    if not isinstance(table, GenericConst):
        return None
    results, limits = table.value.numpy(), np.iinfo(str(data.ty.dtype))
    places = np.arange(limits.min, limits.max + 1)
    x = (places - integer.zeros[0]) * np.float64(integer.factors[0])
    own = Tabulated(_ITSELF, int(results.min()), int(results.max()))
    type_ = np.iinfo(results.dtype)
    listed = (*_leaky(integer, x, results), *_FUNCTIONS)
    found = [own, *(Tabulated(one, int(type_.min), int(type_.max)) for one in listed)]
    off = [_most_and_mean_off(one, integer, x, results) for one in found]
    nearest = min(range(len(found)), key=lambda place: off[place][1])
    return found[nearest] if off[nearest][0] <= 1 else None


def _leaky(integer: Integer, x: np.ndarray, results: np.ndarray) -> Iterator[Function]:
    """LeakyRelu with the slope that the result of the least number has."""
    if x[0] < 0:
        result = (int(results[0]) - integer.zeros[1]) * np.float64(integer.factors[1])
        slope = float(result / x[0])
        yield Function(lambda x: np.where(x < 0, slope * x, x), "LeakyRelu", {"alpha": slope})


def _most_and_mean_off(
    tabulated: Tabulated, integer: Integer, x: np.ndarray, results: np.ndarray
) -> tuple[float, float]:
    """By how much a function's results are beside those of a table: at most, and in the mean."""
    with np.errstate(all="ignore"):
        made = np.rint(tabulated.function.values(x) / integer.factors[1]) + integer.zeros[1]
    made[np.isnan(made)] = tabulated.low
    off = np.abs(np.clip(made, tabulated.low, tabulated.high) - results)
    return float(off.max()), float(off.mean())
