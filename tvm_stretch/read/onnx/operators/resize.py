"""Resize and Upsample.

Sizes are static, so which few elements an output reads along an axis is known, and their weights.
An axis then is a weighted sum of gathers; for nearest neighbours it is one gather.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter

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
