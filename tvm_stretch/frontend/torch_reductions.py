"""Reductions and edges that TVM's importer of torch does not know.

x.amax((2, 3)), x.amin(-1)       one or several axes; all of them without axes
x.min(2)                         values and places
x.prod(1), x.any()               one axis; all of them
F.pad(x, (1, 2), "reflect")      elements taken by constant indices, as for "replicate"
x.scatter_add(1, places, y)      ONNX's ScatterElements with a sum
select_scatter(x, y, 1, 3)       y where the index along axis 1 is 3
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.frontend.gathered import gathered, padded

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""The names of relax for the reductions of `scatter_reduce`."""


def _argument(node: Any, importer: Any, place: int, name: str, default: Any) -> Any:
    args = importer.retrieve_args(node)
    return args[place] if len(args) > place else node.kwargs.get(name, default)


def _extreme(function: Callable[..., relax.Expr]) -> Callable[[Any, Any], relax.Expr]:
    def convert(node: Any, importer: Any) -> relax.Expr:
        axes = _argument(node, importer, 1, "dim", ()) or None
        keep = _argument(node, importer, 2, "keepdim", False)
        return importer.block_builder.emit(function(importer.env[node.args[0]], axes, keep))

    return convert


def _least(node: Any, importer: Any) -> relax.Expr:
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    axis = _argument(node, importer, 1, "dim", 0)
    keep = _argument(node, importer, 2, "keepdim", False)
    values, places = relax.op.min(x, axis, keep), relax.op.argmin(x, axis, keep)
    return emit(relax.Tuple([emit(values), emit(places)]))


def _product(node: Any, importer: Any) -> relax.Expr:
    axis = _argument(node, importer, 1, "dim", None)
    keep = _argument(node, importer, 2, "keepdim", False)
    return importer.block_builder.emit(relax.op.prod(importer.env[node.args[0]], axis, keep))


def _any(node: Any, importer: Any) -> relax.Expr:
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    found = emit(relax.op.astype(emit(relax.op.astype(x, "bool")), "int8"))
    return emit(relax.op.astype(emit(relax.op.max(found)), "bool"))


def _edges(mode: str) -> Callable[[Any, Any], relax.Expr]:
    """Padding of the last axes by elements of the tensor."""

    def convert(node: Any, importer: Any) -> relax.Expr:
        x, pads = importer.retrieve_args(node)[:2]
        sizes, places = [int(size) for size in x.ty.shape.values], {}
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


def _scatter_add(node: Any, importer: Any) -> relax.Expr:
    x, axis, places, values = importer.retrieve_args(node)[:4]
    added = relax.op.scatter_elements(x, places, values, axis, "add")
    return importer.block_builder.emit(added)


def _scatter_reduce(node: Any, importer: Any) -> relax.Expr:
    x, axis, places, values, reduction = importer.retrieve_args(node)[:5]
    whole = node.kwargs.get("include_self", True)
    if reduction not in _REDUCTIONS or not whole:
        raise UnsupportedError(
            f"expected one of {[*_REDUCTIONS]} with include_self for scatter_reduce, got "
            f"{reduction!r} with include_self={whole}; write it in other operators"
        )
    found = relax.op.scatter_elements(x, places, values, axis, _REDUCTIONS[reduction])
    return importer.block_builder.emit(found)


def _select_scatter(node: Any, importer: Any) -> relax.Expr:
    emit = importer.block_builder.emit
    x, values, axis, index = importer.retrieve_args(node)[:4]
    sizes = [int(size) for size in x.ty.shape.values]
    axis %= len(sizes)
    chosen = np.arange(sizes[axis]) == index % sizes[axis]
    mask = relax.const(chosen.reshape([-1 if a == axis else 1 for a in range(len(sizes))]), "bool")
    return emit(relax.op.where(mask, emit(relax.op.expand_dims(values, axis)), x))


REDUCTIONS: dict[str, Callable[[Any, Any], relax.Expr]] = {
    "amax.default": _extreme(relax.op.max),
    "amin.default": _extreme(relax.op.min),
    "min.dim": _least,
    "prod.dim_int": _product,
    "any.default": _any,
    **{f"reflection_pad{rank}d.default": _edges("reflect") for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": _edges("edge") for rank in (1, 2, 3)},
    "scatter_add.default": _scatter_add,
    "scatter_reduce.two": _scatter_reduce,
    "select_scatter.default": _select_scatter,
}
"""By torch's name."""
