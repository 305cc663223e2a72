"""Operators that only move data: reshape, transpose, slice, concat, pad."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx.numpy_helper
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.operators import kind_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter, dtype_of, numpy_dtype
from tvm_stretch.read.windows import Windows, fold, gathered, padded


@converter("Shape")
def _shape(node: Node) -> np.ndarray:
    shape = node.shape()
    return np.asarray(shape[node.attr("start", 0) : node.attr("end", len(shape))], "int64")


@converter("Size")
def _size(node: Node) -> np.ndarray:
    return np.asarray(np.prod(node.shape(), dtype="int64"), "int64")


def reshape(x: relax.Expr, shape: list[int]) -> relax.Expr:
    """``x`` with another shape."""
    return relax.op.reshape(x, relax.ShapeExpr(shape))


@converter("Reshape")
def _reshape(node: Node) -> relax.Expr:
    old = node.shape()
    flat = node.has(1) and not node.is_const(1) and node.shape(1) == [1]  # whatever it says
    new = [-1] if flat else node.ints(1, "shape")
    if not node.attr("allowzero", 0):
        new = [old[i] if size == 0 and i < len(old) else size for i, size in enumerate(new)]
    count = int(np.prod(old))
    if -1 in new:
        rest = int(np.prod([size for size in new if size != -1]))
        new[new.index(-1)] = count // rest if rest else 0
    if int(np.prod(new)) != count:
        raise node.refuse(f"a shape of {count} elements", str(new))
    return reshape(node[0], new)


@converter("Flatten")
def _flatten(node: Node) -> relax.Expr:
    shape, axis = node.shape(), node.axis(1)
    return reshape(node[0], [int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))])


@converter("Squeeze")
def _squeeze(node: Node) -> relax.Expr:
    shape, axes = node.shape(), node.optional_ints(1, "axes")
    if axes is None:
        return reshape(node[0], [size for size in shape if size != 1])
    dropped = {axis % len(shape) for axis in axes}
    if any(shape[axis] != 1 for axis in dropped):
        raise node.refuse("axes of size 1", f"axes {axes} of shape {shape}")
    return reshape(node[0], [size for i, size in enumerate(shape) if i not in dropped])


@converter("Unsqueeze")
def _unsqueeze(node: Node) -> relax.Expr:
    shape, axes = node.shape(), node.ints(1, "axes")
    rank = len(shape) + len(axes)
    new = {axis % rank for axis in axes}
    sizes = iter(shape)
    return reshape(node[0], [1 if i in new else next(sizes) for i in range(rank)])


@converter("Transpose")
def _transpose(node: Node) -> relax.Expr:
    order = [int(axis) for axis in node.attr("perm", range(node.rank())[::-1])]
    return relax.op.permute_dims(node[0], order)


@converter("Concat")
def _concat(node: Node) -> Value:
    axis = node.axis(1)
    parts = [node[i] for i in range(len(node.inputs)) if node.shape(i)[axis] > 0]
    if not parts:
        return node.inputs[0]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=axis)


@converter("Split")
def _split(node: Node) -> tuple[Value, ...]:
    axis = node.axis(0)
    extent = node.shape()[axis]
    sizes = node.optional_ints(1, "split")
    if sizes is None:
        count = len(node.outputs)
        each = -(-extent // count)
        sizes = [each] * (count - 1) + [extent - each * (count - 1)]
    if len(sizes) == 1:
        return (node.inputs[0],)
    full = [size for size in sizes if size]
    if len(full) < len(sizes):
        return _split_with_empty(node, axis, sizes)
    cuts = [int(cut) for cut in np.cumsum(sizes)[:-1]]
    parts = node.emit(relax.op.split(node[0], cuts, axis=axis))
    return tuple(relax.TupleGetItem(parts, i) for i in range(len(sizes)))


def _split_with_empty(node: Node, axis: int, sizes: list[int]) -> tuple[Value, ...]:
    """Parts without elements are constants."""
    ends = np.cumsum(sizes)
    return tuple(
        relax.op.strided_slice(node[0], [axis], [int(end) - size], [int(end)])
        if size
        else nothing(node, axis)
        for size, end in zip(sizes, ends, strict=True)
    )


def nothing(node: Node, axis: int) -> np.ndarray:
    """A tensor like input 0 without elements along ``axis``."""
    shape = [0 if i == axis else size for i, size in enumerate(node.shape())]
    return np.zeros(shape, numpy_dtype(node.dtype()))


@converter("Slice")
def _slice(node: Node) -> Value:
    rank = node.rank()
    starts, ends = node.ints(1, "starts"), node.ints(2, "ends")
    axes = node.optional_ints(3, "axes") or list(range(len(starts)))
    steps = node.optional_ints(4, "steps") or [1] * len(starts)
    axes = [axis % rank for axis in axes]
    x, flipped, begin, end, stride = node[0], [], [], [], []
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        picked = range(node.shape()[axis])[start:stop:step]
        if not picked:
            if len(axes) > 1:
                raise node.refuse("a slice with elements", f"{start}:{stop}:{step}")
            return nothing(node, axis)
        if step < 0:
            flipped.append(axis)
        begin.append(min(picked[0], picked[-1]))
        end.append(max(picked[0], picked[-1]) + 1)
        stride.append(abs(step))
    x = relax.op.strided_slice(x, axes, begin, end, stride)
    for axis in flipped:
        x = relax.op.flip(node.emit(x), axis)
    return x


@converter("Pad")
def _pad(node: Node) -> relax.Expr:
    rank = node.rank()
    pads = node.ints(1, "pads")
    value = node.attr("value", 0)
    if node.opset >= 11:
        value = _dequantised(node, 2)
        value = node.optional_const(2, "constant_value") if value is None else value
    axes = node.optional_ints(3, "axes") or list(range(rank))
    width = [[0, 0] for _ in range(rank)]
    for i, axis in enumerate(axes):
        width[axis % rank] = [pads[i], pads[len(axes) + i]]
    x = node[0]
    if any(w < 0 for pair in width for w in pair):
        x = node.emit(_crop(node, width))
        width = [[max(w, 0) for w in pair] for pair in width]
    mode = node.attr("mode", "constant")
    if mode != "constant":
        return _pad_by_index(node, x, width, mode)
    fill = 0 if value is None else np.asarray(value).item()
    return relax.op.nn.pad(x, [w for pair in width for w in pair], "constant", fill)


def _dequantised(node: Node, index: int) -> np.ndarray | None:
    """What input ``index`` is if it is dequantised from constants: quantisers write so."""
    given = node.inputs[index] if node.has(index) else None
    call: Any = node.bb.lookup_binding(given) if isinstance(given, relax.Var) else None
    if kind_of(call) != "dequantize" or not isinstance(call.args[0], GenericConst):
        return None
    number, scale, zero = (arg.value.numpy().astype("float32") for arg in call.args)
    return (number - zero) * scale


def _crop(node: Node, width: list[list[int]]) -> relax.Expr:
    """Negative padding removes elements."""
    shape = node.shape()
    begin = [max(-before, 0) for before, _ in width]
    end = [size - max(-after, 0) for size, (_, after) in zip(shape, width, strict=True)]
    return relax.op.strided_slice(node[0], list(range(len(shape))), begin, end)


def _pad_by_index(node: Node, x: relax.Expr, width: list[list[int]], mode: str) -> relax.Expr:
    """Modes that repeat elements of the input: gather them along each padded axis."""
    modes: dict[str, Any] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    numpy_mode = modes.get(mode)
    if numpy_mode is None:
        raise node.refuse("mode constant, reflect, edge or wrap", mode)
    places = {}
    for axis, pair in enumerate(width):
        if any(pair):
            size = int(x.ty.shape.values[axis])
            if mode == "reflect" and max(pair) >= size:
                raise node.refuse(f"reflection of fewer than the {size} elements", str(max(pair)))
            node.check_table(size + sum(pair))
            places[axis] = padded(size, pair, numpy_mode)
    return gathered(node.emit, x, places)


@converter("Expand")
def _expand(node: Node) -> relax.Expr:
    shape = np.broadcast_shapes(tuple(node.shape()), tuple(node.ints(1, "shape")))
    return relax.op.broadcast_to(node[0], relax.ShapeExpr([int(size) for size in shape]))


@converter("Tile")
def _tile(node: Node) -> relax.Expr:
    """Repeat along a new axis before each: no division of indices.

    (2, 3) twice, once   ->   (1, 2, 1, 3)   ->   (2, 2, 1, 3)   ->   (4, 3)
    """
    shape, repeats = node.shape(), node.ints(1, "repeats")
    spread = reshape(node[0], [size for n in shape for size in (1, n)])
    pairs = [size for r, n in zip(repeats, shape, strict=True) for size in (r, n)]
    repeated = node.emit(relax.op.broadcast_to(node.emit(spread), relax.ShapeExpr(pairs)))
    return reshape(repeated, [r * n for r, n in zip(repeats, shape, strict=True)])


@converter("ConstantOfShape")
def _constant_of_shape(node: Node) -> Value:
    fill = node.attr("value")
    fill = np.float32(0) if fill is None else onnx.numpy_helper.to_array(fill).reshape(-1)[0]
    shape = node.ints(0, "shape")
    return relax.op.full(relax.ShapeExpr(shape), as_expr(np.asarray(fill)), str(fill.dtype))


@converter("EyeLike")
def _eye_like(node: Node) -> np.ndarray:
    dtype = dtype_of(node.attr("dtype")) if node.attr("dtype") else node.dtype()
    rows, columns = node.shape()
    node.check_table(rows, columns)
    return np.eye(rows, columns, node.attr("k", 0)).astype(dtype)


@converter("Trilu")
def _trilu(node: Node) -> relax.Expr:
    k = int(node.const(1, "k").item()) if node.has(1) else 0
    rows, columns = node.shape()[-2:]
    upper = bool(node.attr("upper", 1))
    node.check_table(rows, columns)
    ones = np.ones((rows, columns), "bool")
    mask = np.triu(ones, k) if upper else np.tril(ones, k)
    zero = node.scalar(0) if node.dtype() != "bool" else node.scalar(value=False)
    return relax.op.where(as_expr(mask), node[0], zero)


@converter("DepthToSpace")
def _depth_to_space(node: Node) -> relax.Expr:
    b = node.attr("blocksize")
    n, c, h, w = node.shape()
    if node.attr("mode", "DCR") == "DCR":
        split, order = [n, b, b, c // b**2, h, w], [0, 3, 4, 1, 5, 2]
    else:
        split, order = [n, c // b**2, b, b, h, w], [0, 1, 4, 2, 5, 3]
    moved = node.emit(relax.op.permute_dims(reshape(node[0], split), order))
    return reshape(moved, [n, c // b**2, h * b, w * b])


@converter("SpaceToDepth")
def _space_to_depth(node: Node) -> relax.Expr:
    b = node.attr("blocksize")
    n, c, h, w = node.shape()
    order = [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    split = reshape(node[0], [n, c, h // b, b, w // b, b])
    return reshape(node.emit(relax.op.permute_dims(split, order)), [n, c * b**2, h // b, w // b])


@converter("ReverseSequence")
def _reverse_sequence(node: Node) -> relax.Expr:
    return relax.op.reverse_sequence(
        node[0],
        node[1],
        seq_axis=node.attr("time_axis", 0),
        batch_axis=node.attr("batch_axis", 1),
    )


@converter("Col2Im")
def _col_to_image(node: Node) -> relax.Expr:
    size, kernel = node.ints(1, "image_shape"), node.ints(2, "block_shape")
    ones, pads = [1] * len(size), node.attr("pads", [0] * 2 * len(size))
    windows = Windows(
        size,
        kernel,
        node.attr("dilations", ones),
        pads[: len(size)],
        pads[len(size) :],
        node.attr("strides", ones),
    )
    rows, columns = node.shape()[1:]
    if rows % math.prod(kernel) or columns != math.prod(windows.counts):
        expected = f"blocks of {math.prod(kernel)} rows and {math.prod(windows.counts)} columns"
        raise node.refuse(expected, f"the shape {node.shape()}")
    node.check_table(windows.elements)
    return fold(node.emit, node[0], windows)
