"""Decide which operators are views of memory, and which alignment a piece of memory must keep.

R.reshape(x, (1, 64))                 a second tensor on the same bytes
R.concat((a, b), axis=1), one image   a and b are written next to each other
R.strided_slice(x, rows 8 to 16)      some rows of each block of channels
"""

from __future__ import annotations

import itertools
import math

import tvm
from tvm import relax

from tvm_stretch.network.expressions import shape_of

RESHAPES = frozenset({"expand_dims", "flatten", "reshape", "squeeze"})
"""Operators that are always views."""

PIECES = frozenset({"concat", "split", "strided_slice"})
"""Operators that are views if `is_view` accepts the pieces of the whole tensor."""

ALIGNMENT = 64
"""Kernels read whole vector registers: TVM's generated code assumes this alignment unchecked."""

_MOST_PIECES = 256
"""A limit, because lowering copies each piece separately if a tensor must also lie elsewhere."""

_LEAST_RUN = 512
"""Bytes of a part's pieces, below which a concat of several is a kernel that is fused with others.

A copy of one costs what a call costs. The halves of rotary embeddings are such pieces: a
step of Qwen2's layer in 4 bits takes 0.95 of the time (paired, a busy Zen 4).
"""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element; types of less than a byte take one."""
    kind = tvm.DataType(dtype)
    return -(-kind.bits // 8) * kind.lanes


def is_view(call: relax.Call, alignment: int = 1) -> bool:
    """Whether a call of one of `PIECES` is a view of memory.

    True for axis 1 of (1, 64, 56, 56), where each part is one piece, and for axis 2 of
    (1, 8, 56, 56, 8), where each part has a piece in each of the 8 blocks; false if there are too
    many pieces, several that do not begin and end at multiples of ``alignment`` bytes, or a concat
    of short ones.
    """
    cut = _cut(call)
    if cut is None:
        return False
    whole, axis, borders = cut
    pieces = math.prod(whole[:axis])
    if pieces == 1 or pieces > _MOST_PIECES:
        return pieces == 1
    row = math.prod(whole[axis + 1 :]) * dtype_bytes(_dtype(call))
    longest = max(after - before for before, after in itertools.pairwise((0, *borders)))
    if call.op.name == "relax.concat" and longest * row < _LEAST_RUN:
        return False
    return all(border * row % alignment == 0 for border in (*borders, whole[axis]))


def _cut(call: relax.Call) -> tuple[list[int], int, list[int]] | None:
    """The shape of the whole tensor, the axis along which it is cut, and the positions of cuts."""
    if call.op.name == "relax.strided_slice":
        return _slice(call)
    parts = call.args[0].ty.fields if call.op.name == "relax.concat" else call.ty.fields
    whole = shape_of(call) if call.op.name == "relax.concat" else shape_of(call.args[0])
    if call.attrs.axis is None:
        return None
    axis = int(call.attrs.axis) % len(whole)
    sizes = [int(part.shape.values[axis]) for part in parts]
    return whole, axis, list(itertools.accumulate(sizes))


def _slice(call: relax.Call) -> tuple[list[int], int, list[int]] | None:
    """As `_cut`, for a slice of neighbours along one axis; None for other slices."""
    whole, part = shape_of(call.args[0]), shape_of(call)
    try:
        axes, begin, _, *steps = ([int(v) for v in arg.fields] for arg in call.args[1:])
    except (AttributeError, TypeError):
        return None
    shortened = [axis for axis, size in enumerate(part) if size != whole[axis]]
    if len(shortened) != 1 or any(step != 1 for listed in steps for step in listed):
        return None
    (axis,) = shortened
    first = dict(zip((a % len(whole) for a in axes), begin, strict=True))[axis]
    first = min(max(first + whole[axis] if first < 0 else first, 0), whole[axis])
    return whole, axis, [first, first + part[axis]]


def _dtype(call: relax.Call) -> str:
    return str((call.args[0] if call.op.name == "relax.split" else call).ty.dtype)
