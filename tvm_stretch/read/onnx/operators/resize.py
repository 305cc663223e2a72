"""Resize and Upsample, pooling, and sampling of regions.

Sizes are static, so which few elements an output reads along an axis is known, and their weights.
An axis then is a weighted sum of gathers; for nearest neighbours it is one gather.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast, constant
from tvm_stretch.read.onnx.operators.layers import spatial_padding, window_attributes
from tvm_stretch.read.windows import Pool, place_of_largest

_POOLS = {
    "MaxPool": (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d),
    "AveragePool": (relax.op.nn.avg_pool1d, relax.op.nn.avg_pool2d, relax.op.nn.avg_pool3d),
}


def _pool(node: Node, kind: str, x: relax.Expr, *, include_pad: bool) -> relax.Expr:
    window = [int(k) for k in node.attr("kernel_shape")]
    rank = len(window)
    if rank > 3 or node.rank() != rank + 2:
        raise node.refuse("1 to 3 spatial dimensions", f"input of rank {node.rank()}")
    stride, dilation = window_attributes(node, rank)
    padding = spatial_padding(node, node.shape()[2:], window, stride, dilation)
    if any(p >= k for p, k in zip(node.attr("pads", []), window * 2, strict=False)):
        raise node.refuse(f"padding smaller than the window {window}", str(padding))
    if node.op == "LpPool" and node.attr("ceil_mode", 0):
        size = node.shape()[2:]
        ends = map(covering, size, window, stride, dilation, padding[:rank], padding[rank:])
        padding = [*padding[:rank], *ends]
    return _POOLS[kind][rank - 1](
        x,
        pool_size=window,
        strides=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=bool(node.attr("ceil_mode", 0)),
        count_include_pad=include_pad,
    )


def covering(size: int, window: int, stride: int, dilation: int, before: int, after: int) -> int:
    """The padding after an axis that covers all windows of ``ceil_mode``: a mean counts it."""
    span = (window - 1) * dilation + 1
    end = -(-(size + before + after - span) // stride) * stride
    last = end if end < size + before else end - stride  # no window sees padding alone
    return max(after, last + span - size - before)


@converter("MaxPool", "AveragePool")
def _max_or_average_pool(node: Node) -> relax.Expr | tuple[relax.Expr, ...]:
    include = bool(node.attr("count_include_pad", 0))
    values = node.emit(_pool(node, node.op, node[0], include_pad=include))
    if len(node.outputs) < 2 or not node.outputs[1]:
        return values
    return values, _places(node, shape_of(values))


def _places(node: Node, result: list[int]) -> relax.Expr:
    """Where the largest numbers stand; places count the elements of all channels and pictures."""
    window, sizes = [int(k) for k in node.attr("kernel_shape")], node.shape()
    stride, dilation = window_attributes(node, len(window))
    padding = spatial_padding(node, sizes[2:], window, stride, dilation)
    last_first = bool(node.attr("storage_order", 0))
    pool = Pool(window, stride, padding[: len(window)], dilation, result, last_first)
    places = place_of_largest(node.emit, node[0], pool)
    first = np.arange(sizes[0] * sizes[1]) * prod(sizes[2:])
    shape = [*sizes[:2], *(1 for _ in window)]
    return relax.op.add(places, constant(first.reshape(shape), "int64"))


@converter("MaxUnpool")
def _max_unpool(node: Node) -> relax.Expr:
    """Numbers at their places of a larger tensor of zeros; an output shape adds more after them."""
    window, sizes = node.attr("kernel_shape"), node.shape()
    stride = node.attr("strides", [1] * len(window))
    pads = node.attr("pads", [0] * 2 * len(window))
    edges = zip(sizes[2:], stride, window, pads, pads[len(window) :], strict=False)
    shape = [*sizes[:2], *((size - 1) * s + k - a - b for size, s, k, a, b in edges)]
    places = node.emit(relax.op.reshape(node[1], (prod(sizes), 1)))
    zeros = node.emit(relax.op.zeros((prod(shape),), node.dtype()))
    numbers = node.emit(relax.op.reshape(node[0], (prod(sizes),)))
    result = node.emit(relax.op.scatter_nd(zeros, places, numbers, "update"))
    result = node.emit(relax.op.reshape(result, shape))
    wanted = node.optional_const(2, "output_shape")
    if wanted is None:
        return result
    after = [int(w) - size for w, size in zip(wanted, shape, strict=True)]
    if min(after) < 0:
        raise node.refuse(f"an output shape of {shape} or more", f"{wanted.tolist()}")
    return relax.op.nn.pad(result, [n for size in after for n in (0, size)])


@converter("LpPool")
def _lp_pool(node: Node) -> relax.Expr:
    p = node.attr("p", 2)
    powers = node.emit(relax.op.power(relax.op.abs(node[0]), node.scalar(p)))
    mean = _pool(node, "AveragePool", powers, include_pad=True)
    count = 1
    for k in node.attr("kernel_shape"):
        count *= k
    return relax.op.power(relax.op.multiply(mean, node.scalar(count)), node.scalar(1 / p))


@converter("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node) -> relax.Expr:
    function = relax.op.mean if node.op == "GlobalAveragePool" else relax.op.max
    return function(node[0], axis=list(range(2, node.rank())), keepdims=True)


@converter("GlobalLpPool")
def _global_lp_pool(node: Node) -> relax.Expr:
    p = node.attr("p", 2)
    powers = relax.op.power(relax.op.abs(node[0]), node.scalar(p))
    total = relax.op.sum(powers, axis=list(range(2, node.rank())), keepdims=True)
    return relax.op.power(total, node.scalar(1 / p))


@converter("RoiAlign")
def _roi_align(node: Node) -> relax.Expr:
    if node.attr("mode", "avg") != "avg":
        raise node.refuse("mode avg", "mode max, which ONNX and TVM define differently")
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    half_pixel = node.attr("coordinate_transformation_mode", default) == "half_pixel"
    scale, rois = node.attr("spatial_scale", 1.0), node[1]
    if half_pixel:  # a half of a pixel of the feature map
        rois = relax.op.subtract(rois, node.scalar(0.5 / scale, node.dtype(1)))
    batch = relax.op.astype(relax.op.expand_dims(node[2], axis=1), node.dtype(1))
    # channels last, so that the places of a sample are computed once for a vector of channels
    pixels = node.emit(relax.op.permute_dims(node[0], [0, 2, 3, 1]))
    aligned = relax.op.vision.roi_align(
        pixels,
        node.emit(relax.op.concat([batch, rois], axis=1)),
        pooled_size=(node.attr("output_height", 1), node.attr("output_width", 1)),
        spatial_scale=scale,
        sample_ratio=node.attr("sampling_ratio", 0),
        aligned=half_pixel,
        layout="NHWC",
    )
    return relax.op.permute_dims(node.emit(aligned), [0, 3, 1, 2])


@converter("GridSample")
def _grid_sample(node: Node) -> relax.Expr:
    layouts = {4: ("NCHW", [0, 3, 1, 2]), 5: ("NCDHW", [0, 4, 1, 2, 3])}
    mode = node.attr("mode", "bilinear")
    method = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if node.rank() not in layouts or (node.rank() == 5 and method == "bicubic"):
        raise node.refuse("2 spatial dimensions, or 3 without cubic", f"{mode}, rank {node.rank()}")
    layout, order = layouts[node.rank()]
    wide = "float32" if node.dtype() in ("float16", "bfloat16") else node.dtype()
    x, grid = (node.emit(cast(node, node[i], wide)) for i in (0, 1))  # places in 11 bits are none
    sampled = relax.op.image.grid_sample(
        x,
        relax.op.permute_dims(grid, order),
        method=method,
        layout=layout,
        padding_mode=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )
    return cast(node, node.emit(sampled), node.dtype())


@converter("AffineGrid")
def _affine_grid(node: Node) -> relax.Expr:
    """ONNX's own function squeezes a batch of one away."""
    sizes = node.ints(1, "size")[2:]
    steps = [np.linspace(-1, 1, size) for size in sizes]
    if not node.attr("align_corners", 0):
        steps = [(2 * np.arange(size) + 1) / size - 1 for size in sizes]
    axes = np.meshgrid(*steps, indexing="ij")[::-1]  # the last axis is x
    places = np.stack([*axes, np.ones(sizes)], axis=-1).reshape(-1, len(sizes) + 1)
    turned = node.emit(relax.op.permute_dims(node[0], [0, 2, 1]))
    grid = node.emit(relax.op.matmul(constant(places, node.dtype()), turned))
    return relax.op.reshape(grid, [node.shape()[0], *sizes, len(sizes)])


_Taps = tuple[np.ndarray, np.ndarray]
"""Columns and weights, both (outputs, taps)."""


@converter("Upsample")
def _upsample(node: Node) -> Value:
    scales = node.const(1, "scales") if node.opset >= 9 else np.asarray(node.attr("scales"))
    node.attrs = {
        "mode": node.attr("mode", "nearest"),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    sizes = [int(np.floor(n * s)) for n, s in zip(node.shape(), scales, strict=True)]
    return _resample(node, sizes, [float(s) for s in scales], None)


@converter("Resize")
def _resize(node: Node) -> Value:
    shape, rank = node.shape(), node.rank()
    if node.opset < 11:
        node.inputs = [node.inputs[0], None, node.inputs[1]]
        node.attrs = {**node.attrs, "coordinate_transformation_mode": "asymmetric",
                      "nearest_mode": "floor"}  # fmt: skip
    axes = [axis % rank for axis in node.attr("axes", range(rank))]
    roi = node.const(1, "roi") if node.has(1) and np.prod(node.shape(1)) else None
    scales, sizes = [1.0] * rank, list(shape)
    if node.has(2) and np.prod(node.shape(2)):
        for axis, scale in zip(axes, node.const(2, "scales"), strict=True):
            scales[axis] = float(scale)
            sizes[axis] = int(np.floor(shape[axis] * np.float64(scale))) if not node.has(3) else 0
        for axis, size in zip(axes, node.ints(3, "sizes") if node.has(3) else (), strict=False):
            sizes[axis] = size  # torch's sizes do not follow from its scales
    else:
        wanted = node.ints(3, "sizes")
        fitted = _keep_aspect_ratio(node, [shape[axis] for axis in axes], wanted)
        for axis, (size, scale) in zip(axes, fitted, strict=True):
            scales[axis], sizes[axis] = scale, size
    full_roi = None
    if roi is not None:
        full_roi = [(0.0, 1.0)] * rank
        for i, axis in enumerate(axes):
            full_roi[axis] = (float(roi[i]), float(roi[len(axes) + i]))
    return _resample(node, sizes, scales, full_roi)


def _keep_aspect_ratio(node: Node, shape: list[int], wanted: list[int]) -> list[tuple[int, float]]:
    """Size and scale per axis for the sizes that the model asks for."""
    scales = [want / size for want, size in zip(wanted, shape, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return list(zip(wanted, scales, strict=True))
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [(int(np.floor(scale * size + 0.5)), scale) for size in shape]


def _resample(
    node: Node, sizes: list[int], scales: list[float], roi: list[tuple[float, float]] | None
) -> Value:
    """Interpolate along each axis that changes."""
    if "float" not in node.dtype() and node.attr("mode", "nearest") != "nearest":
        raise node.refuse("floating-point numbers to interpolate", node.dtype())
    x: Value = node.inputs[0]
    for axis, (before, after, scale) in enumerate(zip(node.shape(), sizes, scales, strict=True)):
        bounds = roi[axis] if roi else (0.0, 1.0)
        crops = node.attr("coordinate_transformation_mode") == "tf_crop_and_resize"
        if before == after and scale == 1.0 and not (crops and bounds != (0.0, 1.0)):
            continue
        places = _coordinates(node, before, after, scale, bounds)
        x = node.emit(_apply(node, as_expr(x), axis, _taps(node, places, before, scale)))
        if crops:
            outside = (places < 0) | (places > before - 1)
            x = node.emit(_fill_outside(node, x, axis, outside))
    return x


def _coordinates(
    node: Node, before: int, after: int, scale: float, roi: tuple[float, float]
) -> np.ndarray:
    """Where in the input each output element lies."""
    node.check_table(after)
    out = np.arange(after, dtype="float64")
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    start, end = roi
    length = scale * before
    formulas: dict[str, Callable[[], np.ndarray]] = {
        "half_pixel": lambda: (out + 0.5) / scale - 0.5,
        "half_pixel_symmetric": lambda: (
            before / 2 * (1 - after / length) + (out + 0.5) / scale - 0.5
        ),
        "pytorch_half_pixel": lambda: (out + 0.5) / scale - 0.5 if length > 1 else out * 0,
        "align_corners": lambda: out * (before - 1) / (length - 1) if length != 1 else out * 0,
        "asymmetric": lambda: out / scale,
        "tf_crop_and_resize": lambda: (
            start * (before - 1) + out * (end - start) * (before - 1) / (after - 1)
            if after > 1
            else out * 0 + 0.5 * (start + end) * (before - 1)
        ),
    }
    if mode not in formulas:
        raise node.refuse(f"one of {sorted(formulas)}", f"coordinate_transformation_mode {mode}")
    return formulas[mode]()


def _taps(node: Node, places: np.ndarray, before: int, scale: float) -> _Taps:
    """Which elements each output reads along one axis, and their weights."""
    mode = node.attr("mode", "nearest")
    if mode == "nearest":
        columns = _nearest(node, places).clip(0, before - 1)[:, None]
        return columns, np.ones(columns.shape)
    if mode not in ("linear", "cubic"):
        raise node.refuse("mode nearest, linear or cubic", mode)
    shrink = min(scale, 1.0) if node.attr("antialias", 0) else 1.0
    support = {"linear": 1.0, "cubic": 2.0}[mode] / shrink
    count = int(np.ceil(2 * support)) + 2
    node.check_table(len(places), count)
    taps = np.floor(places - support).astype(int)[:, None] + np.arange(count)
    distance = np.abs(places[:, None] - taps) * shrink
    a = node.attr("cubic_coeff_a", -0.75)
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, a)
    if node.attr("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= before), 0, weights)
    if node.attr("exclude_outside", 0) or shrink != 1.0:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return _merged(taps.clip(0, before - 1), weights)


def _merged(columns: np.ndarray, weights: np.ndarray) -> _Taps:
    """Taps beyond the border fall on the same element: one has the weight of all."""
    for tap in range(1, columns.shape[1]):
        same = columns[:, tap] == columns[:, tap - 1]
        weights[:, tap] += weights[:, tap - 1] * same
        weights[:, tap - 1] *= ~same
    return columns, weights


def _nearest(node: Node, places: np.ndarray) -> np.ndarray:
    functions: dict[str, Any] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    rounding = functions[node.attr("nearest_mode", "round_prefer_floor")]
    return rounding(places).astype(int)


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _apply(node: Node, x: relax.Expr, axis: int, taps: _Taps) -> relax.Expr:
    """The weighted sum of what each output reads of ``x`` along ``axis``."""
    columns, weights = taps
    count = max(int((weights != 0).sum(axis=1).max()), 1)
    first = np.argsort(weights == 0, axis=1, kind="stable")[:, :count]
    columns = np.take_along_axis(columns, first, axis=1)
    weights = np.take_along_axis(weights, first, axis=1)
    lined_up = [-1 if i == axis else 1 for i in range(node.rank())]
    total = None
    for tap in range(count):
        part = relax.op.take(x, as_expr(columns[:, tap].astype("int32")), axis, mode="clip")
        if not (weights[:, tap] == 1).all():
            factor = weights[:, tap].reshape(lined_up).astype(node.dtype())
            part = relax.op.multiply(part, as_expr(factor))
        total = part if total is None else relax.op.add(total, part)
    return total


def _fill_outside(node: Node, x: relax.Expr, axis: int, outside: np.ndarray) -> relax.Expr:
    mask = outside.reshape([-1 if i == axis else 1 for i in range(node.rank())])
    return relax.op.where(as_expr(mask), node.scalar(node.attr("extrapolation_value", 0.0)), x)
