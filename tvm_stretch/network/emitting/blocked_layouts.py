"""The values of a function in plain layout and in blocks of channels, each converted at most once.

x: (1, 64, 56, 56)                                         <->   x5: (1, 8, 56, 56, 8)
y = R.strided_slice(x, rows 2 to 9 by 3, columns 1 to 9)   ->   the same slice of x5
y = R.strided_slice(x, channels 8 to 24)                   ->   blocks 1 to 3 of x5
y = R.nn.pad(x, a row below, a column to the right)        ->   the same padding of x5
y = R.take(x, rows)                                        ->   the same rows of x5
y = R.call_tir(integer_conv2d, (x, w, b, f))               ->   the same of x5, with w5
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import axes_of, shape_of, with_variables
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of, operands_of
from tvm_stretch.network.operators import BINARY, LAYOUT, UNARY, kind_of
from tvm_stretch.targets.cpu.kernels.integer_blocks import (
    LARGEST_WINDOW,
    by_channel,
    conv_shape,
    float_average,
    float_convolution,
    integer_convolution,
)
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.dots import WORD
from tvm_stretch.targets.kernels.layers import LONGEST, ConvShape, dense_shape
from tvm_stretch.targets.kernels.machine import VectorMachine


@dataclass
class Value:
    """One tensor of the network in the layouts it exists in.

    ``named`` is the result of the operator's kernel, if the other layouts are views of it.
    """

    shape: tuple[int, ...]
    plain: relax.Expr | None = None
    blocked: relax.Expr | None = None
    named: relax.Expr | None = None


Made: TypeAlias = "relax.Expr | Value | None"
"""A blocked result, a result in other layouts, or None if the call needs the plain layout."""


class Layouts:
    """Holds the layouts of each value, and emits a conversion where one is missing."""

    def __init__(self, machine: VectorMachine, bb: relax.BlockBuilder) -> None:
        self.machine = machine
        self.lanes = machine.lanes
        self.values: dict[relax.Var, Value] = {}
        self.bb = bb

    def blocked_parameter(self, param: relax.Var) -> relax.Var:
        """A parameter that receives the value of ``param`` in the blocked layout."""
        shape = blocks.blocked_shape(static_shape(param), self.lanes)
        return relax.Var(param.name, relax.TensorType(shape, str(param.ty.dtype)))

    def bind_parameter(self, param: relax.Var, new: relax.Var) -> None:
        """Record that parameter ``new`` replaces ``param``, in either layout."""
        shape = static_shape(param)
        is_plain = static_shape(new) == shape
        value = Value(shape, plain=new) if is_plain else Value(shape, blocked=new)
        self.values[param] = value

    def plain(self, expr: relax.Expr) -> relax.Expr:
        """``expr`` with every operand in plain layout."""
        return with_variables(expr, self._plain_value)

    def _plain_value(self, var: relax.Var) -> relax.Expr:
        if var not in self.values:
            return var
        value = self.values[var]
        if value.plain is None:
            value.plain = blocks.unblock(self.bb, value.blocked, value.shape)
        return value.plain

    def blocked(self, expr: relax.Expr) -> relax.Expr:
        """A value or constant in blocked layout."""
        if isinstance(expr, GenericConst):
            return self.blocked_constant(expr, tuple(shape_of(expr)))
        value = self.values[expr]
        if value.blocked is None:
            value.blocked = blocks.block(self.bb, value.plain, value.shape, self.lanes)
        return value.blocked

    def is_blocked(self, expr: relax.Expr) -> bool:
        """Whether the value exists in blocked layout already."""
        return isinstance(expr, relax.Var) and self.values[expr].blocked is not None

    def blocked_constant(self, constant: GenericConst, shape: tuple[int, ...]) -> relax.Expr:
        """A constant in blocks of channels, after it was given ``shape``."""
        array = constant.value.numpy().reshape(shape)
        if len(shape) == 2:
            array = array.T
        return relax.const(blocks.block_array(array.reshape(blocks.image_shape(shape)), self.lanes))


def static_shape(expr: relax.Expr) -> tuple[int, ...]:
    """The shape of a tensor; none for a tuple."""
    return tuple(shape_of(expr)) if isinstance(expr.ty, relax.TensorType) else ()


_ROW_BY_ROW = UNARY | BINARY | {"reshape", "permute_dims", "matmul"}
"""Operators that keep rows of a matrix apart, or move them."""


@LAYOUT("concat")
def _concat(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """Images side by side in channels or rows; None if none of them is in blocks."""
    parts, axis = call.args[0], int(call.attrs.axis) % 4
    if not isinstance(parts, relax.Tuple) or len(shape_of(call)) != 4 or axis not in (1, 2):
        return None
    if not any(layouts.is_blocked(part) for part in parts.fields):
        return None
    if str(call.ty.dtype) not in ("float32", "float16", "int8", "uint8"):
        return None
    operands = [layouts.blocked(part) for part in parts.fields]
    if axis == 2:
        return layouts.bb.emit(relax.op.concat(operands, axis=2))
    widths = [shape_of(part)[1] for part in parts.fields]
    return blocks.concat(layouts.bb, layouts.machine, operands, widths)


@LAYOUT("strided_slice")
def _slice(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """A slice of pixels, images or whole blocks of channels; None if it cuts a block."""
    whole, lanes = shape_of(call.args[0]), layouts.lanes
    if not layouts.is_blocked(call.args[0]) or len(whole) != 4 or 0 in shape_of(call):
        return None
    axes, begin, end, *steps = ([int(field) for field in arg.fields] for arg in call.args[1:])
    axes = [axis % 4 for axis in axes]
    if 1 in axes:
        i, channels = axes.index(1), whole[1]
        first, last, step = slice(begin[i], end[i], *(s[i] for s in steps)).indices(channels)
        if step != 1 or first % lanes or (last % lanes and last != channels):
            return None
        begin[i], end[i] = first // lanes, -(-last // lanes)
    data = layouts.blocked(call.args[0])
    return layouts.bb.emit(relax.op.strided_slice(data, axes, begin, end, *steps))


@LAYOUT("nn.pad")
def _pad(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """A blocked value with pixels or images around it; None if channels would be added."""
    widths, attrs = [int(width) for width in call.attrs.pad_width], call.attrs
    if not layouts.is_blocked(call.args[0]) or len(widths) != 8 or any(widths[2:4]):
        return None
    # lanes that pad the channels would hold the pad value too
    if shape_of(call.args[0])[1] % layouts.lanes and not isfinite(attrs.pad_value):
        return None
    data = layouts.blocked(call.args[0])
    padded = relax.op.nn.pad(data, [*widths, 0, 0], attrs.pad_mode, attrs.pad_value)
    return layouts.bb.emit(padded)


def blocked_take(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """Rows or columns of a blocked value, as a resize or a reflecting padding takes them."""
    data, indices = call.args
    if not layouts.is_blocked(data) or len(shape_of(data)) != 4 or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % 4
    if axis < 2 or not isinstance(indices, GenericConst) or len(shape_of(indices)) != 1:
        return None
    taken = relax.op.take(layouts.blocked(data), indices, axis, str(call.attrs.mode))
    return layouts.bb.emit(taken)


def same_pixels(old: tuple[int, ...], new: tuple[int, ...], steps: Sequence[relax.Call]) -> bool:
    """Whether ``steps`` turn an image (1, C, H, W) into a matrix (H * W, C), or back."""
    image, matrix = (old, new) if len(old) == 4 else (new, old)
    if len(image) != 4 or image[0] != 1 or matrix != (image[2] * image[3], image[1]):
        return False
    places = np.arange(np.prod(image)).reshape(image)
    rows = places.reshape(image[1], -1).T
    before, after = (places, rows) if old == image else (rows, places)
    return np.array_equal(_carried(before, steps), after)


def becomes_image(
    product: relax.Call, readers: Mapping[relax.Expr | None, Sequence[relax.Call]]
) -> bool:
    """Whether the rows of a product, or of dense layers after it, are pixels of an image."""
    todo: list[tuple[relax.Call, list[relax.Call]]] = [(product, [])]
    seen: set[relax.Call] = set()
    while todo:
        tensor, moves = todo.pop()
        for reader in readers.get(tensor, ()):
            kind, steps = kind_of(reader), moves
            if reader in seen or kind not in _ROW_BY_ROW:
                continue
            if kind == "matmul" and not isinstance(reader.args[1], GenericConst):
                continue
            if kind in ("reshape", "permute_dims"):
                steps = [*moves, reader]
                old, new = (tuple(shape_of(x)) for x in (steps[0].args[0], reader))
                if same_pixels(old, new, steps):
                    return True
            seen.add(reader)
            todo.append((reader, [] if kind == "matmul" else steps))
    return False


def images_between(
    old: tuple[int, ...], new: tuple[int, ...], steps: Sequence[relax.Call]
) -> tuple[int, int] | None:
    """How many images ``steps`` interleave in rows and columns; None if they do not."""
    if len(old) != 4 or len(new) != 4 or old[0] != new[0] or old[1] == new[1]:
        return None
    if any(b % a for a, b in zip(old[2:], new[2:], strict=True)):
        return None
    rows, columns = new[2] // old[2], new[3] // old[3]
    if old[1] != new[1] * rows * columns:
        return None
    places = np.arange(np.prod(old)).reshape(old)
    images = places.reshape(old[0], rows, columns, new[1], *old[2:])
    wanted = images.transpose(0, 3, 4, 1, 5, 2).reshape(new)
    return (rows, columns) if np.array_equal(_carried(places, steps), wanted) else None


def _carried(array: np.ndarray, steps: Sequence[relax.Call]) -> np.ndarray:
    """Where reshapes and transpositions put elements; elementwise operators move none."""
    for call in steps:
        if kind_of(call) == "permute_dims":
            array = array.transpose(axes_of(call))
        else:
            array = array.reshape(shape_of(call))
    return array


def _integer(*kinds: str) -> Callable[[Callable[..., relax.Expr | None]], None]:
    """Register the function that computes an integer operator of blocked operands."""

    def register(function: Callable[..., relax.Expr | None]) -> None:
        def blocked(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
            is_plain = layouts.machine.gpu is not None and not layouts.machine.float_integers
            return None if is_plain else function(layouts, call, integer_of(call))

        LAYOUT(*(f"integer.{kind}" for kind in kinds))(blocked)

    return register


def _constants(call: relax.Call) -> list[np.ndarray] | None:
    """Weights, bias and factor; None if one of them is computed."""
    operands = operands_of(call)[1:]
    if not all(isinstance(operand, GenericConst) for operand in operands):
        return None
    return [operand.value.numpy() for operand in operands]


@_integer("conv2d")
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


@_integer("matmul")
def _matmul(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    data, constants = operands_of(call)[0], _constants(call)
    if constants is None or not isinstance(data, relax.Var) or min(shape_of(data)) < 1:
        return None
    weight, *by_output = constants
    shape = dense_shape(shape_of(data), weight.shape[1])
    oihw = np.ascontiguousarray(weight.T)[:, :, None, None]
    layer = [oihw, *by_output]
    return _layer(layouts, integer, shape, layouts.blocked(data), layer, layouts.lanes)


@_integer("add", "multiply")
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


@_integer("mean", "table")
def _channelwise(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """An operator that computes each channel from the same channel of its input."""
    data, *others = operands_of(call)
    if not layouts.is_blocked(data):
        return None
    return layouts.bb.emit(integer_call(layouts.bb, integer, layouts.blocked(data), *others))


@_integer("average")
def _average(layouts: Layouts, call: relax.Call, integer: Integer) -> relax.Expr | None:
    """An average over windows that are no longer than those of convolutions."""
    data, counts = operands_of(call)
    if not layouts.is_blocked(data) or max(integer.kernel) > LONGEST:
        return None
    return float_average(layouts.bb, layouts.machine, integer, layouts.blocked(data), counts)


@_integer("round")
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


def is_f32(call: relax.Call) -> bool:
    """Whether the result is of float32."""
    return str(call.ty.dtype) == "float32"
