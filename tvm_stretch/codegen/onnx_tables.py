"""Tables of 8 bits that only change the scale: integers of one scale as integers of another.

    table[i] = limit(round(ratio * (i - zero of x)) + zero of y),  ratio = scale of x / scale of y

Concatenations and sums of tensors with different scales need them. Engines take such a table as
DequantizeLinear and QuantizeLinear; tables of other functions have lost their scales.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.ir.integers import operands_of

_MOST_ROUNDED_ELSEWHERE = 5
"""Results that may be off by one, because their products lie at a half."""


@dataclass(frozen=True)
class Rescaling:
    """A table as a formula."""

    ratio: float  # scale of the operand / scale of the result
    zero: int  # of the operand
    result_zero: int
    low: int  # the least result
    high: int  # the greatest result


def rescaling_of(call: relax.Call) -> Rescaling | None:
    """The formula of an integer operator of kind ``table``; None if there is none."""
    numbers = _numbers(call)
    if numbers is None:
        return None
    places, results = numbers
    best, score = None, (_MOST_ROUNDED_ELSEWHERE + 1, 0.0)
    for zero, result_zero in zip(places.tolist(), results.tolist(), strict=True):
        found, own = _fitted(places, results, zero, result_zero)
        if found.ratio > 0 and own < score:
            best, score = found, own
    return best


def rescaling_with(call: relax.Call, zero: int, result_zero: int) -> Rescaling | None:
    """The formula of a table that has these zero points; None if there is none.

    ``clip(x / 6 + 0.5)`` is linear, too, but its 0 is no 0 of ``x``: with the zero points that
    ``x`` and the result have elsewhere, it is another function.
    """
    numbers = _numbers(call)
    if numbers is None:
        return None
    found, (missed, _) = _fitted(*numbers, zero, result_zero)
    return found if found.ratio > 0 and missed <= _MOST_ROUNDED_ELSEWHERE else None


def _numbers(call: relax.Call) -> tuple[np.ndarray, np.ndarray] | None:
    """All operands of a table and their results; None if too few results tell its formula."""
    data, table = operands_of(call)
    if not isinstance(table, GenericConst):
        return None
    first = np.iinfo(str(data.ty.dtype)).min
    results = table.value.numpy().astype("int64")
    if ((results > results.min()) & (results < results.max())).sum() < 2:
        return None
    return np.arange(first, first + len(results)), results


def _fitted(
    places: np.ndarray, results: np.ndarray, zero: int, result_zero: int
) -> tuple[Rescaling, tuple[int, float]]:
    """The best formula with these zero points; how many results it misses, and by how much.

    All results are missed if one is more than one off.
    """
    low, high = int(results.min()), int(results.max())
    inside = (results > low) & (results < high)
    least, most = _ratios(places[inside] - zero, results[inside] - result_zero)
    ratio = (least + most) / 2
    found = np.clip(np.rint(ratio * (places - zero)) + result_zero, low, high)
    off = np.abs(found - results)
    missed = int((off != 0).sum()) if off.max() <= 1 else len(results)
    return Rescaling(ratio, zero, result_zero, low, high), (missed, least - most)


def _ratios(steps: np.ndarray, results: np.ndarray) -> tuple[float, float]:
    """The least and the greatest ratio whose products with ``steps`` round to ``results``."""
    steps, results = steps[steps != 0], results[steps != 0]
    ends = np.stack([(results - 0.5) / steps, (results + 0.5) / steps])
    return float(ends.min(axis=0).max()), float(ends.max(axis=0).min())
