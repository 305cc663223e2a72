"""What a kernel does, in the few quantities whose prices a device's profile contains.

    conv 3x3, 64 -> 128, 28 x 28    ->    Work("dense", multiply_adds=57.8e6, values=175616,
                                               weights=73728)

It is computed from a kernel that the compiler made, from operators of which the compiler would make
one, or from numbers alone, for searches that weigh thousands of layers without building them. Only
work that every device would have to do counts: no transforms of Winograd, no padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm_stretch.cost.features import (
    ConvFeatures,
    DepthwiseFeatures,
    Features,
    GenericFeatures,
    RunFeatures,
    TransferFeatures,
    WinogradFeatures,
)
from tvm_stretch.ir.operator_graph import Group

FAMILIES = ("image", "dense", "pointwise", "grouped", "depthwise")
"""Convolutions: of an image's few channels, with windows, 1x1 (and matrix products), in groups, and
channel by channel."""

OTHER = "other"
"""Kernels that move values and multiply few: sums, pools, copies."""

_IMAGE_CHANNELS = 4
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Work:
    """See the module docstring.

    Attributes:
        family: one of `FAMILIES`, or `OTHER`.
        multiply_adds: of convolutions and matrix products.
        values: activations that are read and written.
        weights: number of weights that are read.
        groups: of a grouped convolution; 0 for everything else.
        kernels: 0 for kernels that only this compiler needs.
    """

    family: str
    multiply_adds: float = 0.0
    values: float = 0.0
    weights: float = 0.0
    groups: int = 0
    kernels: int = 1


_NOTHING = Work(OTHER, kernels=0)


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
    family = _family(in_channels, groups, taps)
    read = in_channels * pixels * stride**2
    return Work(
        family,
        float(weights * pixels),
        read + out_channels * pixels + more_values,
        weights,
        groups if family == "grouped" else 0,
    )


def work_of_kernel(kernel: Features) -> Work:
    """The work of a kernel that the compiler made."""
    if isinstance(kernel, RunFeatures | TransferFeatures):
        return _NOTHING
    size = _value_bytes(kernel)
    values = (kernel.in_bytes + kernel.out_bytes) / size
    if isinstance(kernel, DepthwiseFeatures):
        taps = kernel.kernel_height_taps * kernel.kernel_width_taps
        return Work("depthwise", kernel.flops / 2, values, kernel.channels * taps)
    if not isinstance(kernel, ConvFeatures | WinogradFeatures):
        return Work(OTHER, 0.0, values)
    taps = 9
    if isinstance(kernel, ConvFeatures):
        taps = kernel.kernel_height_taps * kernel.kernel_width_taps
    elif not kernel.product_stages:
        return _NOTHING
    elif not kernel.input_stages:  # its input is transformed already
        pixels = kernel.out_height_pixels * kernel.out_width_pixels
        values = kernel.in_channels * pixels + kernel.out_bytes / size
    family = _family(kernel.in_channels, kernel.groups, taps)
    weights = kernel.out_channels * (kernel.in_channels // kernel.groups) * taps
    groups = kernel.groups if family == "grouped" else 0
    return Work(family, kernel.flops / 2, values, weights, groups)


def _value_bytes(kernel: Features) -> int:
    """Bytes of a value that a kernel reads or writes."""
    if isinstance(kernel, GenericFeatures):  # of its results, if there are several
        return max(1, min(_FLOAT_BYTES, kernel.out_bytes // max(1, kernel.out_elements)))
    return kernel.item_bytes


def work_of_group(group: Group) -> Work:
    """The work of operators that become one kernel."""
    anchor = group.anchor
    moved = (group.read_bytes + group.bytes) / _FLOAT_BYTES
    if not anchor.multiply_adds:
        return Work(OTHER, 0.0, moved)
    if not anchor.kind.startswith("nn.conv"):  # a matrix product; its second operand may be one
        weights = prod(anchor.arg_shapes[1])
        return Work("pointwise", anchor.multiply_adds, max(0.0, moved - weights), weights)
    data, weight = anchor.arg_shapes[:2]
    family = _family(data[1], anchor.groups, prod(weight[2:]))
    weights = prod(weight)
    groups = anchor.groups if family == "grouped" else 0
    return Work(family, anchor.multiply_adds, max(0.0, moved - weights), weights, groups)


def _family(in_channels: int, groups: int, taps: int) -> str:
    if groups > 1:
        return "depthwise" if groups == in_channels else "grouped"
    if taps == 1:
        return "pointwise"
    return "image" if in_channels <= _IMAGE_CHANNELS else "dense"
