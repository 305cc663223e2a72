"""Floats that are stored as float16 wherever that is exact, and read without float16 arithmetic.

    stored: the 16 bits of 0.75 as an int16             s eeeee mmmmmmmmmm
    read:   reinterpret(bits << 13 & 0x8fffffff)        s 000eeeee mmmmmmmmmm 0000000000000
            * 2 ** 112                                  the exponents of float32 start lower

Shifts, a mask and a product exist on every processor and in every OpenCL, and their vectors need
no instruction of their own. Only zeros and normal numbers are stored in this way: processors that
flush subnormal numbers would read zeros instead of the others.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .loops import as_type

HALVES = "int16"
"""The type of tensors that hold the bits of float16 numbers."""

_SMALLEST = np.finfo("float16").smallest_normal
_SAMPLE = 1024
"""Numbers that are looked at first: most networks have more digits in all of them."""
_SHIFT = 13  # digits that float32 has and float16 lacks
_MASK = -0x70000001  # 0x8fffffff: the shift leaves three copies of the sign
_EXPONENTS = 2.0**112  # the exponents of float32 and float16 have offsets of 127 and 15


def as_halves(values: np.ndarray) -> np.ndarray | None:
    """The same numbers in float16, if all of them are finite and exactly such numbers."""
    some = values.ravel()[:_SAMPLE]
    if some.size < values.size and as_halves(some) is None:
        return None
    with np.errstate(over="ignore"):
        half = values.astype("float16")
    return half if bool((np.isfinite(half) & (half.astype(values.dtype) == values)).all()) else None


def are_halves(values: np.ndarray) -> bool:
    """Whether every number is exactly a zero or a normal number of float16."""
    is_normal = (np.abs(values) >= _SMALLEST) | (values == 0)
    return bool(is_normal.all()) and as_halves(values) is not None


def half_bits(values: np.ndarray) -> np.ndarray:
    """The bits of numbers that `are_halves`."""
    return values.astype("float16").view(HALVES)


def float_of(bits: Expr) -> Expr:
    """The float32 of bits, or of several."""
    word = as_type(bits, "int32")
    kind = str(word.ty.dtype)
    floats = kind.replace("int32", "float32")
    shifted = tirx.shift_left(word, tirx.const(_SHIFT, kind))
    exact = tirx.reinterpret(floats, tirx.bitwise_and(shifted, tirx.const(_MASK, kind)))
    return exact * tirx.const(_EXPONENTS, floats)
