"""Resizes, samplers, pools, reductions and edges, which TVM's importer translates wrongly or not.

interpolate(x, (7, 7))                     the nearest pixel is the one below
interpolate(x, scale_factor=1.3)           the factor gives the places, not the sizes' ratio
interpolate(x, .., "bicubic", antialias)   ONNX's Resize: sums of weighted gathers
max_pool2d(x, 3, return_indices=True)      `read/windows.py`
x.amax((2, 3)), x.amin(-1)                 one or several axes; all of them without axes
x.min(2)                                   values and places
x.prod(1), x.any()                         one axis; all of them
F.pad(x, (1, 2), "reflect")                elements taken by constant indices, as for "replicate"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.read.onnx.operators.resize import covering
from tvm_stretch.read.torch.importer import Call, Converter, is_static
from tvm_stretch.read.windows import Pool, gathered, padded, place_of_largest


def _extreme(function: Callable[..., relax.Expr]) -> Converter:
    def convert(call: Call) -> relax.Expr:
        axes, keep = call.get(1, "dim", ()) or None, call.get(2, "keepdim", False)
        return call.emit(function(call.x, axes, keep))

    return convert


def _least(call: Call) -> relax.Expr:
    given = call.x, call.get(1, "dim", 0), call.get(2, "keepdim", False)
    return call.emit(relax.Tuple([call.emit(f(*given)) for f in (relax.op.min, relax.op.argmin)]))


def _product(call: Call) -> relax.Expr:
    axis, keep = call.get(1, "dim", None), call.get(2, "keepdim", False)
    return call.emit(relax.op.prod(call.typed(call.x), axis, keep))


def _product_of_all(call: Call) -> relax.Expr:
    return call.emit(relax.op.prod(call.typed(call.x)))


def _of_truths(function: Callable[..., relax.Expr], of_none: bool) -> Any:
    """`any` and `all`: the greatest and the least truth; `of_none` is that of no elements."""

    def convert(call: Call) -> relax.Expr:
        x, axes, keep = call.x, call.get(1, "dim", None), call.get(2, "keepdim", False)
        if is_static(x) and 0 in shape_of(x):
            return constant(np.full([*call.node.meta["val"].shape], of_none, call.dtype))
        integers = call.typed(call.typed(x, "bool"), "int8")
        return call.typed(call.emit(function(integers, axes, keep)))

    return convert


def _variance(call: Call) -> relax.Expr:
    """Infinite where fewer than ``correction`` numbers are left, and NaN if they are equal."""
    x, axes = call.x, call.get(1, "dim", None)
    correction = call.node.kwargs.get("correction")
    if not is_static(x):
        return call.importer._var_correction(call.node)
    sizes = shape_of(x)
    count = int(np.prod([sizes[axis] for axis in (axes if axes else range(len(sizes)))]))
    if count > (1 if correction is None else correction):
        return call.importer._var_correction(call.node)
    keep = call.node.kwargs.get("keepdim", False)
    var = call.emit(relax.op.variance(x, axes or None, keepdims=keep))
    return call.emit(relax.op.multiply(var, relax.const(np.inf, x.ty.dtype)))


def _var_mean(call: Call) -> relax.Expr:
    """The variance as the importer computes it, and the mean."""
    emit, x = call.emit, call.x
    axes = call.get(1, "dim", None)
    mean = emit(relax.op.mean(x, axes, keepdims=call.node.kwargs.get("keepdim", False)))
    return emit(relax.Tuple([_variance(call), mean]))


def _norm(call: Call) -> relax.Expr:
    """``sum(|x| ** p) ** (1 / p)``; 0 counts, and infinity finds the largest."""
    emit, dtype = call.emit, call.dtype
    x = call.typed(call.x, dtype)
    order = call.get(1, "ord", 2)
    axes = call.get(2, "dim", None) or None
    keep = call.get(3, "keepdim", False)
    if order == 0:
        x = call.typed(call.typed(x, "bool"), dtype)
        return emit(relax.op.sum(x, axes, keep))
    if order == 2:
        return emit(relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axes, keep)))
    x = emit(relax.op.abs(x))
    if order in (np.inf, -np.inf):
        return emit((relax.op.max if order > 0 else relax.op.min)(x, axes, keep))
    if order == 1:
        return emit(relax.op.sum(x, axes, keep))
    total = relax.op.sum(relax.op.power(x, relax.const(order, dtype)), axes, keep)
    return emit(relax.op.power(total, relax.const(1 / order, dtype)))


def _top(call: Call) -> relax.Expr:
    """Sorted, also where any order will do."""
    x, count = call.args[:2]
    axis = call.get(2, "dim", -1)
    largest = call.get(3, "largest", True)
    if count == 0:  # TVM takes all
        shape = [*call.node.meta["val"][0].shape]
        return relax.Tuple([constant(np.zeros(shape, t)) for t in (str(x.ty.dtype), "int64")])
    pair = relax.op.topk(x, count, axis, "both", largest, "int64")
    return call.emit(pair)


def _sorted(call: Call) -> relax.Expr:
    """Equal elements keep their order."""
    x = call.x
    stable = call.node.target.__name__ == "sort.stable"
    axis = call.node.kwargs.get("dim", -1) if stable else call.get(1, "dim", -1)
    last = call.get(2, "descending", False)
    pair = relax.op.topk(x, int(x.ty.shape.values[axis]), axis, "both", last, "int64")
    return call.emit(pair)


def _edges(mode: str) -> Converter:
    """Padding of the last axes by elements of the tensor."""

    def convert(call: Call) -> relax.Expr:
        x, pads = call.args[:2]
        sizes, places = shape_of(x), {}
        for place in range(len(pads) // 2):
            axis, pair = len(sizes) - 1 - place, pads[2 * place : 2 * place + 2]
            if min(pair) < 0:
                raise call.refused("padding of at least 0", str(pair), "slice the tensor instead")
            if any(pair):
                places[axis] = padded(sizes[axis], pair, mode)
        return gathered(call.emit, x, places)

    return convert


REDUCTIONS: dict[str, Converter] = {
    "amax.default": _extreme(relax.op.max),
    "amin.default": _extreme(relax.op.min),
    "min.dim": _least,
    "prod.dim_int": _product,
    "prod.default": _product_of_all,
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _of_truths(relax.op.max, False)),
    **dict.fromkeys(("all.default", "all.dim", "all.dims"), _of_truths(relax.op.min, True)),
    "var.correction": _variance,
    "var_mean.correction": _var_mean,
    "linalg_vector_norm.default": _norm,
    "topk.default": _top,
    **dict.fromkeys(("sort.default", "sort.stable"), _sorted),
    **{f"reflection_pad{rank}d.default": _edges("reflect") for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": _edges("edge") for rank in (1, 2, 3)},
}
"""By torch's name."""


def _sizes(call: Call) -> tuple[relax.Expr, list[int], list[int]]:
    """The tensor, and its sizes before and after, without batch and channels."""
    x = call.x
    return x, shape_of(x)[2:], [int(size) for size in call.node.meta["val"].shape[2:]]


def _nearest(*, centred: bool) -> Converter:
    """Torch reads pixel ``floor(i * step)``, or ``floor((i + 0.5) * step)`` if ``centred``.

    The step is the inverse of a given factor, or the sizes' ratio, for which there is a resize.
    """

    def convert(call: Call) -> relax.Expr:
        emit, (x, old, new) = call.emit, _sizes(call)
        if old == new and len(old) == 2 and not centred:
            return x  # whatever the factor
        factors = (call.node.args[2] if len(call.node.args) > 2 else None) or [None] * len(old)
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

    def convert(call: Call) -> relax.Expr:
        x, old, new = _sizes(call)
        aligned = bool(call.node.args[2])
        given = [*call.node.args[3:5], *call.node.kwargs.values()]
        factors = given if smoothed else call.get(3, "scale_factors", None)
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
        return call.onnx("Resize", inputs, attributes)

    return convert


_MODES = (b"linear", b"nearest", b"cubic")
_EDGES = (b"zeros", b"border", b"reflection")


def _grid_sample(call: Call) -> relax.Expr:
    x, grid, mode, edge, aligned = call.args
    edges = {"padding_mode": _EDGES[edge], "align_corners": int(aligned)}
    return call.onnx("GridSample", [x, grid], {"mode": _MODES[mode], **edges})


def _max_pool(rank: int) -> Converter:
    """The largest numbers, and their places if these are used."""
    operator = (relax.op.nn.max_pool1d, relax.op.nn.max_pool2d, relax.op.nn.max_pool3d)[rank - 1]

    def convert(call: Call) -> relax.Expr:
        emit, (x, kernel) = call.emit, call.args[:2]
        stride = _per_axis(call.get(2, "stride", None) or kernel, rank)
        padding = _per_axis(call.get(3, "padding", 0), rank)
        dilation = _per_axis(call.get(4, "dilation", 1), rank)
        ceil = bool(call.get(5, "ceil_mode", False))
        unbatched = len(x.ty.shape.values) == rank + 1
        if unbatched:
            x = emit(relax.op.expand_dims(x, 0))
        kernel = _per_axis(kernel, rank)
        values = emit(operator(x, kernel, stride, padding, dilation, ceil))
        results = [values]
        if any(user.args[1] == 1 for user in call.node.users):
            pool = Pool(kernel, stride, padding, dilation, shape_of(values))
            results.append(place_of_largest(emit, x, pool))
        if unbatched:
            results = [emit(relax.op.squeeze(result, [0])) for result in results]
        return emit(relax.Tuple(results if len(results) == 2 else results * 2))

    return convert


def _avg_pool(rank: int) -> Converter:
    """A divisor of the sum's own counts the whole window."""

    def convert(call: Call) -> relax.Expr:
        emit, divisor = call.emit, call.get(6, "divisor_override", None)
        if divisor is None:
            return getattr(call.importer, f"_avg_pool{rank}d")(call.node)
        x, kernel = call.args[:2]
        strides = _per_axis(call.get(2, "stride", None) or kernel, rank)
        padding = _per_axis(call.get(3, "padding", 0), rank)
        operator = relax.op.nn.avg_pool2d if rank == 2 else relax.op.nn.avg_pool3d
        kernel, ends = _per_axis(kernel, rank), padding
        if call.get(4, "ceil_mode", False):
            window = kernel, strides, [1] * rank, padding, padding
            ends = [*map(covering, shape_of(x)[-rank:], *window)]
        mean = emit(operator(x, kernel, strides, [*padding, *ends], count_include_pad=True))
        return emit(relax.op.multiply(mean, relax.const(prod(kernel) / divisor, x.ty.dtype)))

    return convert


def _adaptive_max_pool(call: Call) -> relax.Expr:
    """Along one axis after the other, the last one first; short windows repeat their last element.

    So the first of equal numbers is that of the first row, as in torch.
    """
    emit, x = call.emit, call.x
    sizes, new = shape_of(x), call.node.args[1]
    counts, places = _per_axis(new, len(new)), None
    for axis, count in reversed([*enumerate(counts, len(sizes) - len(counts))]):
        size = sizes[axis]
        first = np.arange(count) * size // count
        last = -(-(np.arange(count) + 1) * size // count) - 1
        offsets = np.arange((last - first).max() + 1)
        taken = relax.const(np.minimum(first[:, None] + offsets, last[:, None]), "int32")
        windows = emit(relax.op.take(x, taken, axis, mode="clip"))
        if any(user.args[1] == 1 for user in call.node.users):
            shape = [size if a == axis else 1 for a in range(len(sizes))]
            step = prod(sizes[axis + 1 :])
            own = relax.const((np.arange(size) * step).reshape(shape), "int64")
            places = own if places is None else emit(relax.op.add(places, own))
            whole = relax.ShapeExpr(shape_of(x))
            pair = emit(
                relax.op.take(emit(relax.op.broadcast_to(places, whole)), taken, axis, mode="clip")
            )
            best = emit(relax.op.argmax(windows, axis + 1, True))
            places = emit(
                relax.op.squeeze(emit(relax.op.gather_elements(pair, best, axis + 1)), [axis + 1])
            )
        x = emit(relax.op.max(windows, [axis + 1]))
    return emit(relax.Tuple([x, x if places is None else places]))


def _per_axis(value: int | Sequence[int], rank: int) -> list[int]:
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
