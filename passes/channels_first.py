"""Compute channels-last feature maps (NHWC, as TensorFlow Lite has them) with channels first.

    lv = conv2d(x, w, NHWC, HWIO)      x1 = permute_dims(x, [0, 3, 1, 2])
    lv1 = relu(lv)                ->   lv = conv2d(x1, w1, NCHW, OIHW)
                                       lv1 = permute_dims(relu(lv), [0, 2, 3, 1])

Everything after this pass, kernel templates first of all, knows one layout. A transpose moves from
the operand of an operator to its result wherever the operator can be computed with channels first,
so that the transposes of neighbours meet and vanish; those of inputs and results remain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import axes_of, constant, rewrite_functions, shape_of
from tvm_stretch.network.operators import POINTWISE, Column, kind_of
from tvm_stretch.network.properties.integer_summary import calls_of
from tvm_stretch.network.rewriting import SourceRewriter
from tvm_stretch.passes.simplify_operators import SimplifyOperators

_LAYERS = {f"nn.{kind}{rank}d" for kind in ("conv", "max_pool", "avg_pool") for rank in (1, 2, 3)}
_LAYERS |= {"nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose", "image.resize2d"}
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_REDUCTIONS = {"mean", "sum", "max", "min", "prod", "argmax", "argmin"}


@tvm.transform.module_pass(opt_level=0, name="ChannelsFirst")
class ChannelsFirst:
    """See the module docstring. A network without channels-last layers stays as it is."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        if not any(_is_channels_last(binding.value) for _, binding in calls_of(mod["main"])):
            return mod
        mod = rewrite_functions(mod, lambda mod, function: _Mover(mod).visit_expr(function))
        simplify: tvm.transform.Pass = SimplifyOperators()
        return simplify(mod)  # constants and transposes that the layout leaves


def _is_channels_last(call: relax.Expr) -> bool:
    return kind_of(call) in _LAYERS and _layout(call).endswith("C")


def _layout(call: relax.Call) -> str:
    attrs = call.attrs
    return str(attrs.data_layout if hasattr(attrs, "data_layout") else attrs.layout)


def _first(rank: int) -> list[int]:
    """The order of axes that brings the channels to the front."""
    return [0, rank - 1, *range(1, rank - 1)]


def _last(rank: int) -> list[int]:
    """The order of axes that brings the channels back to the end."""
    return [0, *range(2, rank), 1]


def _changed(call: relax.Call, args: list[relax.Expr], **changes: Any) -> relax.Call:
    """The same operator on other operands, with some attributes changed."""
    if call.attrs is None:
        return relax.Call(call.op, args, None, call.ty_args)
    info = type(call.attrs).__tvm_ffi_type_info__
    kept = {field.name: getattr(call.attrs, field.name) for field in info.fields}
    attrs = tvm.ir.make_node(info.type_key, **{**kept, **changes})
    return relax.Call(call.op, args, attrs, call.ty_args)


_RULES = Column()  # (mover, call) -> the call with channels first


@relax.expr_functor.mutator
class _Mover(SourceRewriter):
    """A rule returns None if the operator stays as it is."""

    rules = _RULES

    def moved(self, x: relax.Expr) -> relax.Expr | None:
        """The tensor with channels first of which ``x`` is the transpose."""
        call, rank = self.definition(x), len(shape_of(x))
        if kind_of(call) != "permute_dims" or rank < 3:
            return None
        return call.args[0] if axes_of(call) == _last(rank) else None

    def move(self, x: relax.Expr, rank: int) -> relax.Expr:
        """``x``, which may have fewer than ``rank`` axes, with channels first."""
        shape = shape_of(x)
        if not shape:
            return x
        moved = self.moved(x) if len(shape) == rank else None
        if moved is not None:
            return moved
        full = [1] * (rank - len(shape)) + shape
        value = self.constant(x)
        if value is not None:
            return constant(value.reshape(full).transpose(_first(rank)))
        if full != shape:
            x = self.emit(relax.op.reshape(x, relax.ShapeExpr(full)))
        return self.emit(relax.op.permute_dims(x, _first(rank)))

    def back(self, value: relax.Call) -> relax.Expr:
        """The result of an operator with channels first, for readers that expect them last."""
        value_first = self.emit(value)
        return relax.op.permute_dims(value_first, _last(len(shape_of(value_first))))

    def weight(self, x: relax.Expr, order: list[int]) -> relax.Expr:
        """A weight with its axes in another order; one in integers stays dequantised."""
        call = self.definition(x)
        data = self.constant(call.args[0]) if kind_of(call) == "dequantize" else None
        if data is None:
            return self.emit(relax.op.permute_dims(x, order))
        axis = order.index(int(call.attrs.axis) % data.ndim)
        operands = [constant(data.transpose(order)), *call.args[1:]]
        return self.emit(_changed(call, operands, axis=axis))


@_RULES(*_LAYERS)
def layer(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """Convolutions, pools and resizing say which layout they read."""
    rank = len(shape_of(call))
    if not _is_channels_last(call):
        return None
    operands = [s.move(call.args[0], rank), *call.args[1:]]
    wanted = "NC" + _layout(call)[1:-1]
    if kind_of(call) == "image.resize2d":
        return s.back(_changed(call, operands, layout=wanted))
    if not hasattr(call.attrs, "kernel_layout"):
        return s.back(_changed(call, operands, layout=wanted, out_layout=wanted))
    given = str(call.attrs.kernel_layout)
    kernel = ("IO" if "transpose" in kind_of(call) else "OI") + wanted[2:]
    operands[1] = s.weight(operands[1], [given.index(axis) for axis in kernel])
    layouts = {"data_layout": wanted, "kernel_layout": kernel, "out_layout": wanted}
    return s.back(_changed(call, operands, **layouts))


@_RULES(*POINTWISE, *_COMPARISONS, "where")
def pointwise(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """Element by element, with operands that are broadcast."""
    rank = len(shape_of(call))
    if not any(s.moved(x) is not None and len(shape_of(x)) == rank for x in _tensors(call)):
        return None
    operands = [s.move(x, rank) if _is_tensor(x) else x for x in call.args]
    return s.back(_changed(call, operands))


def _is_tensor(x: relax.Expr) -> bool:
    return isinstance(x.ty, relax.TensorType)


def _tensors(call: relax.Call) -> list[relax.Expr]:
    return [x for x in call.args if _is_tensor(x)]


@_RULES("nn.softmax", "nn.log_softmax", "nn.prelu", "quantize", "dequantize")
def along_axis(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """Operators with one axis that they number: softmax, prelu, (de)quantising."""
    x = s.moved(call.args[0])
    if x is None:
        return None
    axis = _axis(int(call.attrs.axis), len(shape_of(x)))
    return s.back(_changed(call, [x, *call.args[1:]], axis=axis))


def _axis(axis: int, rank: int) -> int:
    """Where an axis of a channels-last tensor is when the channels come first."""
    return _first(rank).index(axis % rank)


@_RULES("concat")
def concat(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """Parts that have no version with channels first get a transpose."""
    parts = s.definition(call.args[0])
    if not isinstance(parts, relax.Tuple) or all(s.moved(part) is None for part in parts.fields):
        return None
    rank = len(shape_of(call))
    axis = _axis(int(call.attrs.axis), rank)
    return s.back(_changed(call, [relax.Tuple([s.move(p, rank) for p in parts.fields])], axis=axis))


@_RULES("nn.pad")
def pad(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """The widths of the padding take the new order of the axes."""
    x = s.moved(call.args[0])
    if x is None:
        return None
    widths = np.array([int(w) for w in call.attrs.pad_width]).reshape(-1, 2)
    order = _first(len(widths))
    return s.back(_changed(call, [x], pad_width=[int(w) for w in widths[order].reshape(-1)]))


@_RULES("strided_slice")
def strided_slice(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """A slice names its axes."""
    x, rank = s.moved(call.args[0]), len(shape_of(call))
    if x is None:
        return None
    axes = [relax.prim_value(_axis(int(axis.value), rank)) for axis in call.args[1].fields]
    return s.back(_changed(call, [x, relax.Tuple(axes), *call.args[2:]]))


@_RULES(*_REDUCTIONS)
def reduction(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """Without ``keepdims`` the axes that are left must have the same order in both layouts."""
    x = s.moved(call.args[0])
    if x is None or call.attrs.axis is None:
        return None
    rank, given = len(shape_of(x)), call.attrs.axis
    single = isinstance(given, int)
    axes = [_axis(int(axis), rank) for axis in ([given] if single else given)]
    reduced = _changed(call, [x], axis=axes[0] if single else sorted(axes))
    if call.attrs.keepdims:
        return s.back(reduced)
    left = [_last(rank).index(axis) for axis in range(rank) if axis not in axes]
    return reduced if left == sorted(left) else None


@_RULES("reshape")
def reshape(s: _Mover, call: relax.Call) -> relax.Expr | None:
    """A reshape of a weight in integers, or of a tensor that has nothing but channels."""
    x, shape = s.moved(call.args[0]), shape_of(call)
    if x is not None and all(size == 1 for size in shape_of(x)[2:]):
        return relax.op.reshape(x, relax.ShapeExpr(shape))
    inner = s.definition(call.args[0])
    if kind_of(inner) != "dequantize" or not isinstance(inner.args[0], GenericConst):
        return None
    data = inner.args[0].value.numpy()
    axis = int(inner.attrs.axis) % data.ndim
    before, size = int(np.prod(data.shape[:axis])), data.shape[axis]
    places = [i for i in range(len(shape)) if int(np.prod(shape[:i])) == before]
    axis = next((i for i in places if shape[i] == size), -1)
    if axis < 0:
        return None
    return _changed(inner, [constant(data.reshape(shape)), *inner.args[1:]], axis=axis)
