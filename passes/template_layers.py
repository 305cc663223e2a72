"""Rewrite layers as layers that kernel templates know.

    y = matmul(x: (2, 50, 64), w)    ->   y = reshape(matmul(reshape(x, (100, 64)), w), (2, 50, 32))
    y = conv1d(x, w)                 ->   y = reshape(conv2d(reshape(x, (N, C, 1, L)), w1), ..)
    y = conv2d(x: (N, C, L, 1), w)   ->   the same: register tiles extend along rows
    y = conv2d_transpose(x, w, strides=2)
                                     ->   y = reshape(permute_dims(reshape(conv2d(x, w1))))
                                          see `quantised_layers.py`, also for conv1d_transpose
    y = matmul(subtract(astype(x, "int32"), zero), w)
                                     ->   y = integer_matmul(x, w) - zero * sum(w), for x of 8 bits

A bias and an activation that follow such a layer move before the reshapes and become its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.network.expressions import constant, count_uses, rewrite_functions, shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer
from tvm_stretch.network.operators import UNARY, kind_of
from tvm_stretch.network.properties.quantised_layers import fits, transposed_images
from tvm_stretch.network.properties.quantised_values import EIGHT_BITS
from tvm_stretch.network.rewriting import SourceRewriter

_UNARY = {f"relax.{name}" for name in UNARY - {"astype"}}
_BINARY = {"relax.add", "relax.multiply"}


@dataclass(frozen=True)
class _Layer:
    """Layers that compute a value in another shape, and how to convert the value back."""

    # layers that a template knows, or elementwise operators on their results
    values: tuple[relax.Expr, ...]
    back: Callable[..., relax.Expr]  # makes the network's value of ``values``
    axis: int  # the channel axis of the network's value
    # turns one number per channel into an operand for each of ``values``
    channels: Callable[[np.ndarray], np.ndarray]


@relax.expr_functor.mutator
class _Writer(SourceRewriter):
    """Rewrites one function; `uses` counts the readers of each value."""

    def __init__(self, mod: tvm.IRModule, uses: dict[relax.Var, int]) -> None:
        super().__init__(mod)
        self.uses = uses
        self.layers: dict[relax.Var, _Layer] = {}
        """By the operand of the last call that converts back; nothing else reads that operand."""

    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        name = getattr(call.op, "name", "")
        if name in _UNARY | _BINARY or _counts(call, name):
            layer = self.moved(call, name)
        elif name == "relax.matmul" and str(call.ty.dtype) == "int32":
            layer = self.product(call)
        elif name in _LAYERS and str(call.ty.dtype) == "float32" and _needs_rewriting(call, name):
            weight = self.constant(call.args[1])
            layer = None if weight is None else _LAYERS[name](call, weight)
        else:
            layer = None
        if layer is None:
            return None
        values = tuple(self.emit(v) for v in layer.values)
        result = self.builder_.normalize(layer.back(*values))
        self.layers[result.args[0]] = replace(layer, values=values)
        return result

    def moved(self, call: relax.Call, name: str) -> _Layer | None:
        """An elementwise call that alone reads a layer's result, as part of the layer."""
        x, *others = call.args
        layer_call = self.definition(x)
        is_call = isinstance(layer_call, relax.Call) and layer_call.args
        layer = self.layers.get(layer_call.args[0]) if is_call else None
        if layer is None or self.uses.get(x, 2) != 1 or shape_of(call) != shape_of(x):
            return None
        if name in _BINARY:
            given = self.constant(others[0])
            if given is None:
                operand = None if shape_of(others[0]) else others[0]
            else:
                operand = self.operand(layer, given, len(shape_of(call)))
            if operand is None:
                return None
            others = [operand]
        moved = (relax.Call(call.op, [v, *others], call.attrs, call.ty_args) for v in layer.values)
        return replace(layer, values=tuple(moved))

    def product(self, call: relax.Call) -> _Layer | None:
        """A product of 8-bit numbers and constants, whose zero point may be computed."""
        data, weight, zero = self.definition(call.args[0]), self.constant(call.args[1]), None
        if kind_of(data) == "subtract":
            data, zero = self.definition(data.args[0]), data.args[1]
        if kind_of(data) != "astype" or str(data.args[0].ty.dtype) not in EIGHT_BITS:
            return None
        if weight is None or (zero is not None and shape_of(zero)) or not fits(weight):
            return None
        rows = self.builder_.emit(_rows_of(data.args[0]))
        bias = constant(np.zeros(weight.shape[1], "int32"))
        operands = rows, constant(weight.astype("int8")), bias
        value: relax.Expr = integer_call(self.builder_, Integer("matmul", zeros=(0,)), *operands)
        if zero is not None:
            columns = constant(weight.sum(0, dtype="int32", keepdims=True))
            value = relax.op.subtract(value, relax.op.multiply(columns, zero))
        return _of_rows(call, value)

    def operand(self, layer: _Layer, value: np.ndarray, rank: int) -> relax.Expr | None:
        """A constant with one number, or one per channel, in the layer's shape."""
        if value.size == 1:
            return constant(value.reshape(()))
        full = (1,) * (rank - value.ndim) + value.shape
        if full[layer.axis] != value.size:
            return None
        return constant(layer.channels(value.reshape(-1)))


def _needs_rewriting(call: relax.Call, name: str) -> bool:
    """Whether templates are slow or missing for it: of 2-D convolutions, images of one column."""
    if name != "relax.nn.conv2d":
        return True
    sizes = zip(shape_of(call.args[0])[2:], shape_of(call.args[1])[2:], strict=True)
    (height, _), column = sizes
    return column == (1, 1) and height > 1


def _counts(call: relax.Call, name: str) -> bool:
    """Whether a call makes floats of sums in int32."""
    types = [str(x.ty.dtype) for x in (call, *call.args)] if name == "relax.astype" else []
    return types == ["float32", "int32"]


def _matmul(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """A product of a matrix of all rows with the weights."""
    shape = shape_of(call.args[0])
    if len(shape) < 3 or weight.ndim != 2 or 0 in shape:
        return None
    return _of_rows(call, relax.op.matmul(_rows_of(call.args[0]), constant(weight)))


def _rows_of(x: relax.Expr) -> relax.Expr:
    """All rows of a tensor as one matrix."""
    shape = shape_of(x)
    return relax.op.reshape(x, relax.ShapeExpr([prod(shape[:-1]), shape[-1]]))


def _of_rows(call: relax.Call, value: relax.Expr) -> _Layer:
    """A product of all rows, which ``call`` has in its own shape."""
    result = relax.ShapeExpr(shape_of(call))
    return _Layer(
        (value,),
        lambda value: relax.op.reshape(value, result),
        len(shape_of(call)) - 1,
        lambda numbers: numbers.reshape(1, -1),
    )


def _conv1d(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """A convolution of an image of one row."""
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCW", "OIW", "NCW"):
        return None
    return _row(call, weight[:, :, None], attrs.padding)


def _column(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """A convolution of an image of one column, as one of one row."""
    attrs = call.attrs
    top, left, bottom, right = attrs.padding
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or left or right:
        return None
    return _row(call, weight.swapaxes(2, 3), (top, bottom))


def _row(call: relax.Call, weight: np.ndarray, padding: Sequence[int]) -> _Layer:
    """A convolution along the axis after the channels, all other spatial axes being 1."""
    attrs, (batch, channels, length) = call.attrs, shape_of(call.args[0])[:3]
    row = relax.op.reshape(call.args[0], relax.ShapeExpr([batch, channels, 1, length]))
    result = relax.ShapeExpr(shape_of(call))
    begin, end = (int(p) for p in padding)
    conv = relax.op.nn.conv2d(
        row,
        constant(weight),
        strides=[1, int(attrs.strides[0])],
        padding=[0, begin, 0, end],
        dilation=[1, int(attrs.dilation[0])],
        groups=int(attrs.groups),
    )
    return _Layer((conv,), lambda value: relax.op.reshape(value, result), 1, _per_channel)


def _per_channel(numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(1, -1, 1, 1)


def _transposed(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """Convolutions that compute interleaved pixels as channels."""
    apart = any(int(d) != 1 for d in call.attrs.dilation)
    images = None if apart else transposed_images(call, weight)
    if images is None:
        return None

    batch, channels, *sizes = shape_of(call.args[0])
    row = relax.ShapeExpr([batch, channels, 1, *sizes])
    data = relax.op.reshape(call.args[0], row) if len(sizes) == 1 else call.args[0]

    def conv(image: np.ndarray) -> relax.Expr:
        padding, groups = images.padding(image), images.groups
        return relax.op.nn.conv2d(data, constant(image), padding=padding, groups=groups)

    return _Layer(
        tuple(map(conv, images.weights)),
        images.back,
        1,
        lambda numbers: _per_channel(images.per_channel(numbers)),
    )


_LAYERS = {
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv1d,
    "relax.nn.conv2d": _column,
    "relax.nn.conv1d_transpose": _transposed,
    "relax.nn.conv2d_transpose": _transposed,
}


@tvm.transform.module_pass(opt_level=0, name="TemplateLayers")
class TemplateLayers:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(
            mod, lambda mod, function: _Writer(mod, count_uses(function)).visit_expr(function)
        )
