"""Convolutions like others."""

from __future__ import annotations

from tvm import relax


def conv2d_like(
    call: relax.Call,
    args: list[relax.Expr],
    padding: list[int] | None = None,
    groups: int | None = None,
) -> relax.Expr:
    """The convolution ``call`` of other operands, with other padding or groups where given."""
    attrs = call.attrs
    return relax.op.nn.conv2d(
        *args,
        strides=[int(s) for s in attrs.strides],
        padding=[int(p) for p in attrs.padding] if padding is None else padding,
        dilation=[int(d) for d in attrs.dilation],
        groups=int(attrs.groups) if groups is None else groups,
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=attrs.out_dtype,
    )
