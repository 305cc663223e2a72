"""Operators made from others, with other operands and the same attributes; also of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of
from tvm_stretch.network.operators import kind_of, operands

_ALL = slice(None)


def operator_like(
    builder: relax.BlockBuilder, call: relax.Call, args: Sequence[relax.Expr]
) -> relax.Call:
    """``call`` with other operands; ``builder`` receives the kernel of an integer operator."""
    integer = integer_of(call)
    if integer is not None:
        return integer_call(builder, integer, *args)
    return relax.Call(call.op, list(args), call.attrs, call.ty_args)


def weights_of(call: relax.Call, outputs: slice = _ALL, inputs: slice = _ALL) -> list[relax.Expr]:
    """The constants of a convolution or dense layer, for some of its channels.

    Besides its weights, an integer layer has a bias and a factor for each output channel.
    """
    weight, *by_output = (operand.value.numpy() for operand in operands(call)[1:])
    is_matrix = kind_of(call).endswith("matmul")
    weight = weight[inputs, outputs] if is_matrix else weight[outputs, inputs]
    return [constant(array) for array in (weight, *(array[outputs] for array in by_output))]


def summand_of(
    builder: relax.BlockBuilder, call: relax.Call, data: relax.Expr, inputs: slice, *, first: bool
) -> relax.Call:
    """The sums of an integer convolution over some input channels, as int32.

    The first summand contains the bias; `rounded_sum` adds and rounds all summands. The factor is
    left out because sums are not rounded here.
    """
    integer = integer_of(call)
    assert integer is not None
    weight, bias, *_ = weights_of(call, inputs=inputs)
    offset = bias if first else constant(0 * bias.value.numpy())
    return integer_call(builder, replace(integer, rounding=None), data, weight, offset)


def rounded_sum(
    builder: relax.BlockBuilder, call: relax.Call, summands: Sequence[relax.Expr]
) -> relax.Call:
    """The result of the integer convolution ``call``, from all its summands."""
    integer = integer_of(call)
    assert integer is not None
    rounding = Integer("round", integer.rounding)
    return integer_call(builder, rounding, *summands, operands(call)[3])


def conv2d_like(
    builder: relax.BlockBuilder,
    call: relax.Call,
    args: Sequence[relax.Expr],
    padding: Sequence[int] | None = None,
    groups: int | None = None,
) -> relax.Expr:
    """The convolution ``call`` with other operands, and with other padding or groups if given.

    For NCHW and OIHW the result's type is computed here, because Relax takes a millisecond for it
    and a search builds hundreds of convolutions.
    """
    integer = integer_of(call)
    attrs: Any = integer or call.attrs
    strides, dilation = ([int(v) for v in values[:]] for values in (attrs.strides, attrs.dilation))
    pads = [int(v) for v in attrs.padding[:]] if padding is None else list(padding)
    groups = int(attrs.groups) if groups is None else groups
    if integer is not None:
        top, left, bottom, right = pads
        changed = replace(integer, padding=(top, left, bottom, right), groups=groups)
        return integer_call(builder, changed, *args)
    conv = relax.op.nn.conv2d(
        *args,
        strides=strides,
        padding=pads,
        dilation=dilation,
        groups=groups,
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=attrs.out_dtype,
    )
    if (conv.attrs.data_layout, conv.attrs.kernel_layout, conv.attrs.out_layout) != _PLAIN:
        return conv
    (batch, _, *size), (channels, _, *kernel) = shape_of(args[0]), shape_of(args[1])
    out = [
        (extent + pads[axis] + pads[axis + 2] - (taps - 1) * dilation[axis] - 1) // strides[axis]
        + 1
        for axis, (extent, taps) in enumerate(zip(size, kernel, strict=True))
    ]
    result = relax.TensorType([batch, channels, *out], call.ty.dtype)
    return relax.Call(conv.op, conv.args, conv.attrs, ret_ty=result)


_PLAIN = ("NCHW", "OIHW", "NCHW")
