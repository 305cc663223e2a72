"""Give feature maps the blocked layout NCHW[c] and bring in the kernel templates.

    y = R.nn.conv2d(x, w)            # x: (1, 64, 56, 56)
    z = R.nn.relu(R.add(y, b))       # b: (1, 64, 1, 1)
        ->
    u = R.call_tir(winograd_weight, (w,))            # constant operands: once, at load
    y = R.call_tir(winograd, (x5, u))                # x5: (1, 8, 56, 56, 8)
    z = R.nn.relu(R.add(y, b5))                      # b5: (1, 8, 1, 1, 8)

A value is converted at most once and only where an operator needs the other layout.  Matrices
(M, C) count as images of M pixels, (1, C, M, 1), so that dense layers share the kernels of
convolutions.
Channels that do not fill a block are padded with lanes that stay finite and meet zero weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, Op
from tvm_stretch.passes.expressions import shape_of
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.machine import VectorMachine

# Elementwise operators that keep the padding lanes finite (they hold 0, or what these make of 0).
_UNARY = {
    f"relax.{name}"
    for name in [
        "nn.relu",
        "nn.relu6",
        "nn.leakyrelu",
        "nn.gelu",
        "nn.gelu_tanh",
        "nn.silu",
        "nn.softplus",
        "sigmoid",
        "tanh",
        "clip",
        "abs",
        "negative",
        "exp",
        "floor",
        "ceil",
        "round",
        "sign",
        "square",
        "sqrt",
        "erf",
        "sin",
        "cos",
        "nn.dropout",
    ]
}
_BINARY = {f"relax.{name}" for name in ["add", "subtract", "multiply", "maximum", "minimum"]}


@dataclass
class _Value:
    """One tensor of the network in the layouts it exists in."""

    shape: tuple[int, ...]
    plain: relax.Expr | None = None
    blocked: relax.Expr | None = None


@tvm.transform.module_pass(opt_level=0, name="BlockChannels")
class BlockChannels:
    """See the module docstring; ``machine`` gives the width of a block and the tiles."""

    def __init__(self, machine: VectorMachine) -> None:
        self.machine = machine

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite ``main``."""
        main = mod["main"]
        kernels = {v: f for v, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
        rewriter = _Rewriter(self.machine, tvm.IRModule(kernels))
        bb = rewriter.bb
        with bb.function("main", list(main.params), attrs=dict(main.attrs or {})):
            with bb.dataflow():
                for param in main.params:
                    rewriter.bind_parameter(param)
                for group in main.body.blocks:
                    for binding in group.bindings:
                        rewriter.bind(binding.var, binding.value)
                result = rewriter.result(main.body.body)
            bb.emit_func_output(result)
        return bb.get() if rewriter.converted else mod


class _Rewriter:
    """Re-emits the bindings of one function, choosing a layout for each value."""

    def __init__(self, machine: VectorMachine, kernels: tvm.IRModule) -> None:
        self.machine = machine
        self.lanes = machine.lanes
        self.values: dict[relax.Var, _Value] = {}
        self.converted = False
        self.bb = relax.BlockBuilder(kernels)  # what the network calls already stays

    def bind_parameter(self, var: relax.Var) -> None:
        """A parameter of the function, in plain layout."""
        self.values[var] = _Value(_static_shape(var), plain=var)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        """Re-emit ``var = value``."""
        result = self._blocked_call(value) if isinstance(value, relax.Call) else None
        self.converted |= result is not None
        if result is None:
            plain = self.bb.emit(self._with_plain_operands(value), name_hint=var.name)
            result = _Value(_static_shape(var), plain=plain)
        self.values[var] = result

    def result(self, expr: relax.Expr) -> relax.Expr:
        """The function's result in plain layout."""
        plain = self._with_plain_operands(expr)
        if isinstance(plain, relax.Tuple):
            return relax.Tuple([self.bb.emit_output(field) for field in plain.fields])
        return self.bb.emit_output(plain)

    # --- layouts ---

    def _with_plain_operands(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return self._plain(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._with_plain_operands(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._with_plain_operands(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            args = [self._with_plain_operands(arg) for arg in expr.args]
            return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
        return expr

    def _plain(self, var: relax.Var) -> relax.Expr:
        if var not in self.values:
            return var
        value = self.values[var]
        if value.plain is None:
            value.plain = blocks.unblock(self.bb, value.blocked, value.shape)
        return value.plain

    def _blocked(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, GenericConst):
            return self._blocked_constant(expr, tuple(shape_of(expr)))
        value = self.values[expr]
        if value.blocked is None:
            value.blocked = blocks.block(self.bb, value.plain, value.shape, self.lanes)
        return value.blocked

    def _is_blocked(self, expr: relax.Expr) -> bool:
        return isinstance(expr, relax.Var) and self.values[expr].blocked is not None

    # --- operators ---

    def _blocked_call(self, call: relax.Call) -> _Value | None:
        """The call on blocked operands, or None if it belongs to the plain layout."""
        if not isinstance(call.op, Op) or not isinstance(call.ty, relax.TensorType):
            return None
        name = call.op.name
        handlers = {
            "relax.nn.conv2d": self._conv2d,
            "relax.matmul": self._matmul,
            "relax.nn.max_pool2d": self._pool,
            "relax.nn.avg_pool2d": self._pool,
            "relax.mean": self._mean,
            "relax.concat": self._concat,
            "relax.reshape": self._reshape,
        }
        if name in _UNARY:
            return self._unary(call)
        if name in _BINARY:
            return self._binary(call)
        return handlers[name](call) if name in handlers else None

    def _conv2d(self, call: relax.Call) -> _Value | None:
        data, weight = call.args
        if not isinstance(weight, GenericConst) or not _is_f32(call):
            return None
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
            return None
        shape = blocks.conv_shape(call)
        if shape is None:
            return None
        value = self.values[data]
        if value.blocked is None and shape.in_channels < self.lanes and shape.groups == 1:
            result = blocks.convolution(self.bb, self.machine, shape, value.plain, weight, 1)
        else:
            operand = self._blocked(data)
            result = blocks.convolution(self.bb, self.machine, shape, operand, weight, self.lanes)
        return _Value(tuple(shape_of(call)), blocked=result)

    def _matmul(self, call: relax.Call) -> _Value | None:
        data, weight = call.args
        if not isinstance(weight, GenericConst) or not _is_f32(call):
            return None
        shape = tuple(shape_of(data))
        if len(shape) != 2 or len(shape_of(weight)) != 2 or not isinstance(data, relax.Var):
            return None
        result = blocks.dense(self.bb, self.machine, shape, self._blocked(data), weight)
        return _Value(tuple(shape_of(call)), blocked=result)

    def _pool(self, call: relax.Call) -> _Value | None:
        if not self._is_blocked(call.args[0]) or call.attrs.layout != "NCHW":
            return None
        operand = self._blocked(call.args[0])
        result = blocks.pool(self.bb, self.machine, call, operand)
        return _Value(tuple(shape_of(call)), blocked=result)

    def _mean(self, call: relax.Call) -> _Value | None:
        axes = call.attrs.axis
        if not self._is_blocked(call.args[0]) or axes is None or len(shape_of(call.args[0])) != 4:
            return None
        if sorted(int(a) % 4 for a in axes) != [2, 3]:
            return None
        mean = self.bb.emit(relax.op.mean(self._blocked(call.args[0]), [2, 3], keepdims=True))
        return _Value(tuple(shape_of(call)), blocked=mean)

    def _unary(self, call: relax.Call) -> _Value | None:
        if not self._is_blocked(call.args[0]):
            return None
        args = [self._blocked(call.args[0]), *call.args[1:]]
        emitted = self.bb.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
        return _Value(tuple(shape_of(call)), blocked=emitted)

    def _binary(self, call: relax.Call) -> _Value | None:
        """Both operands blocked: same shape, per channel, or one number."""
        if not any(self._is_blocked(arg) for arg in call.args) or not _is_f32(call):
            return None
        shape = tuple(shape_of(call))
        if len(shape) not in (2, 4):
            return None
        operands = [self._broadcast_operand(arg, shape) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        emitted = self.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        return _Value(shape, blocked=emitted)

    def _broadcast_operand(self, arg: relax.Expr, shape: tuple[int, ...]) -> relax.Expr | None:
        own = tuple(shape_of(arg))
        if isinstance(arg, GenericConst):
            if int(np.prod(own)) == 1:
                return relax.const(arg.value.numpy().reshape(()))
            aligned = (1,) * (len(shape) - len(own)) + own
            return self._blocked_constant(arg, aligned) if aligned[1] == shape[1] else None
        if len(own) != len(shape) or own[1] != shape[1]:
            return None
        return self._blocked(arg)

    def _blocked_constant(self, constant: GenericConst, shape: tuple[int, ...]) -> relax.Expr:
        array = constant.value.numpy().reshape(shape)
        if len(shape) == 2:
            array = array.T
        return relax.const(blocks.block_array(array.reshape(blocks.image_shape(shape)), self.lanes))

    def _concat(self, call: relax.Call) -> _Value | None:
        parts = call.args[0]
        shape = tuple(shape_of(call))
        if not isinstance(parts, relax.Tuple) or len(shape) != 4 or int(call.attrs.axis) % 4 != 1:
            return None
        if not any(self._is_blocked(part) for part in parts.fields) or not _is_f32(call):
            return None
        operands = [self._blocked(part) for part in parts.fields]
        widths = [shape_of(part)[1] for part in parts.fields]
        return _Value(shape, blocked=blocks.concat(self.bb, operands, widths, self.lanes))

    def _reshape(self, call: relax.Call) -> _Value | None:
        """(N, C, 1, 1) <-> (N, C): the same bytes where blocks are full and N is 1."""
        if not self._is_blocked(call.args[0]):
            return None
        old, new = tuple(shape_of(call.args[0])), tuple(shape_of(call))
        if {len(old), len(new)} != {2, 4} or old[0] != 1 or new[0] != 1:
            return None
        if old[1] != new[1] or set(old[2:] + new[2:]) != {1}:
            return None
        return _Value(new, blocked=self._blocked(call.args[0]))


def _static_shape(expr: relax.Expr) -> tuple[int, ...]:
    return tuple(shape_of(expr)) if isinstance(expr.ty, relax.TensorType) else ()


def _is_f32(call: relax.Call) -> bool:
    return str(call.ty.dtype) == "float32"
