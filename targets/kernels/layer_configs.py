"""Choose the kernel of a layer: from Relax calls and shapes to configurations of templates.

    R.nn.conv2d(x, w, strides=2)   ->  ConvShape(..)  ->  ConvConfig, WinogradConfig or WindowConfig
    R.nn.max_pool2d(x, ..)         ->                     WindowConfig

Nothing is built: `blocks.py` emits the calls, and code that predicts or describes kernels asks here
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from .choose import ConvShape, choose_conv
from .conv import ConvConfig
from .gpu.choose import choose_group_window
from .machine import VectorMachine
from .window import WindowConfig
from .winograd import WinogradConfig

Config = ConvConfig | WinogradConfig | WindowConfig

LONGEST = 32
"""Most taps along an axis: audio transforms have 256, for which TVM takes minutes."""


def conv_shape(call: relax.Call) -> ConvShape | None:
    """The convolution of a Relax call; None if no template fits."""
    data, weight, attrs = *call.args, call.attrs
    n, c, h, w = (int(d) for d in data.ty.shape.values)
    o, _, kh, kw = (int(d) for d in weight.ty.shape.values)
    if (
        max(kh, kw) > LONGEST
        or min(n, c, h, w, o) < 1
        or any(int(d) < 1 for d in call.ty.shape.values)
    ):
        return None

    def pair(values: Sequence[int]) -> tuple[int, int]:
        return int(values[0]), int(values[1])

    top, left, bottom, right = (int(p) for p in attrs.padding)
    return ConvShape(
        n,
        c,
        (h, w),
        o,
        (kh, kw),
        pair(attrs.strides),
        (top, left, bottom, right),
        pair(attrs.dilation),
        int(attrs.groups),
    )


def convolution_config(
    shape: ConvShape, machine: VectorMachine, data_block: int, *, exact: bool = False
) -> Config:
    """The configuration of a convolution's kernel; its pixels may be gathered before."""
    if is_depthwise(shape):
        return depthwise_config(shape, machine)
    return choose_conv(gathered(shape, machine), machine, data_block, exact=exact)


def gathered(shape: ConvShape, machine: VectorMachine) -> ConvShape:
    """The convolution of only the pixels that it reads, if they are gathered before."""
    if not gathers_pixels(shape, machine):
        return shape
    rows, columns = shape.stride
    size = (-(-shape.in_size[0] // rows), -(-shape.in_size[1] // columns))
    return replace(shape, in_size=size, stride=(1, 1))


def is_depthwise(shape: ConvShape) -> bool:
    """Whether every channel is convolved separately."""
    return shape.groups > 1 and shape.groups == shape.in_channels == shape.out_channels


def gathers_pixels(shape: ConvShape, machine: VectorMachine) -> bool:
    """Whether the pixels of a strided 1x1 convolution are gathered before.

    A depthwise one reads each pixel only once, and a GPU copies them to local memory anyway.
    """
    pointwise = shape.kernel == (1, 1) and not any(shape.padding)
    strided = pointwise and shape.stride != (1, 1) and not is_depthwise(shape)
    return strided and machine.gpu is None


def depthwise_config(shape: ConvShape, machine: VectorMachine) -> WindowConfig:
    """The window of a depthwise convolution."""
    config = WindowConfig(
        kind="depthwise",
        batch=shape.batch,
        channels=shape.in_channels,
        in_size=shape.in_size,
        kernel=shape.kernel,
        stride=shape.stride,
        padding=shape.padding,
        dilation=shape.dilation,
        lanes=machine.lanes,
    )
    return config if machine.gpu is None else choose_group_window(config, machine.gpu)


def dense_shape(data: Sequence[int], outputs: int) -> ConvShape:
    """The convolution that computes a matrix product."""
    rows, channels = data
    return ConvShape(1, channels, (rows, 1), outputs, (1, 1))


def pool_config(machine: VectorMachine, call: relax.Call) -> WindowConfig:
    """The configuration of a pooling."""
    attrs = call.attrs
    n, c, h, w = (int(d) for d in call.args[0].ty.shape.values)
    kind = call.op.name.removeprefix("relax.nn.").removesuffix("_pool2d")
    out_h, out_w = (int(d) for d in call.ty.shape.values[2:])
    top, left, _, _ = (int(p) for p in attrs.padding)
    kernel, stride, dilation = (
        (int(v[0]), int(v[1])) for v in (attrs.pool_size, attrs.strides, attrs.dilation)
    )
    config = WindowConfig(
        kind=kind,
        batch=n,
        channels=c,
        in_size=(h, w),
        kernel=kernel,
        stride=stride,
        padding=(top, left, int(attrs.padding[2]), int(attrs.padding[3])),
        dilation=dilation,
        lanes=machine.lanes,
        out=(out_h, out_w),
        count_include_pad=bool(attrs.count_include_pad),
    )
    return config if machine.gpu is None else choose_group_window(config, machine.gpu)


def picked_pixels(call: relax.Call) -> tuple[int, int] | None:
    """The stride of a pooling whose windows are single pixels of the image; None for others.

    As a copy it is fused with neighbouring copies, which then move only these pixels.
    """
    attrs = call.attrs
    rows, columns = (int(step) for step in attrs.strides)
    height, width = (int(d) for d in call.args[0].ty.shape.values[2:])
    size = [int(d) for d in call.ty.shape.values[2:]]
    single = all(int(k) == 1 for k in attrs.pool_size) and not any(int(p) for p in attrs.padding)
    # with ceil_mode, windows may lie beyond the image
    inside = size == [-(-height // rows), -(-width // columns)]
    return (rows, columns) if single and inside else None
