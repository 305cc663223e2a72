"""The kernels of integer operators: plain loops that say what they compute.

Stock TVM can run them; templates compute the same faster. Sums are exact in int32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.network.attributes import MEANING
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.integers import ATTRIBUTE, Integer, Rounding, rounding_of

Product = tuple[Expr, Expr]
"""An integer and its float32 factor."""

Rounder = Callable[[Rounding, Sequence[Product], float | None], Expr]
"""Rounds the sum of products and an offset."""

Shapes = tuple[tuple[tuple[int, ...], str], ...]
"""Shapes and types of operands."""


def integer_call(
    bb: relax.BlockBuilder,  # receives the kernel
    integer: Integer,  # the operator
    # for ``conv2d`` and ``matmul``: data, weights as OIHW or (K, N), int32 bias and, if it rounds,
    # a float32 factor for each output channel; for ``round`` the sums, with `Integer.factors` a
    # tensor to add to them, and the factor of each channel or, as (1, 1, rows, columns), of each
    # pixel; for ``table`` data and the results for all 256 values; for ``softmax`` data and
    # `softmax_powers`; for ``average`` data and the divisor of each sum, as (1, 1, rows, columns)
    # or one number; for others the data
    *operands: relax.Expr,
) -> relax.Call:
    """The call of an integer operator."""
    types = tuple((tuple(map(int, o.ty.shape.values)), str(o.ty.dtype)) for o in operands)
    # tables with other scales are the same loops, so they share one kernel
    computed = replace(integer, zeros=(), factors=()) if integer.kind == "table" else integer
    kernel, ty = integer_kernel(computed, types)
    call = relax.call_tir(bb.add_func(kernel, f"integer_{integer.kind}"), list(operands), ty)
    attrs = tvm.ir.make_node("ir.DictAttrs", **{ATTRIBUTE: to_text(integer)})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


def in_float32(rounding: Rounding, products: Sequence[Product], offset: float | None) -> Expr:
    """Multiply and add in float32, the last product first, as ONNX Runtime does."""
    total = None if offset is None else tirx.const(offset, "float32")
    for number, factor in reversed(products):
        product = number.astype("float32") * factor
        total = product if total is None else product + total
    return rounding.round(total)


@functools.cache  # making a kernel takes milliseconds, and layers repeat within networks
def integer_kernel(
    integer: Integer, types: Shapes, rounder: Rounder = in_float32
) -> tuple[tirx.PrimFunc, relax.TensorType]:
    """The kernel of an operator, and the type of its result."""
    inputs = [te.placeholder(shape, dtype) for shape, dtype in types]
    out = _MEANINGS[integer.kind](_Kernel(integer, rounder), *inputs)
    kernel = te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")
    return kernel, relax.TensorType(out.shape, out.dtype)


@dataclass(frozen=True)
class _Kernel:
    """What the functions below need to write the last block of a kernel."""

    integer: Integer
    rounder: Rounder

    def result(
        self, shape: Sequence[Expr | int], element: Callable[..., Expr], name: str
    ) -> te.Tensor:
        """The kernel's result, whose block says what the kernel computes."""
        return te.compute(shape, element, name=name, attrs={MEANING: to_text(self.integer)})

    def rounded(self, *products: Product, offset: float | None = None) -> Expr:
        """A sum of products as an integer."""
        return self.rounder(rounding_of(self.integer), products, offset)


# --- meaning: what the kernels compute -----------------------------------------------------------


def _int32(value: Expr | int) -> Expr:
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")


def _conv2d(
    kernel: _Kernel, data: te.Tensor, weight: te.Tensor, bias: te.Tensor, *factor: te.Tensor
) -> te.Tensor:
    integer = kernel.integer
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
        return kernel.result(sums.shape, lambda i, k, y, x: sums[i, k, y, x] + bias[k], "biased")

    def element(i: Expr, k: Expr, y: Expr, x: Expr) -> Expr:
        return kernel.rounded((sums[i, k, y, x] + bias[k], factor[0](k)))

    return kernel.result(sums.shape, element, "rounded")


def _matmul(
    kernel: _Kernel, data: te.Tensor, weight: te.Tensor, bias: te.Tensor, *factor: te.Tensor
) -> te.Tensor:
    k = te.reduce_axis((0, int(weight.shape[0])), "k")

    def total(i: Expr, j: Expr) -> Expr:
        value = _int32(data[i, k]) - _int32(kernel.integer.zeros[0])
        return te.sum(value * _int32(weight[k, j]), axis=[k])

    sums = te.compute((data.shape[0], weight.shape[1]), total, name="sums")
    if not factor:
        return kernel.result(sums.shape, lambda i, j: sums[i, j] + bias[j], "biased")

    def element(i: Expr, j: Expr) -> Expr:
        return kernel.rounded((sums[i, j] + bias[j], factor[0](j)))

    return kernel.result(sums.shape, element, "rounded")


def _add(kernel: _Kernel, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    *factors, offset = kernel.integer.factors
    of_a, of_b = (tirx.const(f, "float32") for f in factors)
    at_a, at_b, shape = _broadcast(a, b)

    def element(*i: Expr) -> Expr:
        return kernel.rounded((a(*at_a(i)), of_a), (b(*at_b(i)), of_b), offset=offset)

    return kernel.result(shape, element, "integer_add")


def _multiply(kernel: _Kernel, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    factor, offset = kernel.integer.factors
    zero_a, zero_b = kernel.integer.zeros
    at_a, at_b, shape = _broadcast(a, b)

    def element(*i: Expr) -> Expr:
        product = (_int32(a[at_a(i)]) - zero_a) * (_int32(b[at_b(i)]) - zero_b)
        return kernel.rounded((product, tirx.const(factor, "float32")), offset=offset)

    return kernel.result(shape, element, "integer_multiply")


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


def _mean(kernel: _Kernel, data: te.Tensor) -> te.Tensor:
    integer = kernel.integer
    n, c, h, w, *lanes = data.shape
    axes = [te.reduce_axis((0, h), "y"), te.reduce_axis((0, w), "x")]
    bias = _int32(-integer.zeros[0] * int(h) * int(w))
    factor = tirx.const(integer.factors[0], "float32")

    def total(i: Expr, k: Expr, _y: Expr, _x: Expr, *lane: Expr) -> Expr:
        place = (i, k, *axes, *lane)
        return te.sum(_int32(data[place]), axis=axes)

    sums = te.compute((n, c, 1, 1, *lanes), total, name="sums")

    def element(*place: Expr) -> Expr:
        return kernel.rounded((sums[place] + bias, factor))

    return kernel.result(sums.shape, element, "rounded")


def _average(kernel: _Kernel, data: te.Tensor, counts: te.Tensor) -> te.Tensor:
    """Average as ONNX Runtime does: in sums of floats, whose last digits decide about halves."""
    integer = kernel.integer
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
        return replace(rounding, zero=0).round(sums[place] / count / of_result + zero)

    return te.compute(sums.shape, element, name="average")


def _round(kernel: _Kernel, *operands: te.Tensor) -> te.Tensor:
    integer = kernel.integer
    *summands, factor = operands
    beside = summands.pop() if integer.factors else None

    def factor_at(i: Sequence[Expr]) -> Expr:
        if len(factor.shape) == 1:
            return factor(i[1])
        by_pixel = len(factor.shape) == 4
        return factor(0, 0, i[2], i[3]) if by_pixel else factor(0, i[1], 0, 0, i[4])

    def element(*i: Expr) -> Expr:
        total = summands[0](*i)
        for summand in summands[1:]:
            total = total + summand[i]
        product = total, factor_at(i)
        if beside is None:
            return kernel.rounded(product)
        scale, offset = integer.factors
        return kernel.rounded(product, (beside(*i), tirx.const(scale, "float32")), offset=offset)

    return kernel.result(summands[0].shape, element, "rounded")


def _table(kernel: _Kernel, data: te.Tensor, table: te.Tensor) -> te.Tensor:
    first = -128 if data.dtype == "int8" else 0
    return kernel.result(
        data.shape, lambda *i: table[_int32(data[i]) - _int32(first)], "integer_table"
    )


def softmax_powers(scale: np.float32, length: int) -> np.ndarray:
    """Exponentials of all differences to the greatest number, whose own comes last.

    All are scaled by a factor that leaves room for the sum of ``length`` of them in float32. ONNX
    Runtime uses the same factor, so results agree to the last digit.
    """
    room = np.float32(np.log(np.float64(np.finfo("float32").max / np.float32(length))))
    first = max(0.0, float(room) - 5.0) / float(scale) - 255
    return np.exp((np.arange(256) + first) * np.float64(scale)).astype("float32")


def _softmax(kernel: _Kernel, data: te.Tensor, powers: te.Tensor) -> te.Tensor:
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
    factor = tirx.const(kernel.integer.factors[0], "float32")

    def element(*place: Expr) -> Expr:
        *i, j = place
        return rounding_of(kernel.integer).round(power(i, j) * factor / total[tuple(i)])

    return kernel.result(data.shape, element, "integer_softmax")


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
