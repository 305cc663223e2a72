"""Concatenate, slice, pad and move pixels of values in blocks of channels.

y = R.strided_slice(x, rows 2 to 9 by 3, columns 1 to 9)   ->   the same slice of x5
y = R.strided_slice(x, channels 8 to 24)                   ->   blocks 1 to 3 of x5
y = R.nn.pad(x, a row below, a column to the right)        ->   the same padding of x5
y = R.take(x, rows)                                        ->   the same rows of x5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.emitting.blocked_layouts import Layouts
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import BINARY, UNARY, kind_of
from tvm_stretch.targets.kernels import blocks

_ROW_BY_ROW = UNARY | BINARY | {"reshape", "permute_dims", "matmul"}
"""Operators that keep rows of a matrix apart, or move them."""


def blocked_concat(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """Images side by side in channels or rows; None if none of them is in blocks."""
    parts, axis = call.args[0], int(call.attrs.axis) % 4
    if not isinstance(parts, relax.Tuple) or len(shape_of(call)) != 4 or axis not in (1, 2):
        return None
    if not any(layouts.is_blocked(part) for part in parts.fields):
        return None
    if str(call.ty.dtype) not in ("float32", "float16", "int8", "uint8"):
        return None
    operands = [layouts.blocked(part) for part in parts.fields]
    if axis == 2:
        return layouts.bb.emit(relax.op.concat(operands, axis=2))
    widths = [shape_of(part)[1] for part in parts.fields]
    return blocks.concat(layouts.bb, layouts.machine, operands, widths)


def blocked_slice(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """A slice of pixels, images or whole blocks of channels; None if it cuts a block."""
    whole, lanes = shape_of(call.args[0]), layouts.lanes
    if len(whole) != 4 or 0 in shape_of(call):
        return None
    axes, begin, end, *steps = ([int(field) for field in arg.fields] for arg in call.args[1:])
    axes = [axis % 4 for axis in axes]
    if 1 in axes:
        i, channels = axes.index(1), whole[1]
        first, last, step = slice(begin[i], end[i], *(s[i] for s in steps)).indices(channels)
        if step != 1 or first % lanes or (last % lanes and last != channels):
            return None
        begin[i], end[i] = first // lanes, -(-last // lanes)
    data = layouts.blocked(call.args[0])
    return layouts.bb.emit(relax.op.strided_slice(data, axes, begin, end, *steps))


def blocked_pad(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """A blocked value with pixels or images around it; None if channels would be added."""
    widths, attrs = [int(width) for width in call.attrs.pad_width], call.attrs
    channels = shape_of(call.args[0])[1]
    if len(widths) != 8 or any(widths[2:4]):
        return None
    # lanes that pad the channels would hold the pad value too
    if channels % layouts.lanes and not isfinite(attrs.pad_value):
        return None
    data = layouts.blocked(call.args[0])
    padded = relax.op.nn.pad(data, [*widths, 0, 0], attrs.pad_mode, attrs.pad_value)
    return layouts.bb.emit(padded)


def blocked_take(layouts: Layouts, call: relax.Call) -> relax.Expr | None:
    """Rows or columns of a blocked value, as a resize or a reflecting padding takes them."""
    data, indices = call.args
    if not layouts.is_blocked(data) or len(shape_of(data)) != 4 or call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % 4
    if axis < 2 or not isinstance(indices, GenericConst) or len(shape_of(indices)) != 1:
        return None
    taken = relax.op.take(layouts.blocked(data), indices, axis, str(call.attrs.mode))
    return layouts.bb.emit(taken)


def same_pixels(old: tuple[int, ...], new: tuple[int, ...], steps: Sequence[relax.Call]) -> bool:
    """Whether ``steps`` turn an image (1, C, H, W) into a matrix (H * W, C), or back."""
    image, matrix = (old, new) if len(old) == 4 else (new, old)
    if len(image) != 4 or image[0] != 1 or matrix != (image[2] * image[3], image[1]):
        return False
    places = np.arange(np.prod(image)).reshape(image)
    rows = places.reshape(image[1], -1).T
    before, after = (places, rows) if old == image else (rows, places)
    return np.array_equal(_carried(before, steps), after)


def becomes_image(
    product: relax.Call, readers: Mapping[relax.Expr | None, Sequence[relax.Call]]
) -> bool:
    """Whether the rows of a product, or of dense layers after it, are pixels of an image."""
    todo: list[tuple[relax.Call, list[relax.Call]]] = [(product, [])]
    seen: set[relax.Call] = set()
    while todo:
        made, moves = todo.pop()
        for reader in readers.get(made, ()):
            kind, steps = kind_of(reader), moves
            if reader in seen or kind not in _ROW_BY_ROW:
                continue
            if kind == "matmul" and not isinstance(reader.args[1], GenericConst):
                continue
            if kind in ("reshape", "permute_dims"):
                steps = [*moves, reader]
                old, new = (tuple(shape_of(x)) for x in (steps[0].args[0], reader))
                if same_pixels(old, new, steps):
                    return True
            seen.add(reader)
            todo.append((reader, [] if kind == "matmul" else steps))
    return False


def images_between(
    old: tuple[int, ...], new: tuple[int, ...], steps: Sequence[relax.Call]
) -> tuple[int, int] | None:
    """How many images ``steps`` interleave in rows and columns; None if they do not."""
    if len(old) != 4 or len(new) != 4 or old[0] != new[0] or old[1] == new[1]:
        return None
    if any(b % a for a, b in zip(old[2:], new[2:], strict=True)):
        return None
    rows, columns = new[2] // old[2], new[3] // old[3]
    if old[1] != new[1] * rows * columns:
        return None
    places = np.arange(np.prod(old)).reshape(old)
    images = places.reshape(old[0], rows, columns, new[1], *old[2:])
    wanted = images.transpose(0, 3, 4, 1, 5, 2).reshape(new)
    return (rows, columns) if np.array_equal(_carried(places, steps), wanted) else None


def _carried(array: np.ndarray, steps: Sequence[relax.Call]) -> np.ndarray:
    """Where reshapes and transpositions put elements; elementwise operators move none."""
    for call in steps:
        if kind_of(call) == "permute_dims":
            axes = call.attrs.axes
            array = array.transpose(None if axes is None else [int(axis) for axis in axes])
        else:
            array = array.reshape(shape_of(call))
    return array
