"""Round in integers, for processors whose vectors hold no floats.

    round(float(n) * factor) + zero   ->   (high word of n * mantissa + half) >> shift, + zero

`integers.Rounding.of` rounds sums to 8-bit numbers in float32, as ONNX Runtime does.
Here a factor becomes a mantissa of 31 bits and a shift: the high word of the 64-bit product, plus
half a unit, shifted right, is the exact product rounded to nearest. It differs from float32 for
halves, which go up instead of to even, and where float32 itself rounds the product to a half.

Sums of several products, as in an addition, share one scale, in which each number has 8 or 9 bits.
For two numbers of 8 bits only halves differ (`targets/kernels/fitted_sum.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.rewriting import rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.fitted_sum import fitted_sum
from tvm_stretch.targets.kernels.fixed_point import halves_up, mantissas
from tvm_stretch.targets.kernels.hvx import word
from tvm_stretch.targets.kernels.integers import ROUNDING_BITS


@tvm.transform.module_pass(opt_level=0, name="UseFixedPoint")
class UseFixedPoint:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every PrimFunc; Relax functions stay."""
        return rewrite_kernels(
            mod, lambda body: rewrite(body, ((tirx.Add, tirx.Sub), _rounded_in_integers))
        )


def _rounded_in_integers(expr: tirx.Add | tirx.Sub) -> Expr:
    """`expr` itself unless it ends a `Rounding.of`: float bits plus or minus a number."""
    found = _rounding(expr)
    if found is None:
        return expr
    low, high, value = found
    products, offset = _linear(value)
    if not products:
        return expr
    zero = (int(expr.b) if isinstance(expr, tirx.Add) else -int(expr.b)) + ROUNDING_BITS
    if len(products) == 1 and offset == 0.0:
        whole = _product(*products[0])
    else:
        whole = _sum(value, products, offset, (low, high))
    return tirx.max(word(low), tirx.min(word(high), whole)) + word(zero)


def _rounding(expr: tirx.Add | tirx.Sub) -> tuple[int, int, Expr] | None:
    """Least and greatest number, and the expression that is rounded."""
    bits = expr.a
    is_bits = getattr(getattr(bits, "op", None), "name", "") == "tirx.reinterpret"
    if not (is_bits and isinstance(expr.b, tirx.IntImm) and isinstance(bits.args[0], tirx.Add)):
        return None
    inside = bits.args[0].a
    if not isinstance(inside, tirx.Max) or not isinstance(inside.a, tirx.FloatImm):
        return None
    top = inside.b
    if not isinstance(top, tirx.Min) or not isinstance(top.a, tirx.FloatImm):
        return None
    return int(inside.a.value), int(top.a.value), top.b


_Product = tuple[Expr, Expr]
"""An integer and its factor."""


def _linear(value: Expr) -> tuple[list[_Product], float]:
    """The products and the number whose sum a value is; no products if it is no such sum.

    >>> _linear(float(a) * 0.5 + (float(b) * 2.0 + 3.0))
    ([(a, 0.5), (b, 2.0)], 3.0)
    """
    if isinstance(value, tirx.FloatImm):
        return [], float(value.value)
    if isinstance(value, tirx.Add):
        parts = [_linear(part) for part in (value.a, value.b)]
        known = zip(parts, (value.a, value.b), strict=True)
        if all(products or isinstance(part, tirx.FloatImm) for (products, _), part in known):
            return [*parts[0][0], *parts[1][0]], parts[0][1] + parts[1][1]
        return [], 0.0
    if isinstance(value, tirx.Cast) and "int" in str(value.value.ty.dtype):
        return [(value.value, tirx.const(1.0, "float32"))], 0.0  # TVM drops a factor of one
    if isinstance(value, tirx.Mul) and isinstance(value.a, tirx.Cast):
        return [(value.a.value, value.b)], 0.0
    return [], 0.0


@dataclass(frozen=True)
class _Factor:
    """mantissa * 2**-(32 + shift), for a number that was shifted left by ``before``."""

    mantissa: Expr
    before: Expr
    shift: Expr


def _factor(factor: Expr) -> _Factor:
    """A non-negative float32, split into mantissa and exponent."""
    bits = tirx.reinterpret("int32", factor)
    mantissa = (bits & word(0x7FFFFF) | word(0x800000)) << word(7)
    shift = word(125) - (bits >> word(23))
    return _Factor(
        mantissa, tirx.max(word(0), word(1) - shift), tirx.max(word(1), tirx.min(word(31), shift))
    )


def _product(number: Expr, factor: Expr) -> Expr:
    """Rounded to nearest, halves up; if constant, in the form that `hvx_stores` recognises."""
    if isinstance(factor, tirx.FloatImm):
        found = mantissas(np.array([factor.value], "float32"))
        if found is not None:
            return halves_up(number.astype("int32"), word(int(found[0][0])), found[1])
    parts = _factor(factor)
    most = word(2**31 - 1) >> parts.before  # larger numbers are far beyond 8 bits anyway
    moved = tirx.max(-most, tirx.min(most, number.astype("int32"))) << parts.before
    high = moved.astype("int64") * parts.mantissa.astype("int64") >> tirx.const(32, "int64")
    half = word(1) << (parts.shift - word(1))
    return (high.astype("int32") + half) >> parts.shift


def _sum(value: Expr, products: Sequence[_Product], offset: float, limits: tuple[int, int]) -> Expr:
    """Sum in units of 2**-bits, so that everything fits int32; rounded to nearest, halves up."""
    numbers = [number for number, _ in products]
    factors = [_number(factor) for _, factor in products]
    largest = sum(_MOST[_width(n)] * abs(f) for n, f in zip(numbers, factors, strict=True))
    bits = min(29, math.floor(30 - math.log2(max(largest + abs(offset), 1e-9))))
    if bits < 1:
        raise UnsupportedError(
            f"expected factors below {2**20} of an integer operator on this processor, got "
            f"{max(factors)}; place it on the CPU"
        )
    last = round(offset * 2**bits) + 2 ** (bits - 1)
    wholes = [round(factor * 2**bits) for factor in factors]
    if [_width(number) for number in numbers] == [8, 8]:
        wholes, last = _fitted(_formula(value), tuple(factors), limits, bits) or (wholes, last)
    total: Expr = word(last)
    for number, factor, whole in zip(numbers, factors, wholes, strict=True):
        total = total + number.astype("int32") * word(whole)
        if _width(number) == 32:  # the lost bits of the factor count 2**16 times
            rest = word(round((factor * 2**bits - whole) * 2**_MORE))
            total = total + (number.astype("int32") * rest >> word(_MORE))
    return total >> word(bits)


_Formula = float | tuple[str, float] | tuple["_Formula", "_Formula"]
"""A number, numbers of a type times a factor, or a sum: the structure that `_linear` reads."""


def _formula(value: Expr) -> _Formula:
    if isinstance(value, tirx.FloatImm):
        return float(value.value)
    if isinstance(value, tirx.Add):
        return _formula(value.a), _formula(value.b)
    number, factor = (
        (value.a, float(value.b.value)) if isinstance(value, tirx.Mul) else (value, 1.0)
    )
    return str(number.value.ty.dtype), factor


@functools.lru_cache(maxsize=1024)  # a search lowers the same addition many times
def _fitted(
    formula: _Formula, factors: tuple[float, ...], limits: tuple[int, int], bits: int
) -> tuple[list[int], int] | None:
    """Integers for the sum of two 8-bit numbers, if suitable ones exist."""
    every = [np.arange(np.iinfo(d).min, np.iinfo(d).max + 1) for d in _types(formula)]
    return fitted_sum(every, factors, functools.partial(_in_float32, formula), limits, bits)


def _types(formula: _Formula) -> Iterator[str]:
    """The types of the numbers, in order."""
    if isinstance(formula, tuple) and isinstance(formula[0], str):
        yield formula[0]
    elif isinstance(formula, tuple):
        for part in formula:
            yield from _types(part)


def _in_float32(formula: _Formula, numbers: Iterator[np.ndarray]) -> np.ndarray:
    """The operator's result in float32 multiply-adds, each of which rounds once."""
    if isinstance(formula, float):
        return np.float64(np.float32(formula))
    if isinstance(formula[0], str):  # exact, because numbers have 8 and 24 bits
        return next(numbers) * np.float64(np.float32(formula[1]))
    a, b = (_in_float32(part, numbers) for part in formula)
    if all(isinstance(part, tuple) and isinstance(part[0], str) for part in formula):
        b = b.astype("float32")  # one of both products is not part of the multiply-add
    return (a + b).astype("float32").astype("float64")


_MORE = 14
"""Additional bits of a factor, beyond those that fit into sums."""


_MOST = {8: 2**8, 16: 2**16, 32: 2**16}
"""The greatest number of each bit width; numbers of 32 bits are products of two of 8."""


def _width(number: Expr) -> int:
    return tvm.DataType(str(number.ty.dtype)).bits


def _number(factor: Expr) -> float:
    if not isinstance(factor, tirx.FloatImm):
        raise UnsupportedError(
            "expected one factor for all channels of a sum of products, got one for each; "
            "place the operator on the CPU"
        )
    return float(factor.value)
