"""Operators of quantised networks: their meaning in integers, as data.

    y = R.call_tir(integer_conv2d, (x, weight, bias, factor))     # attrs: {"integer": "{..}"}
        y = saturate(round(float(sum of (x - zero) * weight + bias) * factor) + zero of y)

The call's attribute, for passes that look for operators, and an annotation of the kernel's last
block, for templates that compute it faster, hold the same `Integer`. Numbers are rounded as in ONNX
Runtime's optimised session: to nearest, halves to even, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax, s_tir, tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import MEANING
from tvm_stretch.network.codec import from_text
from tvm_stretch.network.expressions import nodes_of

ATTRIBUTE = "integer"
"""Attribute of a `relax.call_tir` call: the text of the `Integer` that it computes."""

_MAGIC = 12582912.0  # 3 * 2**22: the sum with a small number has no bits for a fraction
_MAGIC_BITS = 0x4B400000
"""The bits of `_MAGIC`."""


@dataclass(frozen=True)
class Rounding:
    """Rounding from float32 to an integer type."""

    dtype: str  # of the result
    zero: int  # the result for 0.0
    low: int  # the least result; after an activation it may be above the type's
    high: int  # the greatest result

    def round(self, value: Expr) -> Expr:
        """``value`` as an integer: rounded to even, plus `zero`, limited to `low`..`high`.

        Adding `_MAGIC` to a number below 2**22 rounds it: this needs no rounding instruction of the
        processor, so every target rounds alike.
        """
        low, high = (tirx.const(float(v - self.zero), "float32") for v in (self.low, self.high))
        inside = tirx.max(low, tirx.min(high, value)) + tirx.const(_MAGIC, "float32")
        bits = tirx.reinterpret("int32", inside)
        return (bits + tirx.const(self.zero - _MAGIC_BITS, "int32")).astype(self.dtype)


@dataclass(frozen=True)
class Integer:
    """One integer operator."""

    # ``conv2d``, ``matmul``, ``add``, ``multiply``, ``mean`` (of rows and columns), ``average``
    # (of windows), ``table``, ``softmax`` (along the last axis), or ``round`` (of the sums of
    # several ``conv2d``)
    kind: str
    # of results; None for a ``conv2d`` or ``matmul`` that returns its sums
    rounding: Rounding | None = None
    zeros: tuple[int, ...] = ()  # zero points of the computed inputs; for ``table`` of both ends
    # for ``add`` one for each input, for ``multiply`` one, then the addend; for ``mean`` and
    # ``softmax`` one; for ``average`` and ``table`` the scales of data and result; for ``round``
    # with an additional tensor, the tensor's factor and the addend. For ``conv2d`` and ``matmul``
    # they are an operand.
    factors: tuple[float, ...] = ()
    # strides, padding, dilation, groups: of ``conv2d``; padding is the zero point
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    # rows and columns of the windows of ``average``, which uses the fields above too
    kernel: tuple[int, int] = (1, 1)


def integer_of(call: Any) -> Integer | None:
    """The integer operator that a call computes; None for other calls."""
    attrs = getattr(call, "attrs", None)
    if not isinstance(attrs, tvm.ir.DictAttrs) or ATTRIBUTE not in attrs:
        return None
    return _read(str(attrs[ATTRIBUTE]))


def meaning_of(func: tirx.PrimFunc) -> Integer | None:
    """The integer operator that a kernel computes, perhaps with others; None for other kernels."""
    blocks = nodes_of(func.body, s_tir.SBlock)
    marked = (block.annotations[MEANING] for block in blocks if MEANING in block.annotations)
    mark = next(marked, None)
    return None if mark is None else _read(str(mark))


@lru_cache(maxsize=1024)  # passes ask for the same operators many times
def _read(text: str) -> Integer:
    return from_text(Integer, text)


def operands_of(call: relax.Call) -> list[relax.Expr]:
    """The operands of an integer operator."""
    return list(call.args[1].fields)


def rounding_of(integer: Integer) -> Rounding:
    """The rounding of an operator that rounds."""
    assert integer.rounding is not None
    return integer.rounding
