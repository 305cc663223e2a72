"""What operators do, in the few quantities whose prices a device's profile contains.

It is computed from operators of which the compiler would make a kernel, or from numbers alone.
`Features.device_work` gives that of a kernel that the compiler made.
"""

from __future__ import annotations

from math import prod

from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.targets.kernels.features import Work

_FLOAT_BYTES = 4


def work_of_convolution(
    in_channels: int,
    out_channels: int,
    kernel: int | tuple[int, int],
    out_size: int | tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    more_values: float = 0.0,
) -> Work:
    """A convolution of one sample.

    Args:
        in_channels: of all groups.
        out_channels: of all groups.
        kernel: its height and width.
        out_size: height and width of the result.
        stride: of both axes.
        groups: of channels.
        more_values: other operands of the epilogue, such as the other summand.
    """
    taps = kernel * kernel if isinstance(kernel, int) else prod(kernel)
    pixels = out_size * out_size if isinstance(out_size, int) else prod(out_size)
    weights = out_channels * (in_channels // groups) * taps
    values = (in_channels * stride**2 + out_channels) * pixels + more_values
    return Work.of_conv(float(weights * pixels), values, in_channels, weights, groups, taps)


def work_of_group(group: Group) -> Work:
    """The work of operators that become one kernel."""
    anchor = group.anchor
    moved = (group.read_bytes + group.bytes) / _FLOAT_BYTES
    if not anchor.multiply_adds:
        return Work(values=moved)
    if not anchor.kind.startswith("nn.conv"):  # a matrix product; its second operand may be one
        weights = prod(anchor.arg_shapes[1])
        return Work("pointwise", anchor.multiply_adds, max(0.0, moved - weights), weights)
    data, weight = anchor.arg_shapes[:2]
    weights = prod(weight)
    values = max(0.0, moved - weights)
    taps = prod(weight[2:])
    return Work.of_conv(anchor.multiply_adds, values, data[1], weights, anchor.groups, taps)
