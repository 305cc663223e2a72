"""Re-emit integer operators with a layout for each value, as `blocked_values.py` does for others.

y = R.call_tir(integer_conv2d, (x, w, b, f))   ->   y5 = R.call_tir(integer_conv2d, (x5, w5, ..))
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.emitting.blocked_layouts import Layouts
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of, operands_of
from tvm_stretch.targets.cpu.kernels.float_integers import float_average, float_convolution
from tvm_stretch.targets.cpu.kernels.integer_blocks import (
    LARGEST_WINDOW,
    by_channel,
    conv_shape,
    integer_convolution,
)
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.dots import WORD
from tvm_stretch.targets.kernels.layers import LONGEST, ConvShape, dense_shape


def blocked_integer(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """The blocked result of an integer operator; None if it needs the plain layout."""
    integer = integer_of(call)
    machine = layouts.machine
    if integer is None or (machine.gpu is not None and not machine.float_integers):
        return None
    return _RULES[integer.kind](layouts, call, integer)


def _constants(call: relax.Call) -> list[np.ndarray] | None:
    """Weights, bias and factor; None if one of them is computed."""
    operands = operands_of(call)[1:]
    if not all(isinstance(operand, GenericConst) for operand in operands):
        return None
    return [operand.value.numpy() for operand in operands]


def _conv2d(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    data, constants = operands_of(call)[0], _constants(call)
    if constants is None or not isinstance(data, relax.Var):
        return None
    shape = conv_shape(integer, shape_of(data), constants[0].shape)
    if max(shape.kernel) > LONGEST or min(*shape_of(data), *shape_of(call)) < 1:
        return None
    is_written_out = shape.is_depthwise and not layouts.machine.float_integers
    if is_written_out and np.prod(shape.kernel) > LARGEST_WINDOW:
        return None
    few = shape.in_channels < layouts.lanes and shape.groups == 1
    if not few or layouts.is_blocked(data):
        operand, block = layouts.blocked(data), layouts.lanes
    elif layouts.machine.float_integers:
        operand, block = layouts.plain(data), 1
    else:
        operand = blocks.block(layouts.bb, layouts.plain(data), shape_of(data), WORD)
        block = WORD
    return _layer(layouts, integer, shape, operand, constants, block)


def _layer(
    layouts: Layouts,
    integer: Integer,
    shape: ConvShape,
    data: relax.Expr,
    constants: list[np.ndarray],
    block: int,
) -> relax.Expr | None:
    if layouts.machine.float_integers:
        return float_convolution(
            layouts.bb, layouts.machine, integer, shape, data, constants, block
        )
    return integer_convolution(layouts.bb, layouts.machine, integer, shape, data, constants)


def _matmul(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    data, constants = operands_of(call)[0], _constants(call)
    if constants is None or not isinstance(data, relax.Var) or min(shape_of(data)) < 1:
        return None
    weight, *by_output = constants
    shape = dense_shape(shape_of(data), weight.shape[1])
    oihw = np.ascontiguousarray(weight.T)[:, :, None, None]
    layer = [oihw, *by_output]
    return _layer(layouts, integer, shape, layouts.blocked(data), layer, layouts.lanes)


def _elementwise(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """An operator on two blocked operands: of the same shape, or one number for each channel."""
    operands, shape = operands_of(call), shape_of(call)
    if len(shape) not in (2, 4) or not any(map(layouts.is_blocked, operands)):
        return None
    for operand in operands:
        own = shape_of(operand)
        if own != shape and (len(own) != 4 or own[:2] != shape[:2] or own[2:] != [1, 1]):
            return None
    both = [layouts.blocked(operand) for operand in operands]
    return layouts.bb.emit(integer_call(layouts.bb, integer, *both))


def _channelwise(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """An operator that computes each channel from the same channel of its input."""
    data, *others = operands_of(call)
    if not layouts.is_blocked(data):
        return None
    return layouts.bb.emit(integer_call(layouts.bb, integer, layouts.blocked(data), *others))


def _average(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """An average over windows that are no longer than those of convolutions."""
    data, counts = operands_of(call)
    if not layouts.is_blocked(data) or max(integer.kernel) > LONGEST:
        return None
    return float_average(layouts.bb, layouts.machine, integer, layouts.blocked(data), counts)


def _round(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """A rounding of blocked sums, whose factors of channels are blocked too."""
    *summands, factor = operands_of(call)
    if not any(map(layouts.is_blocked, summands)) or not isinstance(factor, GenericConst):
        return None
    numbers = factor.value.numpy()
    blocked = by_channel(numbers, layouts.lanes) if numbers.ndim == 1 else factor  # of pixels
    return layouts.bb.emit(
        integer_call(layouts.bb, integer, *map(layouts.blocked, summands), blocked)
    )


_RULES: dict[str, Callable[[Layouts, relax.Call, Integer], relax.Expr | None]] = {
    "conv2d": _conv2d,
    "matmul": _matmul,
    "add": _elementwise,
    "multiply": _elementwise,
    "mean": _channelwise,
    "average": _average,
    "round": _round,
    "softmax": lambda *_: None,  # along the last axis of the plain layout
    "table": _channelwise,
}
