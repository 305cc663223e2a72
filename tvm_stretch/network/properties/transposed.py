"""Write a transposed convolution as convolutions.

    y = conv2d_transpose(x, w, strides=2)   ->   y = reshape(permute_dims(reshape(conv2d(x, w1))))

A transposed convolution of stride s consists of s x s images with interleaved pixels, each a
convolution of the input; here the images are channels at first.  If the stride divides the kernel,
one convolution computes all images. Otherwise images have different numbers of taps and are
separate convolutions (with zeros as taps, infinities in float would become NaN).

A transposed convolution along one axis is that of an image of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of


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


def transposed_images(call: relax.Call, weight: np.ndarray) -> Images | None:
    """The convolutions that compute ``call`` with ``weight``; None if there are none.

    Args:
        call: a call of ``nn.conv2d_transpose`` or ``nn.conv1d_transpose``.
        weight: as IOHW, or as IOW, with its taps already dilated.
    """
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
