"""Operators of quantised networks: their meaning in integers, and their form in Relax.

    y = R.call_tir(integer_conv2d, (x, weight, bias, factor))     # attrs: {"integer": "{..}"}
        y = saturate(round(float(sum of (x - zero) * weight + bias) * factor) + zero of y)

An integer operator is a call of a kernel that states in plain loops what it computes, so stock TVM
can run it.  The call's attribute states the same as data (`Integer`), for passes that look for
operators and for templates that compute them faster.  Sums are exact in int32; numbers are rounded
as in ONNX Runtime's optimised session: to nearest, halves to even, in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr

from .choose import ConvShape

ATTRIBUTE = "integer"
"""Attribute of a `relax.call_tir` call: JSON of the `Integer` that it computes."""

_MAGIC = 12582912.0  # 3 * 2**22: the sum with a small number has no bits for a fraction
ROUNDING_BITS = 0x4B400000
"""The bits of `_MAGIC`."""


@dataclass(frozen=True)
class Rounding:
    """Rounding from float32 to an integer type.

    Attributes:
        dtype: of the result.
        zero: the result for 0.0.
        low: the least result; after an activation it may be above the type's.
        high: the greatest result.
    """

    dtype: str
    zero: int
    low: int
    high: int

    def of(self, value: Expr) -> Expr:
        """``value`` as an integer: rounded to even, plus `zero`, limited to `low`..`high`.

        Adding `_MAGIC` to a number below 2**22 rounds it: this needs no rounding instruction of the
        processor, so every target rounds alike.
        """
        low, high = (tirx.const(float(v - self.zero), "float32") for v in (self.low, self.high))
        inside = tirx.max(low, tirx.min(high, value)) + tirx.const(_MAGIC, "float32")
        bits = tirx.reinterpret("int32", inside)
        return (bits + tirx.const(self.zero - ROUNDING_BITS, "int32")).astype(self.dtype)


@dataclass(frozen=True)
class Integer:
    """One integer operator.

    Attributes:
        kind: ``conv2d``, ``matmul``, ``add``, ``multiply``, ``mean`` (of rows and columns),
            ``average`` (of windows), ``table``, ``softmax`` (along the last axis), or ``round``
            (of the sums of several ``conv2d``).
        rounding: of results; None for a ``conv2d`` or ``matmul`` that returns its sums.
        zeros: zero points of the computed inputs.
        factors: for ``add`` one for each input, for ``multiply`` one, then the addend; for ``mean``
            and ``softmax`` one; for ``average`` the scales of data and result; for ``round`` with
            an additional tensor, the tensor's factor and the addend. For ``conv2d`` and ``matmul``
            they are an operand.
        strides, padding, dilation, groups: of ``conv2d``; padding is the zero point.
        kernel: rows and columns of the windows of ``average``, which uses the fields above too.
    """

    kind: str
    rounding: Rounding | None = None
    zeros: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)

    def to_json(self) -> str:
        """The text for `ATTRIBUTE`."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Integer:
        """Read the text that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        rounding = data.pop("rounding")
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
        }
        return Integer(**fields, rounding=None if rounding is None else Rounding(**rounding))


def integer_of(call: Any) -> Integer | None:
    """The integer operator that a call computes; None for other calls."""
    attrs = getattr(call, "attrs", None)
    if not isinstance(attrs, tvm.ir.DictAttrs) or ATTRIBUTE not in attrs:
        return None
    return Integer.from_json(str(attrs[ATTRIBUTE]))


def operands_of(call: relax.Call) -> list[relax.Expr]:
    """The operands of an integer operator."""
    return list(call.args[1].fields)


_MADE: dict[tuple[Any, ...], tuple[tirx.PrimFunc, relax.TensorType]] = {}
"""Kernels of this process: making one takes milliseconds, and layers repeat within networks."""


def integer_call(bb: relax.BlockBuilder, integer: Integer, *operands: relax.Expr) -> relax.Call:
    """The call of an integer operator.

    Args:
        bb: receives the kernel.
        integer: the operator.
        operands: for ``conv2d`` and ``matmul``: data, weights as OIHW or (K, N), int32 bias and,
            if it rounds, a float32 factor for each output channel; for ``round`` the sums, with
            `Integer.factors` a tensor to add to them, and the factor of each channel or, as
            (1, 1, rows, columns), of each pixel; for ``table`` data and the results for all 256
            values; for ``softmax`` data and `softmax_powers`; for ``average`` data and the divisor
            of each sum, as (1, 1, rows, columns) or one number; for others the data.
    """
    types = tuple((tuple(map(int, o.ty.shape.values)), str(o.ty.dtype)) for o in operands)
    key = (integer, types)
    if key not in _MADE:
        inputs = [te.placeholder(shape, dtype) for shape, dtype in types]
        out = _MEANINGS[integer.kind](integer, *inputs)
        kernel = te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")
        _MADE[key] = kernel, relax.TensorType(out.shape, out.dtype)
    kernel, ty = _MADE[key]
    call = relax.call_tir(bb.add_func(kernel, f"integer_{integer.kind}"), list(operands), ty)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{ATTRIBUTE: integer.to_json()})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


# --- meaning: what the kernels compute -----------------------------------------------------------


def conv_shape(integer: Integer, data: Sequence[int], weight: Sequence[int]) -> ConvShape:
    """The convolution of NCHW ``data`` with OIHW ``weight``."""
    batch, channels, height, width = (int(d) for d in data)
    return ConvShape(
        batch,
        channels,
        (height, width),
        int(weight[0]),
        (int(weight[2]), int(weight[3])),
        integer.strides,
        integer.padding,
        integer.dilation,
        integer.groups,
    )


def _int32(value: Expr | int) -> Expr:
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")


def _conv2d(
    integer: Integer, data: te.Tensor, weight: te.Tensor, bias: te.Tensor, *factor: te.Tensor
) -> te.Tensor:
    n, c, h, w = (int(d) for d in data.shape)
    o, per_group, kh, kw = (int(d) for d in weight.shape)
    top, left, bottom, right = integer.padding
    (sy, sx), (dy, dx) = integer.strides, integer.dilation
    rows = (h + top + bottom - (kh - 1) * dy - 1) // sy + 1
    columns = (w + left + right - (kw - 1) * dx - 1) // sx + 1

    def centred(i: Expr, k: Expr, y: Expr, x: Expr) -> Expr:
        inside = tirx.all(y >= top, y < h + top, x >= left, x < w + left)
        value = _int32(data[i, k, y - top, x - left]) - _int32(integer.zeros[0])
        return tirx.if_then_else(inside, value, _int32(0)) if any(integer.padding) else value

    padded = te.compute((n, c, h + top + bottom, w + left + right), centred, name="centred")
    axes = [te.reduce_axis((0, e), a) for e, a in ((per_group, "ic"), (kh, "ky"), (kw, "kx"))]
    ic, ky, kx = axes

    def total(i: Expr, k: Expr, y: Expr, x: Expr) -> Expr:
        channel = k // (o // integer.groups) * per_group + ic
        pixel = padded[i, channel, y * sy + ky * dy, x * sx + kx * dx]
        return te.sum(pixel * _int32(weight[k, ic, ky, kx]), axis=axes)

    sums = te.compute((n, o, rows, columns), total, name="sums")
    if not factor:
        return te.compute(sums.shape, lambda i, k, y, x: sums[i, k, y, x] + bias[k], name="biased")
    return _rounded(integer, sums, lambda i, k, y, x: (sums[i, k, y, x] + bias[k], factor[0][k]))


def _matmul(
    integer: Integer, data: te.Tensor, weight: te.Tensor, bias: te.Tensor, *factor: te.Tensor
) -> te.Tensor:
    k = te.reduce_axis((0, int(weight.shape[0])), "k")

    def total(i: Expr, j: Expr) -> Expr:
        value = _int32(data[i, k]) - _int32(integer.zeros[0])
        return te.sum(value * _int32(weight[k, j]), axis=[k])

    sums = te.compute((data.shape[0], weight.shape[1]), total, name="sums")
    if not factor:
        return te.compute(sums.shape, lambda i, j: sums[i, j] + bias[j], name="biased")
    return _rounded(integer, sums, lambda i, j: (sums[i, j] + bias[j], factor[0][j]))


def _rounded(
    integer: Integer, sums: te.Tensor, parts: Callable[..., tuple[Expr, Expr]]
) -> te.Tensor:
    """Sums times their factors, as integers."""
    rounding = rounding_of(integer)

    def element(*place: Expr) -> Expr:
        value, factor = parts(*place)
        return rounding.of(value.astype("float32") * factor)

    return te.compute(sums.shape, element, name="rounded")


def rounding_of(integer: Integer) -> Rounding:
    """The rounding of an operator that rounds."""
    assert integer.rounding is not None
    return integer.rounding


def _add(integer: Integer, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    of_a, of_b, offset = (tirx.const(f, "float32") for f in integer.factors)
    at_a, at_b, shape = _broadcast(a, b)

    def element(*i: Expr) -> Expr:
        second = b[at_b(i)].astype("float32") * of_b + offset  # in ONNX Runtime's order
        return rounding_of(integer).of(a[at_a(i)].astype("float32") * of_a + second)

    return te.compute(shape, element, name="integer_add")


def _multiply(integer: Integer, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    factor, offset = (tirx.const(f, "float32") for f in integer.factors)
    zero_a, zero_b = integer.zeros
    at_a, at_b, shape = _broadcast(a, b)

    def element(*i: Expr) -> Expr:
        product = (_int32(a[at_a(i)]) - zero_a) * (_int32(b[at_b(i)]) - zero_b)
        return rounding_of(integer).of(product.astype("float32") * factor + offset)

    return te.compute(shape, element, name="integer_multiply")


_Place = Callable[[Sequence[Expr]], tuple[Expr | int, ...]]


def _broadcast(a: te.Tensor, b: te.Tensor) -> tuple[_Place, _Place, list[int]]:
    """Functions for the indices of two broadcast operands, and the shape of the result."""
    first, second = ([int(d) for d in t.shape] for t in (a, b))
    rank = max(len(first), len(second))
    aligned = [[1] * (rank - len(s)) + s for s in (first, second)]
    shape = [max(pair) for pair in zip(*aligned, strict=True)]

    def place(own: list[int]) -> _Place:
        start = rank - len(own)
        return lambda i: tuple(
            i[start + axis] if size == shape[start + axis] else 0 for axis, size in enumerate(own)
        )

    return place(first), place(second), shape


def _mean(integer: Integer, data: te.Tensor) -> te.Tensor:
    n, c, h, w, *lanes = data.shape
    axes = [te.reduce_axis((0, h), "y"), te.reduce_axis((0, w), "x")]
    bias = _int32(-integer.zeros[0] * int(h) * int(w))
    factor = tirx.const(integer.factors[0], "float32")

    def total(i: Expr, k: Expr, _y: Expr, _x: Expr, *lane: Expr) -> Expr:
        place = (i, k, *axes, *lane)
        return te.sum(_int32(data[place]), axis=axes)

    sums = te.compute((n, c, 1, 1, *lanes), total, name="sums")
    return _rounded(integer, sums, lambda *place: (sums[place] + bias, factor))


def _average(integer: Integer, data: te.Tensor, counts: te.Tensor) -> te.Tensor:
    """Average as ONNX Runtime does: in sums of floats, whose last digits decide about halves."""
    n, c, h, w, *lanes = data.shape
    top, left, bottom, right = integer.padding
    (sy, sx), (dy, dx), (kh, kw) = integer.strides, integer.dilation, integer.kernel
    of_data = tirx.const(integer.factors[0], "float32")
    rows = (int(h) + top + bottom - (kh - 1) * dy - 1) // sy + 1
    columns = (int(w) + left + right - (kw - 1) * dx - 1) // sx + 1
    axes = [te.reduce_axis((0, extent), name) for extent, name in ((kh, "ky"), (kw, "kx"))]

    def number(i: Expr, k: Expr, y: Expr, x: Expr, *lane: Expr) -> Expr:
        inside = tirx.all(y >= top, y < h + top, x >= left, x < w + left)
        place = (i, k, y - top, x - left, *lane)
        value = _int32(data[place]) - _int32(integer.zeros[0])
        return tirx.if_then_else(inside, value, _int32(0)) if any(integer.padding) else value

    def total(i: Expr, k: Expr, y: Expr, x: Expr, *lane: Expr) -> Expr:
        ky, kx = axes
        summand = number(i, k, y * sy + ky * dy, x * sx + kx * dx, *lane).astype("float32")
        # rounded before the addition: the minimum prevents LLVM from forming a fused multiply-add
        return te.sum(tirx.min(tirx.max_value("float32"), summand * of_data), axis=axes)

    sums = te.compute((n, c, rows, columns, *lanes), total, name="sums")
    return averages(sums, counts, integer.factors[1], rounding_of(integer))


def averages(sums: te.Tensor, counts: te.Tensor, scale: float, rounding: Rounding) -> te.Tensor:
    """Sums of windows divided by their counts, in units of `scale`, as integers.

    Halves go to the even integer after the zero point is added.
    """
    of_result, zero = (tirx.const(float(v), "float32") for v in (scale, rounding.zero))
    by_pixel = any(int(extent) > 1 for extent in counts.shape)

    def element(*place: Expr) -> Expr:
        count = counts[0, 0, place[2], place[3]] if by_pixel else counts[0, 0, 0, 0]
        return replace(rounding, zero=0).of(sums[place] / count / of_result + zero)

    return te.compute(sums.shape, element, name="average")


def _round(integer: Integer, *operands: te.Tensor) -> te.Tensor:
    *summands, factor = operands
    beside = summands.pop() if integer.factors else None

    def factor_at(i: Sequence[Expr]) -> Expr:
        if len(factor.shape) == 1:
            return factor[i[1]]
        by_pixel = len(factor.shape) == 4
        return factor[0, 0, i[2], i[3]] if by_pixel else factor[0, i[1], 0, 0, i[4]]

    def element(*i: Expr) -> Expr:
        total = summands[0][i]
        for summand in summands[1:]:
            total = total + summand[i]
        value = total.astype("float32") * factor_at(i)
        if beside is not None:
            scale, offset = (tirx.const(f, "float32") for f in integer.factors)
            value = value + (beside[i].astype("float32") * scale + offset)
        return rounding_of(integer).of(value)

    return te.compute(summands[0].shape, element, name="rounded")


def _table(_integer: Integer, data: te.Tensor, table: te.Tensor) -> te.Tensor:
    first = -128 if data.dtype == "int8" else 0
    return te.compute(
        data.shape, lambda *i: table[_int32(data[i]) - _int32(first)], name="integer_table"
    )


def softmax_powers(scale: np.float32, length: int) -> np.ndarray:
    """Exponentials of all differences to the greatest number, whose own comes last.

    All are scaled by a factor that leaves room for the sum of ``length`` of them in float32. ONNX
    Runtime uses the same factor, so results agree to the last digit.
    """
    room = np.float32(np.log(np.float64(np.finfo("float32").max / np.float32(length))))
    first = max(0.0, float(room) - 5.0) / float(scale) - 255
    return np.exp((np.arange(256) + first) * np.float64(scale)).astype("float32")


def _softmax(integer: Integer, data: te.Tensor, powers: te.Tensor) -> te.Tensor:
    *before, length = data.shape
    along = te.reduce_axis((0, length), "j")

    def most(*i: Expr) -> Expr:
        return te.max(_int32(data[tuple([*i, along])]), axis=[along])

    largest = te.compute(before, most, name="largest")

    def power(i: Sequence[Expr], j: Expr) -> Expr:
        return powers[_int32(data[tuple([*i, j])]) - largest[tuple(i)] + _int32(255)]

    along = te.reduce_axis((0, length), "j")
    # sequentially, because in another order float32 has other sums
    total = te.compute(before, lambda *i: te.sum(power(i, along), axis=[along]), name="total")
    factor = tirx.const(integer.factors[0], "float32")

    def element(*place: Expr) -> Expr:
        *i, j = place
        return rounding_of(integer).of(power(i, j) * factor / total[tuple(i)])

    return te.compute(data.shape, element, name="integer_softmax")


_MEANINGS: dict[str, Callable[..., te.Tensor]] = {
    "average": _average,
    "conv2d": _conv2d,
    "matmul": _matmul,
    "add": _add,
    "multiply": _multiply,
    "mean": _mean,
    "round": _round,
    "softmax": _softmax,
    "table": _table,
}
