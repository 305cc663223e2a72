"""Pooling and sampling of regions."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import Node, converter
from tvm_stretch.read.onnx.operators.elementwise import cast, constant
from tvm_stretch.read.onnx.operators.layers import spatial_padding, window_attributes
from tvm_stretch.read.pool_places import Pool, place_of_largest

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
    last = -(-(size + before + after - span) // stride) * stride
    if last >= size + before:  # it would see nothing else
        last -= stride
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
    found = relax.op.vision.roi_align(
        pixels,
        node.emit(relax.op.concat([batch, rois], axis=1)),
        pooled_size=(node.attr("output_height", 1), node.attr("output_width", 1)),
        spatial_scale=scale,
        sample_ratio=node.attr("sampling_ratio", 0),
        aligned=half_pixel,
        layout="NHWC",
    )
    return relax.op.permute_dims(node.emit(found), [0, 3, 1, 2])


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
