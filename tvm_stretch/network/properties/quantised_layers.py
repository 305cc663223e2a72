"""Read convolutions and dense layers of a quantised network: their integers and the scales.

R.add(R.nn.conv2d(R.dequantize(x, ..), R.dequantize(w, ..)), R.dequantize(b, ..))
->
Layer: sums of x * w + b in int32, each worth scale of x * scale of w for its channel
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.integers import Integer
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.properties.quantised_values import Definition, Tensor, bias_of, weight_of
from tvm_stretch.network.properties.transposed import Images, transposed_images

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
