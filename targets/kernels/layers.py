"""The layers that kernel templates compute, as the network defines them, and their Relax calls.

    R.nn.conv2d(x, w, strides=2)   ->  ConvShape(1, 64, (56, 56), 128, (3, 3), (2, 2), ..)
    R.nn.max_pool2d(x, ..)         ->  WindowShape("max", 1, 64, (56, 56), ..)

A template's configuration extends the layer that it computes, so these classes are the only
description of a convolution or window: `template.choose` turns a layer into a configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any, Literal, TypeVar

from tvm import relax

LONGEST = 32
"""Most taps along an axis of windows, and of kernels that pad the image themselves: TVM takes
minutes to compile the tiles at the borders of longer ones. Audio transforms have 256 taps."""

Along = Literal["outputs", "inputs", "rows"]
"""What a part has fewer of: output channels, input channels (and summands), rows."""

Kind = TypeVar("Kind")


def taken(kind: type[Kind], other: object, /, **changes: Any) -> Kind:
    """A dataclass ``kind`` with the fields that ``other`` has too, and with ``changes``."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    same = {name: getattr(other, name) for name in names if hasattr(other, name)}
    return kind(**{**same, **changes})


class Layer:
    """What a kernel computes, without its epilogue."""

    def cut(self, along: Along, extent: int) -> Layer | None:
        """The part with ``extent`` output channels or rows, or half of the inputs, if any."""
        return None


class Sliding(Layer):
    """Windows that slide over the rows and columns of an image."""

    in_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]

    @property
    def spans(self) -> tuple[int, int]:
        """Height and width of the image under one window."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        top, left, bottom, right = self.padding
        return (
            (self.in_size[0] + top + bottom - self.spans[0]) // self.stride[0] + 1,
            (self.in_size[1] + left + right - self.spans[1]) // self.stride[1] + 1,
        )

    def taps(self, axis: int, place: int) -> range:
        """The taps of output row (axis 0) or column ``place`` that lie inside the image."""
        step, first = self.dilation[axis], place * self.stride[axis] - self.padding[axis]
        low, end = -(first // step), -((first - self.in_size[axis]) // step)
        return range(max(0, low), min(self.kernel[axis], end)) or range(0)

    def band(self, rows: int) -> dict[str, Any]:
        """Size and padding of the image that the first ``rows`` of the output read."""
        top, left, _, right = self.padding
        end = (rows - 1) * self.stride[0] + self.spans[0] - top
        height, width = self.in_size
        padding = (top, left, max(0, end - height), right)
        return {"in_size": (min(height, end), width), "padding": padding}


@dataclass(frozen=True)
class ConvShape(Sliding):
    """A convolution, or a matrix product as a convolution of pixels."""

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    exact: bool = False  # whole numbers must give whole numbers, which excludes Winograd

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved separately."""
        return self.groups > 1 and self.groups == self.in_channels == self.out_channels

    @property
    def is_long(self) -> bool:
        """Whether the kernel is too long for tiles that know which taps lie in the padding."""
        return max(self.kernel) > LONGEST

    @property
    def is_dense(self) -> bool:
        """Whether it is a matrix product: a column of pixels."""
        return self.kernel == (1, 1) and self.in_size[1] == 1

    @property
    def pointwise(self) -> bool:
        """Every output pixel reads exactly the input pixel at its own position."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and not any(self.padding)

    @property
    def skips_pixels(self) -> bool:
        """Whether a strided 1x1 kernel reads only some pixels; depthwise ones read them once."""
        strided = self.kernel == (1, 1) and not any(self.padding) and self.stride != (1, 1)
        return strided and not self.is_depthwise

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.out_channels * self.in_channels // self.groups * prod(self.kernel)

    @property
    def multiply_adds(self) -> int:
        return self.batch * prod(self.out_size) * self.weights

    def padded(self) -> ConvShape:
        """The convolution of an image that already includes its padding."""
        top, left, bottom, right = self.padding
        size = (self.in_size[0] + top + bottom, self.in_size[1] + left + right)
        return replace(self, in_size=size, padding=(0, 0, 0, 0))

    def gathered(self) -> ConvShape:
        """The convolution of only the pixels that it reads, for `skips_pixels`."""
        rows, columns = self.stride
        size = (-(-self.in_size[0] // rows), -(-self.in_size[1] // columns))
        return replace(self, in_size=size, stride=(1, 1))

    def cut(self, along: Along, extent: int) -> ConvShape:
        """The convolution of ``extent`` output channels or rows, or of half of the inputs."""
        if along == "rows":
            return replace(self, **self.band(extent))
        if self.groups > 1:
            groups = self.groups * extent // self.out_channels
            inputs = self.in_channels // self.groups * groups
            return replace(self, in_channels=inputs, out_channels=extent, groups=groups)
        if along == "inputs":
            return replace(self, in_channels=self.in_channels // 2)
        return replace(self, out_channels=extent)


@dataclass(frozen=True)
class IntegerConvShape(ConvShape):
    """A convolution of 8-bit numbers; ``dtype`` is the type of its pixels."""

    dtype: str = "uint8"


@dataclass(frozen=True)
class WindowShape(Sliding):
    """A pooling, or a depthwise convolution as windows of one channel."""

    kind: str  # ``depthwise``, ``max`` or ``avg``
    batch: int
    channels: int
    in_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    dilation: tuple[int, int] = (1, 1)
    # output height and width if the operator rounds up (``ceil_mode``); otherwise derived
    out: tuple[int, int] | None = None
    # the average divides by all pixels of the window, also those outside
    count_include_pad: bool = False

    @property
    def out_size(self) -> tuple[int, int]:
        return self.out or super().out_size

    def cut(self, along: Along, extent: int) -> WindowShape:
        """The windows of ``extent`` channels or rows."""
        if along != "rows":
            return replace(self, channels=extent)
        out = None if self.out is None else (extent, self.out[1])
        return replace(self, **self.band(extent), out=out)


@dataclass(frozen=True)
class MatmulShape(Layer):
    """Two matrices, or stacks of matrices.

    An axis of a stack is 1 if one matrix is multiplied by all matrices of the other stack.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes of the stack of results."""
        rank = max(len(self.a), len(self.b)) - 2
        stacks = ((1,) * (rank + 2 - len(shape)) + shape[:-2] for shape in (self.a, self.b))
        return tuple(map(max, *stacks))

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, depth and columns."""
        return self.a[-2], self.a[-1], self.b[-1]


@dataclass(frozen=True)
class AttentionShape(Layer):
    """Queries, keys, values and mask; axes of stacks may be 1."""

    q: tuple[int, ...]  # (.., queries, depth)
    # (.., depth, keys), or (.., keys, depth) if there are `FEW_QUERIES`: see `in_place`
    k: tuple[int, ...]
    v: tuple[int, ...]  # (.., keys, width)
    # added to the scores, whose axes it may repeat; None without
    mask: tuple[int, ...] | None = None
    scale: float = 1.0  # of the scores
    in_place: bool = False  # whether keys are (keys, depth)
    zeroes_nan: bool = False  # whether shares that are no numbers become 0
    zeroes_hidden: bool = False  # whether those of rows of which all scores are -inf do
    is_rounded: bool = False  # whether keys and values are int8, and each row has a scale

    @property
    def row_scales(self) -> tuple[int, ...]:
        """The scales of keys, or of values."""
        return (*self.v[:-1], 1)

    @property
    def hides_pieces(self) -> bool:
        """Whether the mask may hide the same keys from neighbouring queries, as of a cache."""
        rows = (self.q[-2], 1) if self.in_place else (self.q[-2],)
        mask = self.mask or ()
        return len(mask) > 1 and mask[-2] in rows and mask[-1] == self.v[-2]

    @property
    def scores(self) -> MatmulShape:
        """The product of queries and keys."""
        *stack, keys, depth = self.k
        return MatmulShape(self.q, (*stack, depth, keys) if self.in_place else self.k)

    @property
    def stack(self) -> tuple[int, ...]:
        """The axes of the stack of results."""
        return MatmulShape((*self.scores.batch, self.q[-2], self.v[-2]), self.v).batch


@dataclass(frozen=True)
class BfloatShape(Layer):
    """A matrix of inputs and one of constant weights."""

    rows: int
    depth: int
    columns: int


@dataclass(frozen=True)
class ConcatShape(Layer):
    """A concatenation of blocked images."""

    widths: tuple[int, ...]  # channels of each image
    image: tuple[int, int, int]  # batch, height and width


@dataclass(frozen=True)
class NormShape(Layer):
    """A tensor whose rows, along the last axis, are normalised."""

    shape: tuple[int, ...]
    epsilon: float
    is_centred: bool  # else their squares have mean 1, as RMSNorm says


@dataclass(frozen=True)
class SoftmaxShape(Layer):
    """A softmax, and whether denormal results are kept or become 0."""

    shape: tuple[int, ...]
    axis: int
    denormals: bool = True


@dataclass(frozen=True)
class MeanShape(Layer):
    """Feature maps in blocks of channels: images, blocks, rows, columns, channels of a block."""

    shape: tuple[int, ...]


# --- from Relax -----------------------------------------------------------------------------------


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def conv_shape(call: relax.Call) -> ConvShape | None:
    """The convolution of a Relax call; None if no template fits."""
    data, weight, attrs = *call.args, call.attrs
    n, c, h, w = (int(d) for d in data.ty.shape.values)
    o, _, kh, kw = (int(d) for d in weight.ty.shape.values)
    top, left, bottom, right = (int(p) for p in attrs.padding)
    if min(n, c, h, w, o) < 1 or any(int(d) < 1 for d in call.ty.shape.values):
        return None
    shape = ConvShape(
        n,
        c,
        (h, w),
        o,
        (kh, kw),
        _pair(attrs.strides),
        (top, left, bottom, right),
        _pair(attrs.dilation),
        int(attrs.groups),
    )
    return None if shape.is_depthwise and shape.is_long else shape


def dense_shape(data: Sequence[int], outputs: int) -> ConvShape:
    """The convolution that computes a matrix product."""
    rows, channels = data
    return ConvShape(1, channels, (rows, 1), outputs, (1, 1))


def pool_shape(call: relax.Call) -> WindowShape:
    """The windows of a pooling."""
    attrs = call.attrs
    n, c, h, w = (int(d) for d in call.args[0].ty.shape.values)
    top, left, bottom, right = (int(p) for p in attrs.padding)
    return WindowShape(
        kind=call.op.name.removeprefix("relax.nn.").removesuffix("_pool2d"),
        batch=n,
        channels=c,
        in_size=(h, w),
        kernel=_pair(attrs.pool_size),
        stride=_pair(attrs.strides),
        padding=(top, left, bottom, right),
        dilation=_pair(attrs.dilation),
        out=_pair(call.ty.shape.values[2:]),
        count_include_pad=bool(attrs.count_include_pad),
    )


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
