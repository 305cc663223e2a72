"""Read convolutions and dense layers of a quantised network: their integers and the scales.

R.add(R.nn.conv2d(R.dequantize(x, ..), R.dequantize(w, ..)), R.dequantize(b, ..))
->
Layer: sums of x * w + b in int32, each worth scale of x * scale of w for its channel

A transposed convolution is written as convolutions:

    y = conv2d_transpose(x, w, strides=2)   ->   y = reshape(permute_dims(reshape(conv2d(x, w1))))

A transposed convolution of stride s consists of s x s images with interleaved pixels, each a
convolution of the input; here the images are channels at first. If the stride divides the kernel,
one convolution computes all images. Otherwise images have different numbers of taps and are
separate convolutions (with zeros as taps, infinities in float would become NaN).

A transposed convolution along one axis is that of an image of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.integers import Integer
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.properties.quantised_values import Definition, Tensor, bias_of, weight_of


@dataclass(frozen=True)
class Images:
    """The convolutions that compute a transposed one."""

    # of each convolution, as OIHW; its channels are in ``groups`` groups
    weights: tuple[np.ndarray, ...]
    geometry: tuple[AxisGeometry, AxisGeometry]  # of rows and columns
    groups: int  # of each convolution
    each: int  # channels of a convolution for one channel of the result
    beside: bool  # whether these are neighbours; otherwise channels are ordered by image
    back: Callable[..., relax.Expr]  # makes the result of the convolutions' results

    def per_channel(self, numbers: np.ndarray) -> np.ndarray:
        """One number for each channel of the result, in the order of a convolution's channels."""
        return (np.repeat if self.beside else np.tile)(numbers, self.each)

    def padding(self, weight: np.ndarray) -> tuple[int, int, int, int]:
        """Padding of the convolution with ``weight``: above, left, below, right."""
        above, left = (
            taps - 1 - axis.left_out
            for taps, axis in zip(weight.shape[2:], self.geometry, strict=True)
        )
        return above, left, self.geometry[0].after, self.geometry[1].after


@dataclass(frozen=True)
class AxisGeometry:
    """The geometry of one axis."""

    left_out: int  # pixels of each image that are not computed, before the first one
    after: int  # padding after the input
    count: int  # pixels of each image
    skip: int  # pixels that are computed but cut off before the result


def transposed_images(
    call: relax.Call,  # a call of ``nn.conv2d_transpose`` or ``nn.conv1d_transpose``
    weight: np.ndarray,  # as IOHW, or as IOW, with its taps already dilated
) -> Images | None:
    """The convolutions that compute ``call`` with ``weight``; None if there are none."""
    attrs, result = call.attrs, shape_of(call)
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
    axes = len(result) - 2
    if layouts not in (("NCHW", "IOHW", "NCHW"), ("NCW", "IOW", "NCW")):
        return None
    weight = weight.reshape(*weight.shape[:2], *_as_image(weight.shape[2:], 1))
    strides, kernel = _as_image(attrs.strides, 1), weight.shape[2:]
    shape = [*result[:2], *_as_image(result[2:], 1)]
    if 0 in shape or any(k < s for k, s in zip(kernel, strides, strict=True)):
        return None
    begin, groups = _as_image(attrs.padding[:axes], 0), int(attrs.groups)
    sizes = _as_image(shape_of(call.args[0])[2:], 1)
    rows, columns = (
        _axis_geometry(*axis) for axis in zip(sizes, kernel, strides, begin, shape[2:], strict=True)
    )
    together = all(k % s == 0 for k, s in zip(kernel, strides, strict=True))
    if together:
        images = [_images(weight, strides, groups)]
        if groups == 1:  # so that blocks of channels hold one image
            images = [_image_behind_image(images[0], prod(strides))]
    else:
        places = ((y, x) for y in range(strides[0]) for x in range(strides[1]))
        parts = (weight[:, :, y :: strides[0], x :: strides[1]] for y, x in places)
        images = [_images(part, [1, 1], groups) for part in parts]

    def back(*values: relax.Expr) -> relax.Expr:
        value = values[0] if together else relax.op.concat(list(values), axis=1)
        image = _between(value, shape, (rows, columns), strides, beside)
        return image if axes == len(sizes) else relax.op.reshape(image, relax.ShapeExpr(result))

    each, beside = prod(strides) if together else 1, together and groups > 1
    return Images(tuple(images), (rows, columns), groups, each, beside, back)


def _as_image(sizes: Sequence[int], other: int) -> list[int]:
    """Numbers for rows and columns, of which there is ``other`` for rows if one is given."""
    given = [int(size) for size in sizes]
    return [other] * (2 - len(given)) + given


def _between(
    value: relax.Expr,
    shape: Sequence[int],
    geometry: Sequence[AxisGeometry],
    strides: Sequence[int],
    beside: bool,
) -> relax.Expr:
    """Interleave the pixels of ``strides`` images, which are channels of ``value``."""
    counts = [axis.count for axis in geometry]
    if beside:
        split, axes = [*shape[:2], *strides, *counts], [0, 1, 4, 2, 5, 3]
    else:
        split, axes = [shape[0], *strides, shape[1], *counts], [0, 3, 4, 1, 5, 2]
    apart = relax.op.permute_dims(relax.op.reshape(value, relax.ShapeExpr(split)), axes)
    whole = [c * s for c, s in zip(counts, strides, strict=True)]
    image = relax.op.reshape(apart, relax.ShapeExpr([*shape[:2], *whole]))
    if whole == list(shape[2:]):
        return image
    first = [axis.skip for axis in geometry]
    end = [f + size for f, size in zip(first, shape[2:], strict=True)]
    return relax.op.strided_slice(image, [2, 3], first, end)


def _axis_geometry(size: int, kernel: int, stride: int, cut: int, out: int) -> AxisGeometry:
    """Geometry of an axis; pixels in ``cut`` are only computed along with others."""
    left_out = min(cut // stride, max(kernel // stride, 1) - 1)
    skip = cut - left_out * stride
    after = max(-(-(skip + out) // stride) + left_out - size, 0)
    return AxisGeometry(left_out, after, size - left_out + after, skip)


def _images(weight: np.ndarray, strides: list[int], groups: int) -> np.ndarray:
    """(I, O / g, kh, kw)  ->  (O * sh * sw, I / g, kh / sh, kw / sw), taps in reverse order."""
    (inputs, outputs, height, width), (down, right) = weight.shape, strides
    split = weight.reshape(
        groups, inputs // groups, outputs, height // down, down, width // right, right
    )
    flipped = split[:, :, :, ::-1, :, ::-1]
    ordered = flipped.transpose(0, 2, 4, 6, 1, 3, 5)
    return ordered.reshape(-1, inputs // groups, height // down, width // right)


def _image_behind_image(weight: np.ndarray, count: int) -> np.ndarray:
    """(O * s, I, kh, kw)  ->  (s * O, I, kh, kw)."""
    return weight.reshape(-1, count, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)


LAYERS = ("nn.conv2d", "nn.conv2d_transpose", "matmul")


@dataclass(frozen=True)
class Layer:
    """A layer with constant weights."""

    integer: Integer  # the operator that computes its sums
    data: Tensor  # its input
    # int8, as `integer` takes it; unused if there are `images`, which have weights
    weight: np.ndarray
    offset: np.ndarray  # added to the sums of each channel
    unit: np.ndarray  # the number that one step of a channel's sums stands for
    images: Images | None = None  # for a transposed convolution, the convolutions that compute it


def read_layer(
    call: relax.Call,  # one of `LAYERS`
    bias: relax.Expr | None,  # the other operand, if an addition follows
    # returns the integers that an expression is dequantised from
    tensor: Callable[[relax.Expr], Tensor | None],
    definition: Definition,  # returns the expression that a variable is bound to
) -> Layer | None:
    """A convolution or dense layer and its bias; None if it needs floats."""
    kind = kind_of(call)
    if not (_is_matrix(call) if kind == "matmul" else _is_nchw(call)):
        return None
    data = tensor(call.args[0])
    weight = weight_of(call.args[1], 0 if kind == "nn.conv2d" else 1, definition)
    if data is None or weight is None:
        return None
    scales = weight.scale
    if kind == "nn.conv2d_transpose":  # the scales of one group, which all groups share
        scales = np.tile(scales, int(call.attrs.groups))
    unit = data.scale.scale * scales
    axis = len(shape_of(call)) - 1 if kind == "matmul" else 1
    offset = bias_of(bias, call, unit, definition, axis)
    if offset is None:
        return None
    zeros = (data.scale.zero,)
    if kind == "nn.conv2d_transpose":
        conv = Integer("conv2d", zeros=zeros)
        return _transposed(call, Layer(conv, data, weight.value, offset, unit))
    if _largest(weight.value, 1 if kind == "matmul" else 0, offset) >= 2**31:
        return None
    integer = Integer("matmul", zeros=zeros)
    if kind == "nn.conv2d":
        attrs = call.attrs
        integer = Integer(
            "conv2d",
            zeros=zeros,
            strides=ints(attrs.strides),
            padding=ints(attrs.padding),
            dilation=ints(attrs.dilation),
            groups=int(attrs.groups),
        )
    return Layer(integer, data, weight.value, offset, unit)


@dataclass(frozen=True)
class Windows:
    """The windows of an average."""

    # above, left, below and right of the image, as far as windows reach
    padding: tuple[int, int, int, int]
    # number of pixels in each average: (1, 1, rows, columns), or one number for all
    counts: np.ndarray


def windows_of(call: relax.Call) -> Windows | None:
    """The windows of ``nn.avg_pool2d``; None if some are empty.

    Pixels beyond the padding, in the last windows of ``ceil_mode``, are never counted.
    """
    attrs, padding, counts = call.attrs, [*ints(call.attrs.padding)], []
    sizes = zip(shape_of(call.args[0])[2:], shape_of(call)[2:], strict=True)
    steps = zip(*map(ints, (attrs.pool_size, attrs.strides, attrs.dilation)), strict=True)
    for axis, ((size, results), (taps, stride, apart)) in enumerate(zip(sizes, steps, strict=True)):
        first = np.arange(results)[:, None] * stride - padding[axis]
        places = first + np.arange(taps) * apart
        around = (padding[axis], padding[axis + 2]) if attrs.count_include_pad else (0, 0)
        inside = (places >= -around[0]) & (places < size + around[1])
        padding[axis + 2] = max(int(places.max()) + 1 - size, padding[axis + 2])
        counts.append(inside.sum(1))
    product = np.outer(*counts)[None, None].astype("float32")
    if len(np.unique(product)) == 1:
        product = product[:, :, :1, :1]
    top, left, bottom, right = padding
    return Windows((top, left, bottom, right), product) if product.all() else None


def _largest(weight: np.ndarray, axis: int, bias: np.ndarray) -> int:
    """An upper bound of a layer's sums; numbers without their zero point are at most 255."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    sums = np.abs(weight, dtype="int16").sum(others, dtype="int64")
    return int((255 * sums + np.abs(bias.astype("int64"))).max())


def fits(weight: np.ndarray) -> bool:
    """Whether a matrix of integers has 8 bits, and its sums with such numbers have 31."""
    limits = np.iinfo("int8")
    if weight.ndim != 2 or not weight.size:
        return False
    inside = weight.min() >= limits.min and weight.max() <= limits.max
    return bool(inside) and _largest(weight, 1, np.zeros(1)) < 2**31


def _transposed(call: relax.Call, layer: Layer) -> Layer | None:
    images = transposed_images(call, _apart(layer.weight, ints(call.attrs.dilation), call))
    if images is None:
        return None
    offset = images.per_channel(layer.offset)
    if any(_largest(image, 0, offset) >= 2**31 for image in images.weights):
        return None
    return replace(layer, images=images)


def _apart(weight: np.ndarray, dilation: tuple[int, int], call: relax.Call) -> np.ndarray:
    """IOHW with zeros between taps for dilation, and after them up to the stride."""
    kernel = zip(weight.shape[2:], dilation, strict=True)
    reach = [(taps - 1) * apart + 1 for taps, apart in kernel]
    wide = np.zeros((*weight.shape[:2], *map(max, reach, ints(call.attrs.strides))), weight.dtype)
    wide[:, :, : reach[0] : dilation[0], : reach[1] : dilation[1]] = weight
    return wide


def _is_nchw(call: relax.Call) -> bool:
    attrs, kernel = call.attrs, "OIHW" if kind_of(call) == "nn.conv2d" else "IOHW"
    return (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", kernel, "NCHW")


def _is_matrix(call: relax.Call) -> bool:
    """Whether it multiplies rows, perhaps of several axes, by one matrix."""
    data, weight = map(shape_of, call.args)
    return len(data) >= 2 and len(weight) == 2 and 0 not in data


def ints(values: Any) -> Any:
    """``values`` as a tuple of ints."""
    return tuple(int(v) for v in values)
