"""Operators of torch that TVM's importer translates wrongly, or not at all.

x[:, i, j]                       one element for each pair, not rows i and columns j
conv2d(x: bfloat16, w, bias)     the bias is added in the network's type
"""

from __future__ import annotations

from typing import Any

from tvm import relax


def converters() -> dict[str, Any]:
    """By torch's name, as TVM's importer wants them."""
    return {
        "index.Tensor": _index,
        "convolution.default": _convolution,
        "addmm.default": _addmm,
        **dict.fromkeys(("mm.default", "bmm.default", "matmul.default"), _matmul),
    }


def _index(node: Any, importer: Any) -> relax.Expr:
    """Bring the indexed axes to the front, take one element per tuple of indices, and go back.

    Axes that are indexed side by side stay where they were; others leave theirs in front.
    """
    x, indices = importer.retrieve_args(node)
    emit, rank = importer.block_builder.emit, len(x.ty.shape.values)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    given = [emit(relax.op.astype(indices[axis], "int64")) for axis in axes]
    shape = _broadcast([[int(d) for d in index.ty.shape.values] for index in given])
    parts = [emit(relax.op.expand_dims(_widened(index, shape), len(shape))) for index in given]
    places = emit(relax.op.concat(parts, len(shape))) if len(parts) > 1 else parts[0]
    rest = [axis for axis in range(rank) if axis not in axes]
    front = emit(relax.op.permute_dims(x, axes + rest))
    taken = emit(relax.op.gather_nd(front, places))
    if axes != list(range(axes[0], axes[0] + len(axes))):
        return taken
    new, before = list(range(len(shape))), axes[0]
    others = list(range(len(shape), len(shape) + len(rest)))
    return emit(relax.op.permute_dims(taken, others[:before] + new + others[before:]))


def _broadcast(shapes: list[list[int]]) -> list[int]:
    rank = max(map(len, shapes))
    padded = [[1] * (rank - len(shape)) + shape for shape in shapes]
    return [max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True)]


def _widened(index: relax.Expr, shape: list[int]) -> relax.Expr:
    return relax.op.broadcast_to(index, relax.ShapeExpr(shape))


def _convolution(node: Any, importer: Any) -> relax.Expr:
    """TVM's importer computes in float32; what follows is in the network's type again."""
    emit = importer.block_builder.emit
    bias = importer.env[node.args[2]] if node.args[2] is not None else None
    node.update_arg(2, None)
    result = importer._convolution(node)
    dtype = importer.env[node.args[0]].ty.dtype
    if result.ty.dtype != dtype:
        result = emit(relax.op.astype(result, dtype))
    if bias is None:
        return result
    shape = [1, int(bias.ty.shape.values[0]), *(1 for _ in result.ty.shape.values[2:])]
    return emit(relax.op.add(result, emit(relax.op.reshape(bias, relax.ShapeExpr(shape)))))


def _matmul(node: Any, importer: Any) -> relax.Expr:
    a, b = (importer.env[arg] for arg in node.args[:2])
    return importer.block_builder.emit(relax.op.matmul(a, b))


def _addmm(node: Any, importer: Any) -> relax.Expr:
    """``beta * bias + alpha * (a @ b)``."""
    emit = importer.block_builder.emit
    bias, a, b = (importer.env[arg] for arg in node.args[:3])
    product = emit(relax.op.matmul(a, b))
    factors = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
    terms = [
        value if factor == 1 else emit(relax.op.multiply(value, relax.const(factor, a.ty.dtype)))
        for value, factor in zip((bias, product), factors, strict=True)
        if factor
    ]
    return emit(relax.op.add(terms[1], terms[0])) if len(terms) == 2 else terms[0]
