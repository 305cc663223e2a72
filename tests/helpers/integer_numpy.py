"""What integer operators compute, in NumPy: sums in 64 bits, rounded to even in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from tvm_stretch.network.integers import Integer, Rounding, integer_of


def rounded(value: np.ndarray, rounding: Rounding) -> np.ndarray:
    """float32 numbers as integers: to the nearest, halves to even, saturated."""
    whole = np.rint(value.astype("float32")).astype("float64") + rounding.zero
    return np.clip(whole, rounding.low, rounding.high).astype(rounding.dtype)


def _conv2d(
    integer: Integer, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *factor: np.ndarray
) -> np.ndarray:
    top, left, bottom, right = integer.padding
    (sy, sx), (dy, dx) = integer.strides, integer.dilation
    groups, (outputs, per_group, kh, kw) = integer.groups, weight.shape
    centred = np.pad(
        x.astype("int64") - integer.zeros[0], ((0, 0), (0, 0), (top, bottom), (left, right))
    )
    spans = ((kh - 1) * dy + 1, (kw - 1) * dx + 1)
    seen = sliding_window_view(centred, spans, axis=(2, 3))[:, :, ::sy, ::sx, ::dy, ::dx]
    parts = seen.reshape(x.shape[0], groups, per_group, *seen.shape[2:])
    filters = weight.astype("int64").reshape(groups, outputs // groups, per_group, kh, kw)
    sums = np.einsum("ngchwij,gocij->ngohw", parts, filters)
    sums = sums.reshape(x.shape[0], outputs, *seen.shape[2:4]) + bias.reshape(-1, 1, 1)
    return _finished(integer, sums, *(f.reshape(-1, 1, 1) for f in factor))


def _matmul(
    integer: Integer, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, factor: np.ndarray
) -> np.ndarray:
    sums = (x.astype("int64") - integer.zeros[0]) @ weight.astype("int64") + bias
    return _finished(integer, sums, factor)


def _finished(integer: Integer, sums: np.ndarray, *factor: np.ndarray) -> np.ndarray:
    assert np.abs(sums).max(initial=0) < 2**31
    if integer.rounding is None:
        return sums.astype("int32")
    return rounded(sums.astype("float32") * factor[0], integer.rounding)


def _add(integer: Integer, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    of_a, of_b, offset = np.array(integer.factors, "float32")
    first = a.astype("float32") * of_a + offset
    assert integer.rounding is not None
    return rounded(b.astype("float32") * of_b + first, integer.rounding)


def _multiply(integer: Integer, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    factor, offset = np.array(integer.factors, "float32")
    product = (a.astype("int64") - integer.zeros[0]) * (b.astype("int64") - integer.zeros[1])
    assert integer.rounding is not None
    return rounded(product.astype("float32") * factor + offset, integer.rounding)


def _mean(integer: Integer, x: np.ndarray) -> np.ndarray:
    sums = (x.astype("int64") - integer.zeros[0]).sum((2, 3), keepdims=True)
    return _finished(integer, sums, np.float32(integer.factors[0]))


def _average(integer: Integer, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Floats are added row by row."""
    top, left, bottom, right = integer.padding
    (sy, sx), (dy, dx), (kh, kw) = integer.strides, integer.dilation, integer.kernel
    of_x, of_y = np.float32(integer.factors)
    floats = (x.astype("int32") - integer.zeros[0]).astype("float32") * of_x
    padded = np.pad(floats, ((0, 0), (0, 0), (top, bottom), (left, right)))
    spans = ((kh - 1) * dy + 1, (kw - 1) * dx + 1)
    seen = sliding_window_view(padded, spans, axis=(2, 3))[:, :, ::sy, ::sx, ::dy, ::dx]
    total = np.zeros(seen.shape[:4], "float32")
    for y, x in np.ndindex(kh, kw):
        total = total + seen[..., y, x]
    assert integer.rounding is not None
    whole = np.rint(total / counts / of_y + np.float32(integer.rounding.zero))
    return np.clip(whole, integer.rounding.low, integer.rounding.high).astype(
        integer.rounding.dtype
    )


def _round(integer: Integer, *operands: np.ndarray) -> np.ndarray:
    *summands, factor = operands
    if factor.ndim == 4:  # of each pixel
        return _finished(integer, sum(s.astype("int64") for s in summands), factor)
    total = sum(s.astype("int64") for s in summands)
    return _finished(integer, total, factor.reshape(-1, *[1] * (total.ndim - 2)))


def _table(_: Integer, x: np.ndarray, table: np.ndarray) -> np.ndarray:
    return table[x.astype("int64") + (128 if x.dtype == "int8" else 0)]


def _of(meaning: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def compute(call: relax.Call, *operands: Any) -> np.ndarray:
        integer = integer_of(call)
        assert integer is not None
        return meaning(integer, *operands)

    return compute


INTEGERS = {
    f"integer.{kind}": _of(meaning)
    for kind, meaning in {
        "conv2d": _conv2d,
        "matmul": _matmul,
        "add": _add,
        "multiply": _multiply,
        "mean": _mean,
        "average": _average,
        "round": _round,
        "table": _table,
    }.items()
}
"""By kinds of operators, functions of a call and its operands."""
