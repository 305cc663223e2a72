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

from tvm_stretch.network.emitting.attention import AttentionReader
from tvm_stretch.network.emitting.blocked_integers import blocked_integer
from tvm_stretch.network.emitting.blocked_layouts import Layouts, Value, static_shape
from tvm_stretch.network.emitting.blocked_moves import (
    becomes_image,
    blocked_concat,
    blocked_pad,
    blocked_slice,
    blocked_take,
    images_between,
    same_pixels,
)
from tvm_stretch.network.emitting.half_weights import half_weight
from tvm_stretch.network.emitting.normalisations import normalised
from tvm_stretch.network.emitting.winograd_stage import stage_of
from tvm_stretch.network.expressions import count_uses, shape_of
from tvm_stretch.network.operators import BINARY, UNARY, kind_of
from tvm_stretch.targets.cpu.kernels.bfloat import BfloatShape
from tvm_stretch.targets.cpu.kernels.matmul import MatmulShape
from tvm_stretch.targets.cpu.kernels.norm import NormShape
from tvm_stretch.targets.cpu.kernels.softmax import SoftmaxShape
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.layers import conv_shape, dense_shape, picked_pixels, pool_shape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.opencl.kernels.mean import MeanShape

# Padding lanes hold the results of these for 0. They must stay finite: the next layer adds 0 times
# them.
_UNARY = UNARY - {"astype", "log", "rsqrt"}
_FULL_LANES_ONLY = {"exp", "nn.softplus", "sqrt"}
"""Not finite for some numbers, such as ``relu(x) - 5`` makes of 0: blocked only without padding."""
_COLLIDING = 8192
"""If blocks of a pixel are a multiple of this number apart, they share few sets of the caches;
then dense layers are faster in rows (1,024 pixels, 1,536 inputs: 0.68 of the time)."""
_WAYS = 12
"""Blocks that a set of the first cache holds."""
_MOVES = {"reshape", "permute_dims"}
_BINARY = BINARY - {"divide", "power"}


class Rewriter(Layouts):
    """Re-emits the bindings of one function, choosing a layout for each value."""

    def __init__(
        self, machine: VectorMachine, bb: relax.BlockBuilder, halves: bool = False
    ) -> None:
        super().__init__(machine, bb)
        self.halves = halves  # see `half_weights.py`
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
        self.definitions = {
            binding.var: binding.value
            for group in function.body.blocks
            for binding in group.bindings
        }
        for value in self.definitions.values():
            for arg in value.args if isinstance(value, relax.Call) else ():
                self.readers.setdefault(self.definitions.get(arg), []).append(value)
        for group in function.body.blocks:
            for binding in group.bindings:
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
            made = next(value for value in layouts if value is not None)
            if isinstance(made, relax.Var):
                self.names.setdefault(made, var.name)
        self.values[var] = result

    def _is_float(self, expr: relax.Expr) -> bool:
        """Whether templates of layers compute this type of numbers."""
        dtype = str(expr.ty.dtype)
        return dtype == "float32" or (dtype == "float16" and self.machine.half)

    def _is_number(self, expr: relax.Expr) -> bool:
        """Whether blocks may hold such numbers: floats, or sums of integers."""
        return self._is_float(expr) or str(expr.ty.dtype) == "int32"

    def _blocked_call(self, call: relax.Call) -> Value | None:
        """The call on blocked operands, or None if it needs the plain layout."""
        if not isinstance(call.op, Op) or not isinstance(call.ty, relax.TensorType):
            return None
        name = kind_of(call)
        if name.startswith("integer."):
            made = blocked_integer(self, call)
            return None if made is None else Value(tuple(shape_of(call)), blocked=made)
        handlers = {
            "nn.conv2d": self._conv2d,
            "matmul": self._matmul,
            "nn.softmax": self._softmax,
            "divide": self._normalised,
            "nn.max_pool2d": self._pool,
            "nn.avg_pool2d": self._pool,
            "mean": self._mean,
            "concat": self._concat,
            "strided_slice": self._slice,
            "nn.pad": self._pad,
            "reshape": self._reshape,
            "permute_dims": self._moved,
            "call_tir": self._winograd,
            "take": self._take,
        }
        if name in _UNARY or (
            name == "astype" and self._is_float(call) and self._is_number(call.args[0])
        ):
            return self._unary(call)
        if name in _BINARY:
            return self._binary(call)
        return handlers[name](call) if name in handlers else None

    def _conv2d(self, call: relax.Call) -> Value | None:
        data, weight = call.args
        if not isinstance(weight, GenericConst) or not self._is_float(call):
            return None
        attrs, sums = call.attrs, str(call.ty.dtype)
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
            return None
        shape = conv_shape(call)
        if shape is None or (shape.is_long and self.machine.kind != "core"):
            return None
        value = self.values[data]
        if value.blocked is None and shape.in_channels < self.lanes and shape.groups == 1:
            operand, block = value.plain, 1
        else:
            operand, block = self.blocked(data), self.lanes
        if shape.is_long and any(shape.padding):
            top, left, bottom, right = shape.padding
            lane = [0, 0] if block > 1 else []
            widths = [0, 0, 0, 0, top, bottom, left, right, *lane]
            operand, shape = self.bb.emit(relax.op.nn.pad(operand, widths)), shape.padded()
        weight = self._half(call) or weight
        result = blocks.convolution(self.bb, self.machine, shape, operand, weight, block, sums)
        return Value(tuple(shape_of(call)), blocked=result)

    def _half(self, call: relax.Call) -> GenericConst | None:
        """The weights of a call in two bytes, if the kernels may read such weights."""
        return half_weight(call) if self.halves else None

    def _take(self, call: relax.Call) -> Value | None:
        """Pixels, or rows of a table in two bytes."""
        pixels = blocked_take(self, call)
        if pixels is not None:
            return Value(tuple(shape_of(call)), blocked=pixels)
        half = self._half(call)
        if half is None:
            return None
        attrs = call.attrs
        rows = relax.op.take(half, self.plain(call).args[1], attrs.axis, str(attrs.mode))
        wide = self.bb.emit(relax.op.astype(self.bb.emit(rows), "float32"))
        return Value(tuple(shape_of(call)), plain=wide)

    def _winograd(self, call: relax.Call) -> Value | None:
        """A stage of a Winograd convolution (`passes/share_winograd.py`)."""
        stage = stage_of(self.bb.get()[call.args[0]])
        if stage is None:
            return None
        config = stage.config(self.machine)
        data, *weight = call.args[1].fields
        result = config.call(self.bb, self.blocked(data), *weight)
        return Value(tuple(shape_of(call)), blocked=result)

    def _matmul(self, call: relax.Call) -> Value | None:
        data, weight = call.args
        if not isinstance(weight, GenericConst):
            if not _is_f32(call):
                return None
            if (attention := self._attention(call)) is not None:
                return attention
            template = choose(
                MatmulShape(*(tuple(shape_of(arg)) for arg in call.args)), self.machine.plain
            )
            if template is None:
                return None
            plain = template.call(self.bb, *self.plain(call).args)
            return Value(tuple(shape_of(call)), plain=plain)
        shape = tuple(shape_of(data))
        if len(shape) != 2 or len(shape_of(weight)) != 2 or not isinstance(data, relax.Var):
            return None
        if not self._is_float(call):
            return None
        sums = str(call.ty.dtype)
        weight = self._half(call) or weight
        bfloat = choose(BfloatShape(*shape, shape_of(weight)[1]), self.machine)
        if bfloat is not None:
            result = bfloat.call(self.bb, self.plain(call).args[0], weight)
            self.rows.add(result)
            return Value(tuple(shape_of(call)), plain=result)
        layer = dense_shape(shape, shape_of(weight)[1])
        template = choose(layer, self.machine.summing(sums), self.lanes)
        pixels = self.is_blocked(data) or becomes_image(call, self.readers)
        collide = shape[0] * self.lanes % _COLLIDING == 0
        collide = collide and max(shape_of(weight)) > _WAYS * self.lanes
        in_blocks = self.machine.kind == "dsp" or (pixels and not collide)
        rows = None if in_blocks else template.in_rows()
        if rows is not None:
            result = rows.call(self.bb, self.plain(call).args[0], weight, name="dense", sums=sums)
            self.rows.add(result)
            return Value(tuple(shape_of(call)), plain=result)
        result = template.call(self.bb, self.blocked(data), weight, name="dense", sums=sums)
        return Value(tuple(shape_of(call)), blocked=result)

    def _attention(self, call: relax.Call) -> Value | None:
        """An attention whose last product is ``call``, where a template computes all of it."""
        found = AttentionReader(self.definitions, self.uses).read(call)
        template = None if found is None else choose(found.shape, self.machine.plain)
        if found is None or template is None:
            return None
        operands = self.plain(relax.Tuple(found.operands)).fields
        views = [self._view(x, shape) for x, shape in zip(operands, found.shapes, strict=True)]
        made = template.call(self.bb, *views)
        shape = tuple(shape_of(call))
        return Value(shape, plain=self._view(made, shape), named=made)

    def _view(self, x: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """``x`` in another shape, if it has another one."""
        return x if tuple(shape_of(x)) == shape else self.bb.emit(relax.op.reshape(x, shape))

    def _softmax(self, call: relax.Call) -> Value | None:
        """The template expects one axis after the softmax axis, so several are merged by views."""
        if not _is_f32(call):
            return None
        data, denormals = self.plain(call).args[0], call not in self.weights
        shape, axis = tuple(shape_of(call)), int(call.attrs.axis) % len(shape_of(call))
        merged = (*shape[: axis + 1], int(np.prod(shape[axis + 1 :])))
        several = len(shape) - axis > 2
        layer = SoftmaxShape(merged if several else shape, axis, denormals)
        template = choose(layer, self.machine.plain)
        if template is None:
            return None
        if several:
            data = self.bb.emit(relax.op.reshape(data, merged))
        made = template.call(self.bb, data)
        if not several:
            return Value(shape, plain=made)
        view = self.bb.emit(relax.op.reshape(made, shape))
        return Value(shape, plain=view, named=made)

    def _normalised(self, call: relax.Call) -> Value | None:
        """A normalisation of rows, where a template computes all of it."""
        found = normalised(call, self.definitions) if _is_f32(call) else None
        if found is None:
            return None
        (x, epsilon), shape = found, tuple(shape_of(call))
        template = choose(NormShape(shape, epsilon), self.machine.plain)
        if template is None:
            return None
        return Value(shape, plain=template.call(self.bb, self.plain(relax.Tuple([x])).fields[0]))

    def _pool(self, call: relax.Call) -> Value | None:
        if not self.is_blocked(call.args[0]) or call.attrs.layout != "NCHW":
            return None
        operand = self.blocked(call.args[0])
        if (stride := picked_pixels(call)) is not None:
            result = blocks.subsample(self.bb, stride, operand)
        else:
            result = choose(pool_shape(call), self.machine).call(self.bb, operand)
        return Value(tuple(shape_of(call)), blocked=result)

    def _mean(self, call: relax.Call) -> Value | None:
        axes = call.attrs.axis
        if not self.is_blocked(call.args[0]) or axes is None or len(shape_of(call.args[0])) != 4:
            return None
        if sorted(int(a) % 4 for a in axes) != [2, 3]:
            return None
        x = self.blocked(call.args[0])
        template = choose(MeanShape(tuple(shape_of(x))), self.machine) if _is_f32(call) else None
        if template is not None:
            mean = template.call(self.bb, x)
        else:
            mean = self.bb.emit(relax.op.mean(x, [2, 3], keepdims=True))
        return Value(tuple(shape_of(call)), blocked=mean)

    def _unary(self, call: relax.Call) -> Value | None:
        if not self.is_blocked(call.args[0]) or not self._stays_finite(call, shape_of(call)[1]):
            return None
        emitted = self.bb.emit(_with_operand(self.blocked(call.args[0]), call))
        return Value(tuple(shape_of(call)), blocked=emitted)

    def _stays_finite(self, call: relax.Call, channels: int) -> bool:
        return kind_of(call) not in _FULL_LANES_ONLY or channels % self.lanes == 0

    def _binary(self, call: relax.Call) -> Value | None:
        """An operator of two blocked operands: same shape, one number a channel, or one number."""
        if not any(self.is_blocked(arg) for arg in call.args) or not self._is_number(call):
            return self._normalised(call) or self._on_rows(call)
        shape = tuple(shape_of(call))
        if len(shape) not in (2, 4):
            return None
        operands = [self._broadcast_operand(arg, shape) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        emitted = self.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        return Value(shape, blocked=emitted)

    def _on_rows(self, call: relax.Call) -> Value | None:
        """An operator of a reshaped matrix, on the matrix itself, so that its kernel includes it.

        add(reshape(dense), x)   ->   reshape(add(dense, reshape(x)))
        """
        shape = tuple(shape_of(call))
        if any(tuple(shape_of(arg)) != shape for arg in call.args):
            return None
        for place, arg in enumerate(call.args):
            move = self.moves.get(arg)
            if move is None or kind_of(move) != "reshape" or self.uses.get(arg) != 1:
                continue
            value = self.values.get(move.args[0])
            if value is None or value.plain not in self.rows or self.uses[move.args[0]] != 1:
                continue
            operands = [
                value.plain if i == place else self.bb.emit(relax.op.reshape(other, value.shape))
                for i, other in enumerate(self.plain(call).args)
            ]
            made = self.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
            self.rows.add(made)
            return Value(shape, plain=self.bb.emit(relax.op.reshape(made, shape)), named=made)
        return None

    def _broadcast_operand(self, arg: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
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

    def _concat(self, call: relax.Call) -> Value | None:
        made = blocked_concat(self, call)
        return None if made is None else Value(tuple(shape_of(call)), blocked=made)

    def _slice(self, call: relax.Call) -> Value | None:
        made = blocked_slice(self, call) if self.is_blocked(call.args[0]) else None
        return None if made is None else Value(tuple(shape_of(call)), blocked=made)

    def _pad(self, call: relax.Call) -> Value | None:
        made = blocked_pad(self, call) if self.is_blocked(call.args[0]) else None
        return None if made is None else Value(tuple(shape_of(call)), blocked=made)

    def _reshape(self, call: relax.Call) -> Value | None:
        """(N, C, 1, 1) <-> (N, C): the same bytes if blocks are full and N is 1."""
        if not self.is_blocked(call.args[0]):
            return self._moved(call)
        old, new = tuple(shape_of(call.args[0])), tuple(shape_of(call))
        if {len(old), len(new)} != {2, 4} or old[0] != 1 or new[0] != 1:
            return None
        if old[1] != new[1] or set(old[2:] + new[2:]) != {1}:
            return None
        return Value(new, blocked=self.blocked(call.args[0]))

    def _moved(self, call: relax.Call) -> Value | None:
        """A matrix (M, C) as an image of M pixels, or back: in blocks of channels a view.

        y = reshape(permute_dims(reshape(x: (M, C), (1, M, C)), [0, 2, 1]), (1, C, H, W))

        Or several images whose pixels are interleaved (`transposed.py`). Elementwise operators in
        between are moved before the reshapes, into the kernel that computes the blocks.
        """
        path: list[relax.Var] = []
        source = call.args[0]
        while source in self.moves and not self.is_blocked(source):
            path.insert(0, source)
            source = self.moves[source].args[0]
        steps, new = [self.moves[var] for var in path], tuple(shape_of(call))
        if not self.is_blocked(source):
            return None
        channels = self.values[source].shape[1]
        if not all(self._stays_finite(step, channels) for step in steps):
            return None
        old = self.values[source].shape
        between = images_between(old, new, [*steps, call])
        if between is None and not same_pixels(old, new, [*steps, call]):
            return None
        value = self.blocked(source)
        for var, step in zip(path, steps, strict=True):
            if kind_of(step) not in _MOVES:
                value = self.bb.emit(_with_operand(value, step))
                self.names[value] = var.name
        if between is not None:
            value = blocks.interleave(self.bb, value, new, between)
            is_plain = new[1] % self.lanes > 0
            return Value(new, plain=value) if is_plain else Value(new, blocked=value)
        view = self.bb.emit(relax.op.reshape(value, blocks.blocked_shape(new, self.lanes)))
        return Value(new, blocked=view)


def _with_operand(value: relax.Expr, call: relax.Call) -> relax.Call:
    """``call`` with another first operand."""
    return relax.Call(call.op, [value, *call.args[1:]], call.attrs, call.ty_args)


def _weights(function: relax.Function) -> set[relax.Expr]:
    """Values that only matrix products read, perhaps moved: added to larger numbers there."""
    otherwise = set(relax.analysis.free_vars(function.body.body))
    found: set[relax.Expr] = set()
    for group in reversed(function.body.blocks):
        for binding in reversed(group.bindings):
            kind, is_weight = kind_of(binding.value), binding.var not in otherwise
            if is_weight:
                found.add(binding.value)
            if kind != "matmul" and not (is_weight and kind in _MOVES):
                otherwise.update(relax.analysis.free_vars(binding.value))
    return found


def _is_f32(call: relax.Call) -> bool:
    return str(call.ty.dtype) == "float32"
