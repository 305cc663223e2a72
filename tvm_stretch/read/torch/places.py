"""Elements that are read or written by index, and tensors that are joined.

x[:, i, j]                       one element for each pair, not rows i and columns j
x.index_put((i,), y)             ONNX's ScatterND; a mask chooses between x and y
x.scatter_add(1, places, y)      ONNX's ScatterElements with a sum
select_scatter(x, y, 1, 3)       y where the index along axis 1 is 3
x.as_strided((3, 2), (2, 5))     elements taken by constant indices
cat([x, n])                      all in the result's type
bucketize(x, bounds)             how many bounds are below
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant, ends_of, shape_of
from tvm_stretch.read.onnx.node import numpy_dtype
from tvm_stretch.read.torch.importer import Call

_REDUCTIONS = {"sum": b"add", "prod": b"mul", "amax": b"max", "amin": b"min"}
"""ONNX's names for the reductions of `scatter_reduce`."""
_REDUCED = {None: b"none", "add": b"add", "multiply": b"mul"}
"""ONNX's names for those of `scatter`."""


@dataclass
class _Indexed:
    """Some axes of a tensor, indexed by tensors that are broadcast to one shape.

    Axes that are indexed side by side stay where they were; others leave theirs in front.
    """

    call: Call
    x: relax.Expr
    indices: list[relax.Expr | None]

    def __post_init__(self) -> None:
        emit = self.emit = self.call.emit
        rank = len(self.x.ty.shape.values)
        self.axes = [axis for axis, index in enumerate(self.indices) if index is not None]
        self.rest = [axis for axis in range(rank) if axis not in self.axes]
        given = [emit(relax.op.astype(self.indices[axis], "int64")) for axis in self.axes]
        shape = self.shape = _broadcast([*map(shape_of, given)])
        parts = [emit(relax.op.expand_dims(_widened(i, shape), len(shape))) for i in given]
        self.places = emit(relax.op.concat(parts, len(shape))) if len(parts) > 1 else parts[0]
        self.front = self.turned(self.x, self.axes + self.rest)

    def turned(self, x: relax.Expr, order: list[int]) -> relax.Expr:
        """A tensor with its axes in another order."""
        return self.emit(relax.op.permute_dims(x, order))

    @property
    def order(self) -> list[int]:
        """The axes of the taken elements, in the order of torch's result."""
        new, axes = list(range(len(self.shape))), self.axes
        others = list(range(len(new), len(new) + len(self.rest)))
        if axes != list(range(axes[0], axes[0] + len(axes))):
            return new + others
        return others[: axes[0]] + new + others[axes[0] :]

    def taken(self) -> relax.Expr:
        """One element for each tuple of indices."""
        return self.turned(self.emit(relax.op.gather_nd(self.front, self.places)), self.order)

    def written(self, values: relax.Expr, reduction: bytes) -> relax.Expr:
        """The tensor with ``values`` at the tuples of indices."""
        sizes = shape_of(self.x)
        whole = [*self.shape, *(sizes[axis] for axis in self.rest)]
        order = self.order
        shape = relax.ShapeExpr([whole[axis] for axis in order])
        values = self.emit(relax.op.broadcast_to(values, shape))
        values = self.turned(values, [order.index(axis) for axis in range(len(order))])
        inputs = [self.front, self.places, values]
        scattered = self.call.onnx("ScatterND", inputs, {"reduction": reduction})
        moved = self.axes + self.rest
        return self.turned(scattered, [moved.index(axis) for axis in range(len(moved))])


def _broadcast(shapes: list[list[int]]) -> list[int]:
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def _widened(index: relax.Expr, shape: list[int]) -> relax.Expr:
    return relax.op.broadcast_to(index, relax.ShapeExpr(shape))


def _has_mask(indices: Sequence[relax.Expr | None]) -> bool:
    return any(index is not None and str(index.ty.dtype) == "bool" for index in indices)


def _index(call: Call) -> relax.Expr:
    x, indices = call.args
    if _has_mask(indices):
        got = "a mask, whose number of elements depends on the data"
        raise call.refused("indices", got, "use torch.where")
    return _Indexed(call, x, indices).taken()


def _index_put(call: Call) -> relax.Expr:
    x, indices, values = call.args[:3]
    added = bool(call.get(3, "accumulate", False))
    values = call.typed(values, str(x.ty.dtype))
    if not _has_mask(indices):
        indexed = _Indexed(call, x, indices)
        return indexed.written(values, b"add" if added else b"none")
    emit, shape, given = call.emit, shape_of(x), shape_of(values)
    mask, *others = indices
    rest = shape[len(shape_of(mask)) :] if mask is not None else []
    each = given[1:] if len(given) > len(rest) and given[0] == 1 else given  # for each place
    if others or mask is None or len(each) > len(rest):
        wanted = "indices, or one mask and the same values for each place,"
        raise call.refused(wanted, "a mask with others", "use torch.where")
    mask = emit(relax.op.expand_dims(mask, [*range(len(shape) - len(rest), len(shape))]))
    values = emit(relax.op.reshape(values, relax.ShapeExpr(each)))
    values = emit(relax.op.add(x, values)) if added else values
    return emit(relax.op.where(mask, values, x))


def _written(call: Call, x: relax.Expr, values: relax.Expr, reduction: bytes) -> relax.Expr:
    """Elements at the places of one axis; those of ``values`` beyond the places are not read."""
    axis, places = call.args[1:3]
    sizes = shape_of(places)
    if sizes != shape_of(values):
        axes = [*range(len(sizes))]
        values = call.emit(relax.op.strided_slice(values, axes, [0] * len(sizes), sizes))
    attributes = {"axis": axis, "reduction": reduction}
    return call.onnx("ScatterElements", [x, places, values], attributes)


def _scatter(call: Call) -> relax.Expr:
    """``scatter`` of a tensor or a number."""
    x, _, places, values = call.args[:4]
    values = call.typed(values, str(x.ty.dtype))
    if not values.ty.shape.values:
        values = call.emit(relax.op.broadcast_to(values, places.ty.shape))
    reduction = call.get(4, "reduce", None)
    return _written(call, x, values, _REDUCED[reduction])


def _scatter_add(call: Call) -> relax.Expr:
    return _written(call, call.x, call.importer.env[call.node.args[3]], b"add")


def _scatter_reduce(call: Call) -> relax.Expr:
    """Without the tensor's own elements, neutral ones are written to the places before."""
    emit, (x, _, _, values, kind) = call.emit, call.args[:5]
    whole, dtype = call.node.kwargs.get("include_self", True), str(x.ty.dtype)
    if kind == "mean" and "float" not in dtype:
        raise call.refused("floating-point numbers", dtype, "convert them before")
    if not whole:
        lowest, highest = ends_of(dtype)
        neutral = {"prod": 1, "amax": lowest, "amin": highest}.get(kind, 0)
        x = _written(call, x, _like(values, neutral), b"none")
    if kind != "mean":
        return _written(call, x, values, _REDUCTIONS[kind])
    total = _written(call, x, values, b"add")
    counts = _written(call, _like(x, int(whole)), _like(values, 1), b"add")
    return emit(relax.op.divide(total, relax.op.maximum(counts, relax.const(1, dtype))))


def _like(x: relax.Expr, number: float) -> relax.Expr:
    dtype = str(x.ty.dtype)
    return relax.const(np.full(shape_of(x), number, dtype), dtype)


def _select_scatter(call: Call) -> relax.Expr:
    emit, (x, values, axis, index) = call.emit, call.args[:4]
    sizes = shape_of(x)
    axis %= len(sizes)
    chosen = np.arange(sizes[axis]) == index % sizes[axis]
    mask = relax.const(chosen.reshape([-1 if a == axis else 1 for a in range(len(sizes))]), "bool")
    return emit(relax.op.where(mask, emit(relax.op.expand_dims(values, axis)), x))


def _as_strided(call: Call) -> relax.Expr:
    """The elements of the tensor lie in memory one after the other."""
    emit, (x, sizes, strides) = call.emit, call.args[:3]
    tensor = call.node.args[0].meta["val"]
    offset = call.get(3, "storage_offset", None) or 0
    if not tensor.is_contiguous() or tensor.storage_offset():
        got = f"strides {tensor.stride()}"
        raise call.refused("a contiguous tensor", got, "call contiguous() before")
    counts = [np.arange(size) * stride for size, stride in zip(sizes, strides, strict=True)]
    places = sum(np.ix_(*counts), np.asarray(offset)).reshape(-1)
    if np.array_equal(places, np.arange(tensor.numel())):
        return emit(relax.op.reshape(x, relax.ShapeExpr(sizes)))
    flat = emit(relax.op.reshape(x, relax.ShapeExpr([tensor.numel()])))
    taken = emit(relax.op.take(flat, relax.const(places, "int64"), 0, mode="clip"))
    return emit(relax.op.reshape(taken, relax.ShapeExpr(sizes)))


def _arange(call: Call) -> relax.Expr:
    """The importer counts falling numbers wrongly."""
    import torch

    if any(not isinstance(arg, int | float) for arg in call.node.args):  # a symbol
        return call.importer._arange(call.node)
    dtype = call.node.meta["val"].dtype
    values = torch.arange(*call.node.args, dtype=dtype)
    # NumPy has no bfloat16 of torch's
    numbers = (values if dtype != torch.bfloat16 else values.float()).numpy()
    return call.emit(constant(numbers.astype(numpy_dtype(call.dtype))))


def _bucket(call: Call) -> relax.Expr:
    """The number of bounds below each number, or of those that are not above it if ``right``."""
    emit, (x, bounds) = call.emit, call.args[:2]
    if call.node.target.__name__.startswith("searchsorted"):
        x, bounds = bounds, x
    if len(bounds.ty.shape.values) > 1:  # a row for each row of numbers
        bounds = emit(relax.op.expand_dims(bounds, -2))
    right = call.node.kwargs.get("right", False) or call.node.kwargs.get("side") == "right"
    compare = relax.op.less_equal if right else relax.op.less
    if isinstance(x, int | float):  # of the bounds' type if that is as exact
        whole = isinstance(x, int) or "float" in str(bounds.ty.dtype)
        x = relax.const(x, str(bounds.ty.dtype) if whole else "float32")
    dtype = str(x.ty.dtype) if "float" in str(x.ty.dtype) else str(bounds.ty.dtype)
    x, bounds = call.typed(x, dtype), call.typed(bounds, dtype)
    below = emit(compare(bounds, emit(relax.op.expand_dims(x, -1))))
    return emit(relax.op.sum(emit(relax.op.astype(below, call.dtype)), -1))


def _joined(call: Call) -> relax.Expr:
    """Torch leaves out empty vectors."""
    rank = len(call.node.meta["val"].shape)
    parts = [call.typed(x) for x in call.args[0] if len(x.ty.shape.values) == rank]
    return call.emit(relax.op.concat(parts, call.get(1, "dim", 0)))


def _index_select(call: Call) -> relax.Expr:
    x, axis, places = call.args
    return call.emit(relax.op.take(x, places, axis))


def _of_data(call: Call) -> relax.Expr:
    raise call.refused(
        "results whose shapes are known before a run",
        "one whose number of elements depends on the data",
        "keep all elements and use a mask, as with torch.where",
    )


_OF_DATA = ["masked_select", "nonzero", "_unique2", "unique_consecutive", "unique_dim", "bincount"]

PLACES = {
    **{f"{name}.default": _of_data for name in _OF_DATA},
    "index.Tensor": _index,
    "index_select.default": _index_select,
    **dict.fromkeys(("index_put.default", "index_put_.default"), _index_put),
    **{f"scatter.{kind}": _scatter for kind in ("src", "value", "reduce", "value_reduce")},
    "scatter_add.default": _scatter_add,
    "scatter_reduce.two": _scatter_reduce,
    "select_scatter.default": _select_scatter,
    "as_strided.default": _as_strided,
    "cat.default": _joined,
    **{
        f"{name}.{x}": _bucket
        for name in ("bucketize", "searchsorted")
        for x in ("Tensor", "Scalar")
    },
    **{f"arange.{kind}": _arange for kind in ("default", "start", "start_step")},
}
"""By torch's name."""
