"""Operators on padded tensors: whether the smaller tensor stays the beginning of the larger one.

A rule takes the operator's calls in both networks and its operands, and returns its results with
their known elements, or refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.expressions import RESHAPES, axes_of
from tvm_stretch.network.operators import PADDING, POINTWISE, kind_of
from tvm_stretch.network.properties.known_values import Known, pointwise
from tvm_stretch.network.steps import BACKWARDS

_POINTWISE = POINTWISE | {
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh", "tan", "trunc"),
    *("bitwise_and", "bitwise_not", "bitwise_or", "equal", "floor_divide", "floor_mod", "greater"),
    *("greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and"),
    *("logical_not", "logical_or", "logical_xor", "mod", "nn.selu", "not_equal", "where"),
}


class MixedError(InputError):
    """Padding would change what counts; says why."""


@dataclass(frozen=True)
class Pair:
    """A tensor in both networks; the smaller one is the beginning of the larger one."""

    small: tuple[int, ...]
    large: tuple[int, ...]
    known: Known | None = None  # elements of the larger one
    doubtful: bool = False  # whether padding may hold NaN

    @property
    def varied(self) -> tuple[int, ...]:
        """The axes that are longer in the larger network."""
        return tuple(
            i for i, (s, n) in enumerate(zip(self.small, self.large, strict=True)) if s != n
        )

    def padding(self, axis: int) -> tuple[slice, ...]:
        """The padding along an axis, within what counts along all others."""
        counts = [slice(0, size) for size in self.small]
        counts[axis] = slice(self.small[axis], None)
        return tuple(counts)


class Uses:
    """The inputs whose padding the answer depends on."""

    def __init__(self) -> None:
        self.masks: set[str] = set()
        self.hiding: set[str] = set()

    def use(self, known: Known, hides: bool = False) -> None:
        """Note that the value of padding is needed."""
        self.masks |= known.inputs
        self.hiding |= known.inputs if hides else frozenset()


def require_aligned(pair: Pair, result: Pair, skip: int = 0) -> None:
    """Refuse operands whose axes, from the last one, are neither the result's nor repeated."""
    rest = len(result.small) - len(pair.small)
    for axis in range(len(pair.small) - skip):
        sizes = pair.small[axis], pair.large[axis]
        if sizes not in ((1, 1), (result.small[axis + rest], result.large[axis + rest])):
            raise MixedError("combines positions with others")


def _zero(uses: Uses, pair: Pair, axis: int) -> bool:
    """Whether the padding along an axis is zero; notes what makes it so."""
    if pair.known is None:
        return False
    part = pair.padding(axis)
    if not (pair.known.here[part] & (pair.known.value[part] == 0)).all():
        return False
    uses.use(pair.known)
    return True


@PADDING(*_POINTWISE)
def _pointwise(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    pairs, result = [pair for given in args for pair in given], results[0]
    for pair in pairs:
        require_aligned(pair, result)
    known = pointwise(kind_of(calls[0]), [p.known for p in pairs], str(calls[1].ty.dtype))
    return [replace(result, known=known and _broadcast(known, result))]


@PADDING("broadcast_to")
def _repeated(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    pair, result = args[0][0], results[0]
    require_aligned(pair, result)
    return [replace(result, known=pair.known and _broadcast(pair.known, result))]


def _broadcast(known: Known, result: Pair) -> Known:
    return known.moved(lambda x: np.broadcast_to(x, result.large))


@PADDING("matmul")
def _matmul(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    a, b, result = args[0][0], args[1][0], results[0]
    if len(a.small) < 2 or len(b.small) < 2:
        raise MixedError("multiplies by a vector")
    inner = len(a.small) - 1, len(b.small) - 2
    if inner[0] in a.varied:
        zero, other = (a, b) if _zero(uses, a, inner[0]) else (b, a)
        if zero is b and not _zero(uses, b, inner[1]):
            raise MixedError("adds up padding that no mask hides")
        if other.doubtful:
            raise MixedError("multiplies padding that may be NaN by zero")
    # as if the sums were pointwise: all other axes are the result's
    require_aligned(_without(a, inner[0]), _without(result, len(result.small) - 1))
    require_aligned(_without(b, inner[1]), _without(result, len(result.small) - 2))
    return [replace(result, doubtful=a.doubtful or b.doubtful)]


def _without(pair: Pair, axis: int) -> Pair:
    return Pair(
        pair.small[:axis] + pair.small[axis + 1 :], pair.large[:axis] + pair.large[axis + 1 :]
    )


def _axes(call: relax.Call, rank: int) -> list[int]:
    attrs = call.attrs
    given = getattr(attrs, "axes", None) if hasattr(attrs, "axes") else getattr(attrs, "axis", None)
    if given is None:
        return [*range(rank)]
    axes = [int(axis) for axis in (given if hasattr(given, "__len__") else [given])]
    return [axis % rank for axis in axes]


@PADDING(
    *("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.rms_norm", "mean", "sum", "max"),
    *("min", "prod", "variance", "std", "argmax", "argmin", "flip", "split"),
)
def _along(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    """Softmax, normalisations and sums: they mix only the positions of the axes that they name."""
    pair, kind = args[0][0], kind_of(calls[0])
    if not tvm_ffi.structural_equal(calls[0].attrs, calls[1].attrs):
        raise MixedError("differs from size to size")
    if any(other.varied for others in args[1:] for other in others):
        raise MixedError("has operands that change with the size")
    mixed = [axis for axis in _axes(calls[0], len(pair.small)) if axis in pair.varied]
    if kind == "nn.softmax" and mixed:
        return [_softmax(uses, pair, results[0], mixed[0])]
    if kind == "sum" and mixed and not pair.doubtful:
        mixed = [axis for axis in mixed if not _zero(uses, pair, axis)]
    if mixed:
        raise MixedError("mixes padding with what counts")
    return results


def _softmax(uses: Uses, pair: Pair, result: Pair, axis: int) -> Pair:
    if pair.known is None or not pair.known.hides()[pair.padding(axis)].all():
        raise MixedError("shares weight with padding that no mask hides")
    uses.use(pair.known, hides=True)
    hides = pair.known.hides()
    nothing = bool(hides.all(axis=axis).any())  # a row without any place may become NaN
    known = Known(np.zeros(pair.large, "float32"), hides, pair.known.inputs)
    return replace(result, known=known, doubtful=pair.doubtful or nothing)


@PADDING(*RESHAPES)
def _reshape(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    """Axes are joined or taken apart only where the varied one is the outermost of its group."""
    pair, result = args[0][0], results[0]
    for one, other in zip(
        _groups(pair.small, result.small), _groups(pair.large, result.large), strict=True
    ):
        if one != other:
            raise MixedError("rearranges positions otherwise from size to size")
        for side, axes in zip((pair, result), one, strict=True):
            varied = [axis for axis in axes if axis in side.varied]
            outer = [axis for axis in axes if varied and axis < varied[0]]
            if len(varied) > 1 or prod(side.small[axis] for axis in outer) != 1:
                raise MixedError("rearranges positions")
    known = pair.known and pair.known.moved(lambda x: x.reshape(result.large))
    return [replace(result, known=known)]


def _groups(
    one: Sequence[int], other: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The axes of both shapes in the shortest groups of as many elements."""
    groups, i, j = [], 0, 0
    while i < len(one) or j < len(other):
        left, right = [i] if i < len(one) else [], [j] if j < len(other) else []
        i, j = i + len(left), j + len(right)
        while (sizes := (prod(one[k] for k in left), prod(other[k] for k in right)))[0] != sizes[1]:
            if sizes[0] < sizes[1] and i < len(one):
                left.append(i)
                i += 1
            elif j < len(other):
                right.append(j)
                j += 1
            else:
                left.append(i)
                i += 1
        groups.append((tuple(left), tuple(right)))
    return groups


@PADDING("permute_dims")
def _transpose(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    known = args[0][0].known
    known = known and known.moved(lambda x: x.transpose(axes_of(calls[0])))
    return [replace(results[0], known=known)]


@PADDING("concat")
def _concat(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    parts, result = args[0], results[0]
    axis = int(calls[0].attrs.axis) % len(result.small)
    if any(axis in part.varied for part in parts[:-1]):
        raise MixedError("puts something after padding")
    for part in parts:
        require_aligned(_without(part, axis), _without(result, axis))
    if all(part.known is None for part in parts):
        return [result]
    nothing = [np.zeros(part.large, str(calls[1].ty.dtype)) for part in parts]
    both = [
        p.known or Known(n, np.zeros(p.large, bool)) for p, n in zip(parts, nothing, strict=True)
    ]
    value, here = (np.concatenate([getattr(k, of) for k in both], axis) for of in ("value", "here"))
    inputs = frozenset[str]().union(*(k.inputs for k in both))
    return [replace(result, known=Known(value, here, inputs))]


@PADDING("strided_slice")
def _slice(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    pair, result, places = args[0][0], results[0], []
    for call, shape in zip(calls, (pair.small, pair.large), strict=True):
        axes, begins, ends, *rest = ([int(v.value) for v in arg.fields] for arg in call.args[1:])
        steps = rest[0] if rest else [1] * len(axes)
        chosen = [slice(0, None, 1)] * len(shape)
        for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
            chosen[axis] = slice(*slice(begin, end, step).indices(shape[axis]))
        places.append(chosen)
    for one, other in zip(*places, strict=True):
        if (one.start, one.step) != (other.start, other.step) or one.step < 1:
            raise MixedError("takes other positions from size to size")
    known = pair.known and pair.known.moved(lambda x: x[tuple(places[1])])
    if known is not None and known.value.shape != result.large:
        known = None
    return [replace(result, known=known)]


@PADDING("take")
def _take(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    pair, places, result = args[0][0], args[1][0], results[0]
    axis = calls[0].attrs.axis
    axis = 0 if axis is None else int(axis) % len(pair.small)
    index = places.known if places.known is not None and places.known.here.all() else None
    if axis in pair.varied:
        _require_inside(places, pair.small[axis])
    if {*places.varied} and {*pair.varied} - {axis}:
        raise MixedError("takes positions of positions")
    known = None
    if pair.known is not None and index is not None:
        known = pair.known.moved(lambda x: np.take(x, index.value, axis, mode="clip"))
    return [replace(result, known=known)]


@PADDING("gather_nd")
def _gather_nd(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    pair, places, result = args[0][0], args[1][0], results[0]
    depth = places.small[-1]
    if int(calls[0].attrs.batch_dims) or {*pair.varied} - {*range(depth)}:
        raise MixedError("takes positions of positions")
    for axis in pair.varied:
        _require_inside(places, pair.small[axis], axis)
    known = None
    if pair.known is not None and places.known is not None and places.known.here.all():
        limits = np.array(pair.large[:depth]) - 1
        index = tuple(np.moveaxis(np.clip(places.known.value, 0, limits), -1, 0))
        known = pair.known.moved(lambda x: x[index])
    return [replace(result, known=known)]


def _require_inside(places: Pair, size: int, column: int | None = None) -> None:
    """Refuse indices, of what counts, that are not constant or lie in the padding."""
    if places.known is None or places.known.inputs:
        raise MixedError("looks positions up by numbers that are computed")
    counts = places.known.value[tuple(slice(0, s) for s in places.small)]
    counts = counts if column is None else counts[..., column]
    if counts.size and not 0 <= counts.min() <= counts.max() < size:
        raise MixedError("looks at positions from the end")


@PADDING(
    *(f"nn.conv{rank}d" for rank in (1, 2, 3)),
    *(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3)),
)
def _windows(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    """Convolutions and poolings: no window of what counts looks ahead."""
    pair, result = args[0][0], results[0]
    if any(other.varied for others in args[1:] for other in others):
        raise MixedError("has operands that change with the size")
    attrs, rank = calls[0].attrs, len(pair.small)
    layout = str(getattr(attrs, "data_layout", None) or attrs.layout)
    kernel = args[1][0].small[2:] if len(args) > 1 else [int(k) for k in attrs.pool_size]
    if not layout.startswith("NC") or 1 in pair.varied:
        raise MixedError("mixes padding with what counts")
    for axis in {*pair.varied} - {0}:
        i = axis - 2
        step, apart, begin = (int(v[i]) for v in (attrs.strides, attrs.dilation, attrs.padding))
        last = (result.small[axis] - 1) * step - begin + (kernel[i] - 1) * apart
        if last >= pair.small[axis] or len(attrs.padding) != 2 * (rank - 2):
            raise MixedError("looks ahead, into padding")
    return results


@PADDING("running.product", "running.sum")
def _running(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    """Running sums from the beginning never see what follows."""
    if 1 in args[0][0].varied and bool(calls[0].attrs[BACKWARDS]):
        raise MixedError("adds up padding that no mask hides")
    return results


def _batch(uses: Uses, calls: Any, args: list[list[Pair]], results: list[Pair]) -> list[Pair]:
    """Operators whose first axis is a batch."""
    kind = kind_of(calls[0])
    if not kind.startswith(_BATCHED):
        raise MixedError("is not known to keep positions apart")
    for pair in (*(pair for pairs in args for pair in pairs), *results):
        if {*pair.varied} - {0}:
            raise MixedError("mixes padding with what counts")
    return results


_BATCHED = (
    *("nn.adaptive", "nn.conv", "nn.group_norm", "nn.instance_norm", "nn.pixel_shuffle"),
    *("image.", "integer.", "nn.pad", "nn.batch_flatten", "nn.prelu"),
)


def rule_of(kind: str) -> Callable[..., list[Pair]]:
    """The rule of an operator; without one, its first axis may be a batch."""
    return PADDING.get(kind, _batch)
