"""Floats that are stored as float16 wherever that is exact, and read without float16 arithmetic.

    stored: the 16 bits of 0.75 as an int16             s eeeee mmmmmmmmmm
    read:   reinterpret(bits << 13 & 0x8fffffff)        s 000eeeee mmmmmmmmmm 0000000000000
            * 2 ** 112                                  the exponents of float32 start lower

Shifts, a mask and a product exist on every processor and in every OpenCL, and their vectors need
no instruction of their own. Only zeros and normal numbers are stored in this way: processors that
flush subnormal numbers would read zeros instead of the others.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .loops import as_type

NARROW = ("float16", "bfloat16")
"""Types of two bytes that an instruction, or a shift, makes float32."""

HALVES = "int16"
"""The type of tensors that hold the bits of float16 numbers."""

_SMALLEST = np.finfo("float16").smallest_normal
_SAMPLE = 1024
"""Numbers that are looked at first: most networks have more digits in all of them."""
_SHIFT = 13  # digits that float32 has and float16 lacks
_MASK = -0x70000001  # 0x8fffffff: the shift leaves three copies of the sign
_EXPONENTS = 2.0**112  # the exponents of float32 and float16 have offsets of 127 and 15


def narrowed(values: np.ndarray) -> np.ndarray | None:
    """The same numbers in a type of two bytes, if all are finite and one type holds them."""
    kinds = (np.float16, ml_dtypes.bfloat16)
    return next((exact for kind in kinds if (exact := _exactly(values, kind)) is not None), None)


def are_halves(values: np.ndarray) -> bool:
    """Whether every number is exactly a zero or a normal number of float16."""
    is_normal = (np.abs(values) >= _SMALLEST) | (values == 0)
    return bool(is_normal.all()) and _exactly(values, np.float16) is not None


def _exactly(values: np.ndarray, kind: type) -> np.ndarray | None:
    some = values.ravel()[:_SAMPLE]
    if some.size < values.size and _exactly(some, kind) is None:
        return None
    with np.errstate(over="ignore"):
        narrow: np.ndarray = values.astype(kind)
    same = narrow.astype(values.dtype) == values
    return narrow if bool((same & np.isfinite(values)).all()) else None


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
