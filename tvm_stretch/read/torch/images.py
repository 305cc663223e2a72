"""Resizes, samplers and the places of pools, which TVM's importer translates wrongly or not at all.

interpolate(x, (7, 7))                     the nearest pixel is the one below
interpolate(x, scale_factor=1.3)           the factor gives the places, not the sizes' ratio
interpolate(x, .., "bicubic", antialias)   ONNX's Resize: sums of weighted gathers
max_pool2d(x, 3, return_indices=True)      `pool_places.py`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.gathered import gathered
from tvm_stretch.read.onnx.operators.pooling import covering
from tvm_stretch.read.pool_places import Pool, place_of_largest
from tvm_stretch.read.torch.nodes import argument, as_onnx

Converter = Callable[[Any, Any], relax.Expr]


def _sizes(node: Any, importer: Any) -> tuple[relax.Expr, list[int], list[int]]:
    """The tensor, and its sizes before and after, without batch and channels."""
    x = importer.env[node.args[0]]
    return x, shape_of(x)[2:], [int(size) for size in node.meta["val"].shape[2:]]


def _nearest(*, centred: bool) -> Converter:
    """Torch reads pixel ``floor(i * step)``, or ``floor((i + 0.5) * step)`` if ``centred``.

    The step is the inverse of a given factor, or the sizes' ratio, for which there is a resize.
    """

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit = importer.block_builder.emit
        x, old, new = _sizes(node, importer)
        if old == new and len(old) == 2 and not centred:
            return x  # whatever the factor
        factors = (node.args[2] if len(node.args) > 2 else None) or [None] * len(old)
        steps = [1 / f if f else o / n for f, o, n in zip(factors, old, new, strict=True)]
        half = 0.5 if centred else 0.0
        places = [_read(*sizes, half) for sizes in zip(old, new, steps, strict=True)]
        ratios = [_read(o, n, o / n, 0.0) for o, n in zip(old, new, strict=True)]
        if len(old) != 2 or not all(map(np.array_equal, places, ratios)):
            return gathered(emit, x, dict(enumerate(places, 2)))
        return emit(
            relax.op.image.resize2d(
                x,
                relax.ShapeExpr(new),
                layout="NCHW",
                method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric",
                rounding_method="floor",
            )
        )

    return convert


def _read(old: int, new: int, step: float, half: float) -> np.ndarray:
    """The pixel that each new one is."""
    places = (np.arange(new, dtype="float32") + np.float32(half)) * np.float32(step)
    return np.minimum(places.astype("int32"), old - 1)


def _interpolated(mode: str, *, smoothed: bool = False) -> Converter:
    """Between pixels: factors say where they lie, unless corners are aligned."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, old, new = _sizes(node, importer)
        aligned = bool(node.args[2])
        given = [*node.args[3:5], *node.kwargs.values()]
        factors = given if smoothed else argument(node, importer, 3, "scale_factors", None)
        attributes: dict[str, Any] = {
            "mode": mode.encode(),
            "axes": [*range(2, 2 + len(new))],
            "coordinate_transformation_mode": b"align_corners" if aligned else b"half_pixel",
            "cubic_coeff_a": -0.5 if smoothed else -0.75,
            "antialias": int(smoothed),
            "exclude_outside": int(smoothed),
        }
        if aligned and smoothed:  # windows by the ratio of distances, yet places by halves
            attributes["coordinate_transformation_mode"] = b"half_pixel"
            pairs = zip(old, new, strict=True)
            ratios = [(n - 1) / (o - 1) if o > 1 and n > 1 else np.inf for o, n in pairs]
            inputs = [x, None, np.asarray(ratios), np.asarray(new)]
        elif factors and all(factors) and not aligned:
            if mode == "linear":  # torch copies axes that keep their size
                factors = [1 if o == n else f for f, o, n in zip(factors, old, new, strict=True)]
            inputs = [x, None, np.asarray(factors, "float64")]
        else:
            inputs = [x, None, None, np.asarray(new)]
        return as_onnx(node, importer, "Resize", inputs, attributes)

    return convert


_MODES = (b"linear", b"nearest", b"cubic")
_EDGES = (b"zeros", b"border", b"reflection")


def _grid_sample(node: Any, importer: Any) -> relax.Expr:
    x, grid, mode, edge, aligned = importer.retrieve_args(node)
    attributes = {
        "mode": _MODES[mode],
        "padding_mode": _EDGES[edge],
        "align_corners": int(aligned),
    }
    return as_onnx(node, importer, "GridSample", [x, grid], attributes)


def _max_pool(rank: int) -> Converter:
    """The largest numbers, and their places if these are used."""
    operator = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)[rank - 1]

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit = importer.block_builder.emit
        x, kernel = importer.retrieve_args(node)[:2]
        stride = _each(argument(node, importer, 2, "stride", None) or kernel, rank)
        padding = _each(argument(node, importer, 3, "padding", 0), rank)
        dilation = _each(argument(node, importer, 4, "dilation", 1), rank)
        ceil = bool(argument(node, importer, 5, "ceil_mode", False))
        unbatched = len(x.ty.shape.values) == rank + 1
        if unbatched:
            x = emit(relax.op.expand_dims(x, 0))
        kernel = _each(kernel, rank)
        values = emit(operator(x, kernel, stride, padding, dilation, ceil))
        results = [values]
        if any(user.args[1] == 1 for user in node.users):
            pool = Pool(kernel, stride, padding, dilation, shape_of(values))
            results.append(place_of_largest(emit, x, pool))
        if unbatched:
            results = [emit(relax.op.squeeze(result, [0])) for result in results]
        return emit(relax.Tuple(results if len(results) == 2 else results * 2))

    return convert


def _avg_pool(rank: int) -> Converter:
    """A divisor of the sum's own counts the whole window."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit = importer.block_builder.emit
        divisor = argument(node, importer, 6, "divisor_override", None)
        if divisor is None:
            return getattr(importer, f"_avg_pool{rank}d")(node)
        x, kernel = importer.retrieve_args(node)[:2]
        strides = _each(argument(node, importer, 2, "stride", None) or kernel, rank)
        padding = _each(argument(node, importer, 3, "padding", 0), rank)
        operator = relax.op.nn.avg_pool2d if rank == 2 else relax.op.nn.avg_pool3d
        kernel, ends = _each(kernel, rank), padding
        if argument(node, importer, 4, "ceil_mode", False):
            window = kernel, strides, [1] * rank, padding, padding
            ends = [*map(covering, shape_of(x)[-rank:], *window)]
        mean = emit(operator(x, kernel, strides, [*padding, *ends], count_include_pad=True))
        return emit(relax.op.multiply(mean, relax.const(prod(kernel) / divisor, x.ty.dtype)))

    return convert


def _adaptive_max_pool(node: Any, importer: Any) -> relax.Expr:
    """Along one axis after the other, the last one first; short windows repeat their last element.

    So the first of equal numbers is that of the first row, as in torch.
    """
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    sizes, new = shape_of(x), node.args[1]
    counts, places = _each(new, len(new)), None
    for axis, count in reversed([*enumerate(counts, len(sizes) - len(counts))]):
        size = sizes[axis]
        first = np.arange(count) * size // count
        last = -(-(np.arange(count) + 1) * size // count) - 1
        offsets = np.arange((last - first).max() + 1)
        taken = relax.const(np.minimum(first[:, None] + offsets, last[:, None]), "int32")
        windows = emit(relax.op.take(x, taken, axis, mode="clip"))
        if any(user.args[1] == 1 for user in node.users):
            shape = [size if a == axis else 1 for a in range(len(sizes))]
            step = prod(sizes[axis + 1 :])
            own = relax.const((np.arange(size) * step).reshape(shape), "int64")
            places = own if places is None else emit(relax.op.add(places, own))
            whole = relax.ShapeExpr(shape_of(x))
            found = emit(
                relax.op.take(emit(relax.op.broadcast_to(places, whole)), taken, axis, mode="clip")
            )
            best = emit(relax.op.argmax(windows, axis + 1, True))
            places = emit(
                relax.op.squeeze(emit(relax.op.gather_elements(found, best, axis + 1)), [axis + 1])
            )
        x = emit(relax.op.max(windows, [axis + 1]))
    return emit(relax.Tuple([x, x if places is None else places]))


def _each(value: int | Sequence[int], rank: int) -> list[int]:
    """A number for each axis."""
    values = [value] if isinstance(value, int) else [*value]
    return values * rank if len(values) == 1 else values


IMAGES: dict[str, Converter] = {
    **{f"upsample_nearest{rank}d.vec": _nearest(centred=False) for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d.vec": _nearest(centred=True) for rank in (1, 2, 3)},
    "upsample_linear1d.vec": _interpolated("linear"),
    "upsample_bilinear2d.vec": _interpolated("linear"),
    "upsample_trilinear3d.vec": _interpolated("linear"),
    "upsample_bicubic2d.vec": _interpolated("cubic"),
    "_upsample_bilinear2d_aa.default": _interpolated("linear", smoothed=True),
    "_upsample_bicubic2d_aa.default": _interpolated("cubic", smoothed=True),
    "grid_sampler_2d.default": _grid_sample,
    "grid_sampler_3d.default": _grid_sample,
    **{f"max_pool{rank}d_with_indices.default": _max_pool(rank) for rank in (2, 3)},
    **{f"avg_pool{rank}d.default": _avg_pool(rank) for rank in (2, 3)},
    **{f"adaptive_max_pool{rank}d.default": _adaptive_max_pool for rank in (2, 3)},
}
"""By torch's name."""
