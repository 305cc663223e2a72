"""A convolution made from another one: other operands, the same strides and layouts."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_stretch.ir.expressions import shape_of


def conv2d_like(
    call: relax.Call,
    args: Sequence[relax.Expr],
    padding: Sequence[int] | None = None,
    groups: int | None = None,
) -> relax.Expr:
    """The convolution ``call`` of other operands, with other padding or groups where given.

    In NCHW and OIHW its type is worked out here: Relax takes a millisecond for that, and a search
    builds hundreds of convolutions.
    """
    attrs = call.attrs
    strides, dilation = ([int(v) for v in values[:]] for values in (attrs.strides, attrs.dilation))
    pads = [int(v) for v in attrs.padding[:]] if padding is None else list(padding)
    made = relax.op.nn.conv2d(
        *args,
        strides=strides,
        padding=pads,
        dilation=dilation,
        groups=int(attrs.groups) if groups is None else groups,
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=attrs.out_dtype,
    )
    if (made.attrs.data_layout, made.attrs.kernel_layout, made.attrs.out_layout) != _PLAIN:
        return made
    (batch, _, *size), (channels, _, *kernel) = shape_of(args[0]), shape_of(args[1])
    out = [
        (extent + pads[axis] + pads[axis + 2] - (taps - 1) * dilation[axis] - 1) // strides[axis]
        + 1
        for axis, (extent, taps) in enumerate(zip(size, kernel, strict=True))
    ]
    result = relax.TensorType([batch, channels, *out], call.ty.dtype)
    return relax.Call(made.op, made.args, made.attrs, ret_ty=result)


_PLAIN = ("NCHW", "OIHW", "NCHW")
