"""Write layers as those that kernel templates know.

    y = matmul(x: (2, 50, 64), w)    ->   y = reshape(matmul(reshape(x, (100, 64)), w), (2, 50, 32))
    y = conv1d(x, w)                 ->   y = reshape(conv2d(reshape(x, (N, C, 1, L)), w1), ..)
    y = conv2d(x: (N, C, L, 1), w)   ->   the same: tiles of registers run along rows
    y = conv2d_transpose(x, w, strides=2)
                                     ->   y = reshape(permute_dims(reshape(conv2d(x, w1))))

A transposed convolution of stride s makes s x s images, each a convolution of its input, whose
pixels lie between each other: here they are channels first.  Where the stride divides the kernel
that is one convolution; elsewhere images have taps of their own, and are convolutions of their own
(taps of zero would make NaN of infinities).

A bias and an activation behind such a layer move to where it is computed, and become its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm_stretch.passes.name_operators import same_source
from tvm_stretch.targets.kernels.blocks import LONGEST

from tvm_stretch.ir.expressions import (
    constant,
    constant_value,
    count_uses,
    rewrite_functions,
    shape_of,
)
from tvm_stretch.ir.operators import UNARY

_UNARY = {f"relax.{name}" for name in UNARY - {"astype"}}
_BINARY = {"relax.add", "relax.multiply"}


@dataclass(frozen=True)
class _Layer:
    """What computes a value in another shape, and the way back.

    Attributes:
        values: layers that a template knows, or what follows them.
        back: makes the network's value of them.
        axis: of the channels, in the network's value.
        channels: makes an operand of each of `values` of one number per channel.
    """

    values: tuple[relax.Expr, ...]
    back: Callable[..., relax.Expr]
    axis: int
    channels: Callable[[np.ndarray], np.ndarray]


@relax.expr_functor.mutator
class _Writer(relax.PyExprMutator):
    """Rewrites one function; `uses` says which values nobody else reads."""

    def __init__(self, mod: tvm.IRModule, uses: dict[relax.Var, int]) -> None:
        super().__init__(mod)
        self.uses = uses
        self.source = ""
        self.layers: dict[relax.Var, _Layer] = {}
        """By what the last call of the way back reads, which nothing else does."""

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Whatever is emitted for a binding comes from the same operator of the frontend."""
        self.source = same_source(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name in _UNARY | _BINARY:
            layer = self.moved(call, name)
        elif name in _LAYERS and str(call.ty.dtype) == "float32" and _is_other(call, name):
            weight = constant_value(call.args[1], self.definition)
            layer = None if weight is None else _LAYERS[name](call, weight)
        else:
            layer = None
        if layer is None:
            return call
        values = tuple(self.builder_.emit(v, name_hint=self.source) for v in layer.values)
        result = self.builder_.normalize(layer.back(*values))
        self.layers[result.args[0]] = replace(layer, values=values)
        return result

    def moved(self, call: relax.Call, name: str) -> _Layer | None:
        """An elementwise call behind a layer whose result nobody else reads."""
        x, *others = call.args
        made = self.definition(x)
        known = isinstance(made, relax.Call) and made.args
        layer = self.layers.get(made.args[0]) if known else None
        if layer is None or self.uses.get(x, 2) != 1 or shape_of(call) != shape_of(x):
            return None
        if name in _BINARY:
            given = constant_value(others[0], self.definition)
            operand = None if given is None else self.operand(layer, given, len(shape_of(call)))
            if operand is None:
                return None
            others = [operand]
        moved = (relax.Call(call.op, [v, *others], call.attrs, call.ty_args) for v in layer.values)
        return replace(layer, values=tuple(moved))

    def operand(self, layer: _Layer, value: np.ndarray, rank: int) -> relax.Expr | None:
        """A constant of one number, or one per channel, for the layer's shape."""
        if value.size == 1:
            return constant(value.reshape(()))
        full = (1,) * (rank - value.ndim) + value.shape
        if full[layer.axis] != value.size:
            return None
        return constant(layer.channels(value.reshape(-1)))

    def definition(self, x: relax.Expr) -> Any:
        return self.lookup_binding(x) if isinstance(x, relax.Var) else x


def _is_other(call: relax.Call, name: str) -> bool:
    """Whether no template takes it well as it is: of images, only those of one column."""
    if name != "relax.nn.conv2d":
        return True
    sizes = zip(shape_of(call.args[0])[2:], shape_of(call.args[1])[2:], strict=True)
    (height, _), column = sizes
    return column == (1, 1) and height > 1


def _matmul(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """A matrix of all rows, times the weights."""
    shape = shape_of(call.args[0])
    if len(shape) < 3 or weight.ndim != 2 or 0 in shape:
        return None
    rows = relax.op.reshape(call.args[0], relax.ShapeExpr([prod(shape[:-1]), shape[-1]]))
    result = relax.ShapeExpr(shape_of(call))
    return _Layer(
        (relax.op.matmul(rows, constant(weight)),),
        lambda value: relax.op.reshape(value, result),
        len(shape) - 1,
        lambda numbers: numbers.reshape(1, -1),
    )


def _conv1d(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """An image of one row."""
    attrs = call.attrs
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCW", "OIW", "NCW"):
        return None
    if weight.shape[2] > LONGEST:
        return None
    return _row(call, weight[:, :, None], attrs.padding)


def _column(call: relax.Call, weight: np.ndarray) -> _Layer | None:
    """An image of one column, as one of one row."""
    attrs = call.attrs
    top, left, bottom, right = attrs.padding
    if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or left or right:
        return None
    return _row(call, weight.swapaxes(2, 3), (top, bottom))


def _row(call: relax.Call, weight: np.ndarray, padding: Sequence[int]) -> _Layer:
    """A convolution along the first axis behind the channels, the only one that is not 1."""
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
    """A convolution that makes the pixels between as channels; see the module docstring."""
    attrs, shape = call.attrs, shape_of(call)
    strides = [int(s) for s in attrs.strides]
    kernel = weight.shape[2:]
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "IOHW", "NCHW"):
        return None
    if any(int(d) != 1 for d in attrs.dilation) or 0 in shape:
        return None
    if any(k < s for k, s in zip(kernel, strides, strict=True)):
        return None
    begin, groups = [int(p) for p in attrs.padding[:2]], int(attrs.groups)
    sizes = shape_of(call.args[0])[2:]
    ways = [_way(*axis) for axis in zip(sizes, kernel, strides, begin, shape[2:], strict=True)]
    together = all(k % s == 0 for k, s in zip(kernel, strides, strict=True))
    if together:
        images = [_images(weight, strides, groups)]
    else:
        places = ((y, x) for y in range(strides[0]) for x in range(strides[1]))
        parts = (weight[:, :, y :: strides[0], x :: strides[1]] for y, x in places)
        images = [_images(part, [1, 1], groups) for part in parts]

    def conv(image: np.ndarray) -> relax.Expr:
        taps = zip(image.shape[2:], ways, strict=True)
        padding = [t - 1 - way.left_out for t, way in taps] + [way.after for way in ways]
        return relax.op.nn.conv2d(call.args[0], constant(image), padding=padding, groups=groups)

    def back(*values: relax.Expr) -> relax.Expr:
        value = values[0] if together else relax.op.concat(list(values), axis=1)
        return _between(value, shape, ways, strides, together)

    each = prod(strides) if together else 1
    return _Layer(
        tuple(map(conv, images)), back, 1, lambda numbers: _per_channel(np.repeat(numbers, each))
    )


def _between(
    value: relax.Expr,
    shape: Sequence[int],
    ways: Sequence[_Way],
    strides: Sequence[int],
    channels_first: bool,
) -> relax.Expr:
    """Pixels of ``strides`` images, which are channels of ``value``, between each other."""
    counts = [way.count for way in ways]
    if channels_first:
        split, axes = [*shape[:2], *strides, *counts], [0, 1, 4, 2, 5, 3]
    else:
        split, axes = [shape[0], *strides, shape[1], *counts], [0, 3, 4, 1, 5, 2]
    apart = relax.op.permute_dims(relax.op.reshape(value, relax.ShapeExpr(split)), axes)
    whole = [c * s for c, s in zip(counts, strides, strict=True)]
    image = relax.op.reshape(apart, relax.ShapeExpr([*shape[:2], *whole]))
    if whole == list(shape[2:]):
        return image
    first = [way.skip for way in ways]
    end = [f + size for f, size in zip(first, shape[2:], strict=True)]
    return relax.op.strided_slice(image, [2, 3], first, end)


@dataclass(frozen=True)
class _Way:
    """Of one axis.

    Attributes:
        left_out: pixels of each image before the first that is computed.
        after: padding behind the input.
        count: pixels of each image.
        skip: pixels of the result that go first.
    """

    left_out: int
    after: int
    count: int
    skip: int


def _way(size: int, kernel: int, stride: int, cut: int, out: int) -> _Way:
    """Results that ``cut`` leaves out are not computed, but for those that share a pixel."""
    left_out = min(cut // stride, max(kernel // stride, 1) - 1)
    skip = cut - left_out * stride
    after = max(-(-(skip + out) // stride) + left_out - size, 0)
    return _Way(left_out, after, size - left_out + after, skip)


def _images(weight: np.ndarray, strides: list[int], groups: int) -> np.ndarray:
    """(I, O / g, kh, kw)  ->  (O * sh * sw, I / g, kh / sh, kw / sw), taps from the end."""
    (inputs, outputs, height, width), (down, right) = weight.shape, strides
    split = weight.reshape(
        groups, inputs // groups, outputs, height // down, down, width // right, right
    )
    flipped = split[:, :, :, ::-1, :, ::-1]
    ordered = flipped.transpose(0, 2, 4, 6, 1, 3, 5)
    return ordered.reshape(-1, inputs // groups, height // down, width // right)


_LAYERS = {
    "relax.matmul": _matmul,
    "relax.nn.conv1d": _conv1d,
    "relax.nn.conv2d": _column,
    "relax.nn.conv2d_transpose": _transposed,
}


@tvm.transform.module_pass(opt_level=0, name="TemplateLayers")
class TemplateLayers:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite every Relax function of ``mod``."""
        return rewrite_functions(
            mod, lambda mod, function: _Writer(mod, count_uses(function)).visit_expr(function)
        )
