"""Re-emit the operators of one function with a layout for each value.

    y = R.nn.conv2d(x, w)   ->   y5 = R.call_tir(conv, (x5, w5))     # x5: x in blocks, made once
    z = R.reshape(y, ...)   ->   z = R.reshape(unblock(y5), ...)     # only where it must be plain

`block_channels.py` decides which functions are rewritten, and the layouts of parameters and
results.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.ir import GenericConst, Op

from tvm_stretch.network.emitting.blocked_layouts import (
    Layouts,
    Made,
    Value,
    blocked_take,
    images_between,
    is_f32,
    same_pixels,
    static_shape,
)
from tvm_stretch.network.emitting.blocked_rows import normalised_rows, on_rows
from tvm_stretch.network.emitting.weights import half_weight
from tvm_stretch.network.expressions import bindings_of, count_uses, shape_of
from tvm_stretch.network.operators import BINARY, LAYOUT, UNARY, kind_of
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.layers import (
    MeanShape,
    conv_shape,
    picked_pixels,
    pool_shape,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose

# Padding lanes hold the results of these for 0. They must stay finite: the next layer adds 0 times
# them.
_UNARY = UNARY - {"astype", "log", "rsqrt"}
_FULL_LANES_ONLY = {"divide", "exp", "nn.softplus", "sqrt"}
"""Not finite for some numbers, such as ``relu(x) - 5`` makes of 0: blocked only without padding."""
_MOVES = {"reshape", "permute_dims"}
_BINARY = BINARY - {"power"}


class Rewriter(Layouts):
    """Re-emits the bindings of one function, choosing a layout for each value."""

    def __init__(
        self, machine: VectorMachine, bb: relax.BlockBuilder, halves: bool = False
    ) -> None:
        super().__init__(machine, bb)
        self.halves = halves  # see `weights.py`
        self.names: dict[relax.Var, str] = {}
        self.moves: dict[relax.Var, relax.Call] = {}
        """By result: reshapes, transpositions, and unary operators that may lie between them."""
        self.uses: dict[relax.Var, int] = {}
        self.weights: set[relax.Expr] = set()
        self.definitions: dict[relax.Var, relax.Expr] = {}
        self.readers: dict[relax.Expr, list[relax.Call]] = {}
        """By value: the calls that read it."""
        self.rows: set[relax.Expr] = set()
        """Results of dense layers that are plain matrices."""
        self.converted = False

    def bind_all(self, function: relax.Function) -> None:
        """Re-emit every binding of ``function``."""
        self.uses = count_uses(function)
        self.weights = _weights(function)
        self.definitions = {binding.var: binding.value for binding in bindings_of(function)}
        for value in self.definitions.values():
            for arg in value.args if isinstance(value, relax.Call) else ():
                self.readers.setdefault(self.definitions.get(arg), []).append(value)
        for binding in bindings_of(function):
            self._bind(binding.var, binding.value)

    def _bind(self, var: relax.Var, value: relax.Expr) -> None:
        if value in self.values:
            self.values[var] = self.values[value]
            return
        if kind_of(value) in _MOVES or (kind_of(value) in _UNARY and self.uses.get(var) == 1):
            self.moves[var] = value
        result = self._blocked_call(value) if isinstance(value, relax.Call) else None
        self.converted |= result is not None
        if result is None:
            plain = self.bb.emit(self.plain(value), name_hint=var.name)
            result = Value(static_shape(var), plain=plain)
        else:
            layouts = (result.named, result.blocked, result.plain)
            layout = next(value for value in layouts if value is not None)
            if isinstance(layout, relax.Var):
                self.names.setdefault(layout, var.name)
        self.values[var] = result

    def is_float(self, expr: relax.Expr) -> bool:
        """Whether templates of layers compute this type of numbers."""
        dtype = str(expr.ty.dtype)
        return dtype == "float32" or (dtype == "float16" and self.machine.half)

    def is_number(self, expr: relax.Expr) -> bool:
        """Whether blocks may hold such numbers: floats, or sums of integers."""
        return self.is_float(expr) or str(expr.ty.dtype) == "int32"

    def _blocked_call(self, call: relax.Call) -> Value | None:
        """The call on blocked operands, or None if it needs the plain layout."""
        if not isinstance(call.op, Op) or not isinstance(call.ty, relax.TensorType):
            return None
        rule = LAYOUT.get(kind_of(call))
        value = None if rule is None else rule(self, call)
        return Value(static_shape(call), blocked=value) if isinstance(value, relax.Expr) else value

    def half(self, call: relax.Call) -> GenericConst | None:
        """The weights of a call in two bytes, if the kernels may read such weights."""
        return half_weight(call) if self.halves else None

    def view(self, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """``x`` in another shape, if it has another one."""
        return x if tuple(shape_of(x)) == shape else self.bb.emit(relax.op.reshape(x, shape))

    def stays_finite(self, call: relax.Call, channels: int) -> bool:
        """Whether the lanes that pad the channels hold finite numbers after the call."""
        return kind_of(call) not in _FULL_LANES_ONLY or channels % self.lanes == 0

    def broadcast_operand(self, arg: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
        """An operand of a blocked result of ``shape``; None if it cannot be in blocks."""
        own = tuple(shape_of(arg))
        if isinstance(arg, GenericConst):
            if int(np.prod(own)) == 1:
                return relax.const(arg.value.numpy().reshape(()))
            aligned = (1,) * (len(shape) - len(own)) + own
            if aligned[1] == 1 != shape[1] and len(shape) == 4:  # the same for all channels
                return relax.const(arg.value.numpy().reshape(*aligned, 1))
            return self.blocked_constant(arg, aligned) if aligned[1] == shape[1] else None
        if not own:
            return self.plain(relax.Tuple([arg])).fields[0]
        if len(own) != len(shape) or own[1] != shape[1]:
            return None
        return self.blocked(arg)


@LAYOUT("nn.conv2d")
def _conv2d(r: Rewriter, call: relax.Call) -> Made:
    data, weight = call.args
    if not isinstance(weight, GenericConst) or not r.is_float(call):
        return None
    attrs, sums = call.attrs, str(call.ty.dtype)
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
        return None
    shape = conv_shape(call)
    if shape is None or (shape.is_long and r.machine.kind != "core"):
        return None
    value = r.values[data]
    if value.blocked is None and shape.in_channels < r.lanes and shape.groups == 1:
        operand, block = value.plain, 1
    else:
        operand, block = r.blocked(data), r.lanes
    if shape.is_long and any(shape.padding):
        top, left, bottom, right = shape.padding
        lane = [0, 0] if block > 1 else []
        widths = [0, 0, 0, 0, top, bottom, left, right, *lane]
        operand, shape = r.bb.emit(relax.op.nn.pad(operand, widths)), shape.padded()
    weight = r.half(call) or weight
    return blocks.convolution(r.bb, r.machine, shape, operand, weight, block, sums)


@LAYOUT("take")
def _take(r: Rewriter, call: relax.Call) -> Made:
    """Pixels, or rows of a table in two bytes."""
    pixels = blocked_take(r, call)
    if pixels is not None:
        return pixels
    half = r.half(call)
    if half is None:
        return None
    attrs = call.attrs
    rows = relax.op.take(half, r.plain(call).args[1], attrs.axis, str(attrs.mode))
    wide = r.bb.emit(relax.op.astype(r.bb.emit(rows), "float32"))
    return Value(static_shape(call), plain=wide)


@LAYOUT("nn.max_pool2d", "nn.avg_pool2d")
def _pool(r: Rewriter, call: relax.Call) -> Made:
    if not r.is_blocked(call.args[0]) or call.attrs.layout != "NCHW":
        return None
    operand = r.blocked(call.args[0])
    if (stride := picked_pixels(call)) is not None:
        return blocks.subsample(r.bb, stride, operand)
    return choose(pool_shape(call), r.machine).call(r.bb, operand)


@LAYOUT("mean")
def _mean(r: Rewriter, call: relax.Call) -> Made:
    axes = call.attrs.axis
    if not r.is_blocked(call.args[0]) or axes is None or len(shape_of(call.args[0])) != 4:
        return None
    if sorted(int(a) % 4 for a in axes) != [2, 3]:
        return None
    x = r.blocked(call.args[0])
    template = choose(MeanShape(tuple(shape_of(x))), r.machine) if is_f32(call) else None
    if template is not None:
        return template.call(r.bb, x)
    return r.bb.emit(relax.op.mean(x, [2, 3], keepdims=True))


@LAYOUT(*_UNARY, "astype")
def _unary(r: Rewriter, call: relax.Call) -> Made:
    is_constant = r.is_float(call) and r.is_number(call.args[0])
    if kind_of(call) == "astype" and not is_constant:
        return None
    if not r.is_blocked(call.args[0]) or not r.stays_finite(call, shape_of(call)[1]):
        return None
    return r.bb.emit(_with_operand(r.blocked(call.args[0]), call))


@LAYOUT(*_BINARY)
def _binary(r: Rewriter, call: relax.Call) -> Made:
    """An operator of two blocked operands: same shape, one number a channel, or one number."""
    if (norm := normalised_rows(r, call)) is not None:
        return norm
    if not any(r.is_blocked(arg) for arg in call.args) or not r.is_number(call):
        return on_rows(r, call)
    shape = tuple(shape_of(call))
    if len(shape) not in (2, 4) or not r.stays_finite(call, shape[1]):
        return None
    operands = [r.broadcast_operand(arg, shape) for arg in call.args]
    if any(operand is None for operand in operands):
        return None
    return r.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))


@LAYOUT("reshape")
def _reshape(r: Rewriter, call: relax.Call) -> Made:
    """(N, C, 1, 1) <-> (N, C): the same bytes if blocks are full and N is 1."""
    if not r.is_blocked(call.args[0]):
        return _moved(r, call)
    old, new = tuple(shape_of(call.args[0])), tuple(shape_of(call))
    if {len(old), len(new)} != {2, 4} or old[0] != 1 or new[0] != 1:
        return None
    if old[1] != new[1] or set(old[2:] + new[2:]) != {1}:
        return None
    return r.blocked(call.args[0])


@LAYOUT("permute_dims")
def _moved(r: Rewriter, call: relax.Call) -> Made:
    """A matrix (M, C) as an image of M pixels, or back: in blocks of channels a view.

    y = reshape(permute_dims(reshape(x: (M, C), (1, M, C)), [0, 2, 1]), (1, C, H, W))

    Or several images whose pixels are interleaved (`quantised_layers.py`). Elementwise
    operators in between move before the reshapes, into the kernel that computes the blocks.
    """
    path: list[relax.Var] = []
    source = call.args[0]
    while source in r.moves and not r.is_blocked(source):
        path.insert(0, source)
        source = r.moves[source].args[0]
    steps, new = [r.moves[var] for var in path], tuple(shape_of(call))
    if not r.is_blocked(source):
        return None
    channels = r.values[source].shape[1]
    if not all(r.stays_finite(step, channels) for step in steps):
        return None
    old = r.values[source].shape
    between = images_between(old, new, [*steps, call])
    if between is None and not same_pixels(old, new, [*steps, call]):
        return None
    value = r.blocked(source)
    for var, step in zip(path, steps, strict=True):
        if kind_of(step) not in _MOVES:
            value = r.bb.emit(_with_operand(value, step))
            r.names[value] = var.name
    if between is not None:
        value = blocks.interleave(r.bb, value, new, between)
        is_plain = new[1] % r.lanes > 0
        return Value(new, plain=value) if is_plain else value
    return r.bb.emit(relax.op.reshape(value, blocks.blocked_shape(new, r.lanes)))


def _with_operand(value: relax.Expr, call: relax.Call) -> relax.Call:
    """``call`` with another first operand."""
    return relax.Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args)


def _weights(function: relax.Function) -> set[relax.Expr]:
    """Values that only matrix products read, perhaps moved: added to larger numbers there."""
    otherwise = set(relax.analysis.free_vars(function.body.body))
    weights: set[relax.Expr] = set()
    for binding in reversed([*bindings_of(function)]):
        kind, is_weight = kind_of(binding.value), binding.var not in otherwise
        if is_weight:
            weights.add(binding.value)
        if kind != "matmul" and not (is_weight and kind in _MOVES):
            otherwise.update(relax.analysis.free_vars(binding.value))
    return weights
