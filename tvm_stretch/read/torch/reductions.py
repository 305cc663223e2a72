"""Reductions and edges that TVM's importer of torch does not know.

x.amax((2, 3)), x.amin(-1)       one or several axes; all of them without axes
x.min(2)                         values and places
x.prod(1), x.any()               one axis; all of them
F.pad(x, (1, 2), "reflect")      elements taken by constant indices, as for "replicate"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.read.gathered import gathered, padded
from tvm_stretch.read.torch.nodes import argument, dtype_of, is_static, of_type


def _extreme(function: Callable[..., relax.Expr]) -> Callable[[Any, Any], relax.Expr]:
    def convert(node: Any, importer: Any) -> relax.Expr:
        axes = argument(node, importer, 1, "dim", ()) or None
        keep = argument(node, importer, 2, "keepdim", False)
        return importer.block_builder.emit(function(importer.env[node.args[0]], axes, keep))

    return convert


def _least(node: Any, importer: Any) -> relax.Expr:
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axis = argument(node, importer, 1, "dim", 0)
    keep = argument(node, importer, 2, "keepdim", False)
    values, places = relax.op.min(x, axis, keep), relax.op.argmin(x, axis, keep)
    return emit(relax.Tuple([emit(values), emit(places)]))


def _product(node: Any, importer: Any) -> relax.Expr:
    axis = argument(node, importer, 1, "dim", None)
    keep = argument(node, importer, 2, "keepdim", False)
    x = of_type(importer, importer.env[node.args[0]], dtype_of(node))
    return importer.block_builder.emit(relax.op.prod(x, axis, keep))


def _product_of_all(node: Any, importer: Any) -> relax.Expr:
    x = of_type(importer, importer.env[node.args[0]], dtype_of(node))
    return importer.block_builder.emit(relax.op.prod(x))


def _of_truths(function: Callable[..., relax.Expr], of_none: bool) -> Any:
    """`any` and `all`: the greatest and the least truth; `of_none` is that of no elements."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        emit, x = importer.block_builder.emit, importer.env[node.args[0]]
        axes = argument(node, importer, 1, "dim", None)
        keep = argument(node, importer, 2, "keepdim", False)
        if is_static(x) and 0 in shape_of(x):
            return constant(np.full([*node.meta["val"].shape], of_none, dtype_of(node)))
        found = of_type(importer, of_type(importer, x, "bool"), "int8")
        return of_type(importer, emit(function(found, axes, keep)), dtype_of(node))

    return convert


def _variance(node: Any, importer: Any) -> relax.Expr:
    """Infinite where fewer than ``correction`` numbers are left, and NaN if they are equal."""
    x, axes = importer.env[node.args[0]], argument(node, importer, 1, "dim", None)
    correction = node.kwargs.get("correction")
    if not is_static(x):
        return importer._var_correction(node)
    sizes = shape_of(x)
    count = int(np.prod([sizes[axis] for axis in (axes if axes else range(len(sizes)))]))
    if count > (1 if correction is None else correction):
        return importer._var_correction(node)
    keep = node.kwargs.get("keepdim", False)
    var = importer.block_builder.emit(relax.op.variance(x, axes or None, keepdims=keep))
    return importer.block_builder.emit(relax.op.multiply(var, relax.const(np.inf, x.ty.dtype)))


def _var_mean(node: Any, importer: Any) -> relax.Expr:
    """The variance as the importer computes it, and the mean."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axes = argument(node, importer, 1, "dim", None)
    mean = emit(relax.op.mean(x, axes, keepdims=node.kwargs.get("keepdim", False)))
    return emit(relax.Tuple([_variance(node, importer), mean]))


def _norm(node: Any, importer: Any) -> relax.Expr:
    """``sum(|x| ** p) ** (1 / p)``; 0 counts, and infinity finds the largest."""
    emit, dtype = importer.block_builder.emit, dtype_of(node)
    x = of_type(importer, importer.env[node.args[0]], dtype)
    order = argument(node, importer, 1, "ord", 2)
    axes = argument(node, importer, 2, "dim", None) or None
    keep = argument(node, importer, 3, "keepdim", False)
    if order == 0:
        x = of_type(importer, of_type(importer, x, "bool"), dtype)
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


def _top(node: Any, importer: Any) -> relax.Expr:
    """Sorted, also where any order will do."""
    x, count = importer.retrieve_args(node)[:2]
    axis = argument(node, importer, 2, "dim", -1)
    largest = argument(node, importer, 3, "largest", True)
    if count == 0:  # TVM takes all
        shape = [*node.meta["val"][0].shape]
        return relax.Tuple([constant(np.zeros(shape, t)) for t in (str(x.ty.dtype), "int64")])
    found = relax.op.topk(x, count, axis, "both", largest, "int64")
    return importer.block_builder.emit(found)


def _sorted(node: Any, importer: Any) -> relax.Expr:
    """Equal elements keep their order."""
    x = importer.env[node.args[0]]
    stable = node.target.__name__ == "sort.stable"
    axis = node.kwargs.get("dim", -1) if stable else argument(node, importer, 1, "dim", -1)
    last = argument(node, importer, 2, "descending", False)
    found = relax.op.topk(x, int(x.ty.shape.values[axis]), axis, "both", last, "int64")
    return importer.block_builder.emit(found)


def _edges(mode: str) -> Callable[[Any, Any], relax.Expr]:
    """Padding of the last axes by elements of the tensor."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, pads = importer.retrieve_args(node)[:2]
        sizes, places = shape_of(x), {}
        for place in range(len(pads) // 2):
            axis, pair = len(sizes) - 1 - place, pads[2 * place : 2 * place + 2]
            if min(pair) < 0:
                raise UnsupportedError(
                    f"expected padding of at least 0 for {node.target}, got {pair}; "
                    "slice the tensor instead"
                )
            if any(pair):
                places[axis] = padded(sizes[axis], pair, mode)
        return gathered(importer.block_builder.emit, x, places)

    return convert


REDUCTIONS: dict[str, Callable[[Any, Any], relax.Expr]] = {
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
