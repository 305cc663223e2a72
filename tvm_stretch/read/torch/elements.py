"""Operators of torch that are written in simpler ones: choices, bits, orders and places.

    fmax(x, y)           where((x >= y) | isnan(y), x, y)
    signbit(x)           x.view(int32) < 0
    _safe_softmax(x, 0)  where(x.amax(0) == -inf, 0, softmax(x, 0))
    cummax(x, 0)         log2(n) steps: each takes the larger one of an element and an earlier one
    median(x, 0)         sort, then the element in the middle
    masked_scatter       the number of marked elements before one is its place in the source

These functions stand in the table of decompositions that `operators.decomposed` applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.torch.own import instead_of

Tensor = torch.Tensor
_BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16}


@instead_of("fmax.default")
def _fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x >= y) | y.isnan(), x, y)


@instead_of("fmin.default")
def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x <= y) | y.isnan(), x, y)


@instead_of("_safe_softmax.default")
def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros where all numbers are -inf, in the form that attention kernels are found by."""
    shares = torch.softmax(x, dim, dtype=dtype)
    if x.shape[dim] == 0:
        return shares
    is_hidden = x.amax(dim, keepdim=True) == -math.inf
    return torch.where(is_hidden, torch.zeros((), dtype=shares.dtype), shares)


def _bits(x: Tensor) -> Tensor:
    """The same bits as an integer."""
    if x.dtype not in _BITS:
        raise UnsupportedError(
            f"expected float16, float32 or float64 for an operator of bits, got {x.dtype}; "
            "convert the tensor before"
        )
    return x.view(_BITS[x.dtype])


@instead_of("signbit.default")
def _signbit(x: Tensor) -> Tensor:
    return _bits(x) < 0 if x.is_floating_point() else x < 0


@instead_of("copysign.Tensor", "copysign.Scalar")
def _copysign(x: Tensor, y: Tensor | float) -> Tensor:
    kind = torch.result_type(x, y)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    size = x.to(kind).abs()
    if not isinstance(y, Tensor):
        return -size if math.copysign(1, y) < 0 else size
    return torch.where(_signbit(y), -size, size)


@instead_of("frexp.Tensor")
def _frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers below the least normal one are made larger before."""
    if x.dtype != torch.float32:
        raise UnsupportedError(
            f"expected float32 for torch's frexp, got {x.dtype}; convert the tensor before"
        )
    small = x.abs() < 2.0**-126
    bits = _bits(torch.where(small, x * 2.0**24, x))
    exponent = ((bits >> 23) & 255) - torch.where(small, 150, 126).to(torch.int32)
    mantissa = ((bits & -2139095041) | 0x3F000000).view(torch.float32)
    whole = (x == 0) | ~torch.isfinite(x)
    return torch.where(whole, x, mantissa), torch.where(whole, 0, exponent).to(torch.int32)


@instead_of("nextafter.default")
def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    """One bit further from zero, or towards it."""
    x, y = torch.broadcast_tensors(x, y)
    away = (x > 0) == (y > x)
    moved = (_bits(x) + torch.where(away, 1, -1).to(_BITS[x.dtype])).view(x.dtype)
    least = torch.where(y > 0, 1, torch.iinfo(_BITS[x.dtype]).min + 1)
    moved = torch.where(x == 0, least.to(_BITS[x.dtype]).view(x.dtype), moved)
    moved = torch.where(x == y, y, moved)
    return torch.where(x.isnan() | y.isnan(), x + y, moved)


@instead_of("angle.default")
def _angle(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    half_turn = torch.where(x < 0, math.pi, 0.0)
    return torch.where(x.isnan(), x, half_turn) if x.is_floating_point() else half_turn


instead_of("_neg_view.default")(lambda x: -x)  # of conjugated numbers
instead_of("_adaptive_avg_pool2d.default")(
    lambda x, size: NotImplemented if x.dim() == 4 else F.adaptive_avg_pool2d(x[None], size)[0]
)
instead_of("copy.default")(lambda x, y, *_: y.to(x.dtype).expand(x.shape).clone())


@instead_of("addbmm.default")
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    total = alpha * torch.bmm(a, b).sum(0)
    return total if beta == 0 else beta * x + total


@instead_of("_trilinear.default")
def _trilinear(a: Tensor, b: Tensor, c: Tensor, *axes: Any) -> Tensor:
    """The product of three tensors, each with new axes, summed along some."""
    factors = [a, b, c]
    for place, new in enumerate(axes[:3]):
        for axis in sorted(new):
            factors[place] = factors[place].unsqueeze(axis)
    return (factors[0] * factors[1] * factors[2]).sum(list(axes[3]))


# --- orders ---------------------------------------------------------------------------------------


def _scan(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Elements combined with all before them, in steps that double."""
    step, count = 1, x.shape[dim] if x.dim() else 0
    while step < count:
        later = combine(x.narrow(dim, 0, count - step), x.narrow(dim, step, count - step))
        x, step = torch.cat([x.narrow(dim, 0, step), later], dim), 2 * step
    return x


def _along(x: Tensor, dim: int) -> Tensor:
    """The places along an axis, in the shape that broadcasts."""
    count = x.shape[dim] if x.dim() else 1
    shape = [count if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    return torch.arange(count, device=x.device).reshape(shape)


def _running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def running(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """An element that equals the extreme so far is the last one of its kind."""
        values = _scan(x, dim, combine)
        is_extreme = x == values
        is_extreme = is_extreme | x.isnan() if x.is_floating_point() else is_extreme
        places = torch.where(is_extreme, _along(x, dim), 0)
        return values, _scan(places, dim, torch.maximum)

    return running


instead_of("cummax.default")(_running(torch.maximum))
instead_of("cummin.default")(_running(torch.minimum))


@instead_of("logcumsumexp.default")
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Two equal infinities have no difference."""

    def combine(a: Tensor, b: Tensor) -> Tensor:
        most, least = torch.maximum(a, b), torch.minimum(a, b)
        total = most + torch.log1p(torch.exp(least - most))
        return torch.where((a == b) & a.isinf(), a, total)

    return _scan(x, dim, combine)


def _picked(x: Tensor, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Elements of sorted rows, and where they were."""
    values, order = torch.sort(x, dim=dim, stable=True)
    picked = values.gather(dim, places), order.gather(dim, places)
    return picked if keepdim else (picked[0].squeeze(dim), picked[1].squeeze(dim))


@instead_of("kthvalue.default")
def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    return _picked(x, torch.zeros_like(_firsts(x, dim)) + (k - 1), dim, keepdim)


def _firsts(x: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(x.narrow(dim, 0, 1), dtype=torch.int64)


def _median(*, skip: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    """The lower one of two in the middle; NaN are last, and win unless they are skipped."""

    def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        if x.dim() == 0:
            return x.clone(), torch.zeros((), dtype=torch.int64)
        count, missing = x.shape[dim], _firsts(x, dim)
        if x.is_floating_point():
            missing = x.isnan().sum(dim, keepdim=True)
        first_nan = torch.where(missing > 0, count - missing, (count - 1) // 2)
        middle = torch.clamp(count - missing - 1, min=0) // 2
        return _picked(x, middle if skip else first_nan, dim, keepdim)

    return median


instead_of("median.dim")(_median(skip=False))
instead_of("nanmedian.dim")(_median(skip=True))
instead_of("median.default")(lambda x: _median(skip=False)(x.reshape(-1), 0)[0])
instead_of("nanmedian.default")(lambda x: _median(skip=True)(x.reshape(-1), 0)[0])


@instead_of("mode.default")
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The least of the most frequent numbers, and its last place."""
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    rows = x.movedim(dim, -1)
    counts = (rows[..., None] == rows[..., None, :]).sum(-1)
    often = counts == counts.amax(-1, keepdim=True)
    most = rows.amax(-1, keepdim=True)
    values = torch.where(often, rows, most).amin(-1, keepdim=True)
    places = torch.where(rows == values, torch.arange(rows.shape[-1]), 0).amax(-1, keepdim=True)
    pair = values.movedim(-1, dim), places.movedim(-1, dim)
    return pair if keepdim else (pair[0].squeeze(dim), pair[1].squeeze(dim))


# --- places ---------------------------------------------------------------------------------------


@instead_of("masked_scatter.default")
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0:
        return x.clone()
    places = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    given = source.reshape(-1)[places.clamp(0, source.numel() - 1)]
    return torch.where(mask, given.reshape(x.shape), x)


@instead_of("take.default")
def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)


@instead_of("put.default")
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    places, values = (index.reshape(-1),), source.reshape(-1)
    return x.reshape(-1).index_put(places, values, accumulate).reshape(x.shape)


@instead_of("as_strided_scatter.default")
def _as_strided_scatter(
    x: Tensor, source: Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Tensor:
    places = torch.arange(x.numel()).as_strided(size, stride, offset or 0)
    return _put(x, places, source.expand(size))


@instead_of("nonzero_static.default")
def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """Each marked element writes its place to the slot of its number; all others to a last slot."""
    if x.numel() == 0:
        return torch.full((size, x.dim()), fill_value)
    marked = (x != 0).reshape(-1)
    number = marked.to(torch.int64).cumsum(0) - 1
    slots = torch.where(marked & (number < size), number, size)
    places = torch.full((size + 1,), -1).index_put((slots,), torch.arange(x.numel()))[:size, None]
    steps = [math.prod(x.shape[axis + 1 :]) for axis in range(x.dim())]
    axes = [places // step % extent for step, extent in zip(steps, x.shape, strict=True)]
    indices = torch.cat(axes, 1) if axes else places[:, :0]
    return torch.where(places < 0, fill_value, indices)


@instead_of("segment_reduce.default")
def _segment_reduce(
    x: Tensor,
    kind: str,
    *,
    lengths: Tensor | None = None,
    offsets: Tensor | None = None,
    **how: Any,
) -> Tensor:
    """Each segment reduces a whole axis, on which only its own elements are not neutral."""
    axis, initial = how.get("axis", 0), how.get("initial")
    ends: Any = offsets if lengths is None else F.pad(lengths.cumsum(-1), (1, 0))
    rows = torch.arange(x.shape[axis])
    inside = (rows >= ends[..., :-1, None]) & (rows < ends[..., 1:, None])
    inside = inside.reshape(*inside.shape, *[1] * (x.dim() - axis - 1))
    neutral = {"max": -math.inf, "min": math.inf, "prod": 1.0}.get(kind, 0.0)
    values = torch.where(inside, x.unsqueeze(axis), neutral)
    first = torch.full((), neutral if initial is None else initial, dtype=x.dtype)
    if kind in ("max", "min"):
        return (torch.maximum if kind == "max" else torch.minimum)(
            getattr(values, f"a{kind}")(axis + 1), first
        )
    if kind == "prod":
        return values.prod(axis + 1) * first
    total, count = values.sum(axis + 1) + first, inside.sum(axis + 1)
    if kind == "sum":
        return total
    return torch.where(count > 0, total / count, math.nan if initial is None else initial)


@instead_of("diagonal_scatter.default")
def _diagonal_scatter(
    x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    moved = x.movedim((dim1, dim2), (0, 1))
    steps = torch.arange(source.shape[-1])
    places = steps + max(-offset, 0), steps + max(offset, 0)
    return moved.index_put(places, source.movedim(-1, 0)).movedim((0, 1), (dim1, dim2))


@instead_of("index_reduce.default")
def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, kind: str, **how: Any
) -> Tensor:
    if x.dim() == 0:
        return _index_reduce(x[None], 0, index, source.reshape(1), kind, **how)[0]
    shape = [-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())]
    places = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, kind, **{"include_self": True, **how})


@instead_of("_cdist_forward.default")
def _cdist(x: Tensor, y: Tensor, p: float, _: int | None) -> Tensor:
    return torch.linalg.vector_norm(x[..., None, :] - y[..., None, :, :], p, dim=-1)


@instead_of("_pdist_forward.default", "pdist.default")
def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return torch.linalg.vector_norm(x[first] - x[second], p, dim=-1)


@instead_of("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, _frequent: bool = False, mode: int = 0,
    _sparse: bool = False, shares: Tensor | None = None, ends: bool = False, padding: int = -1,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Sums, means or largest numbers of the rows between two offsets."""
    offsets = offsets[:-1] if ends else offsets
    bags = (offsets[None] <= torch.arange(len(indices))[:, None]).sum(1) - 1
    holds = (bags[None] == torch.arange(len(offsets))[:, None]) & (indices != padding)[None]
    rows, counts = weight[indices], holds.sum(1)
    if mode == 2:
        most = torch.where(holds[..., None], rows[None], -math.inf).amax(1)
        pooled = torch.where(counts[:, None] > 0, most, 0.0)
    else:
        factors = holds.to(weight.dtype)
        pooled = (factors if shares is None else factors * shares) @ rows
        pooled = pooled / counts.clamp(min=1)[:, None] if mode else pooled
    return pooled, bags, counts, torch.zeros_like(counts)


@instead_of("fractional_max_pool2d.default", "fractional_max_pool3d.default")
def _fractional_max_pool(
    x: Tensor, kernel: Sequence[int], sizes: Sequence[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Windows whose first places are numbers between 0 and 1, which are an input, moved on."""
    rank = len(sizes)
    batch = x.shape[:-rank]
    samples = samples.reshape(-1, rank)[: math.prod(batch)].reshape(*batch, rank)
    places = torch.zeros((*batch, 1, 1), dtype=torch.int64)
    for axis, (width, count) in enumerate(zip(kernel, sizes, strict=True)):
        size = x.shape[axis - rank]
        start = samples[..., rank - 1 - axis if rank == 2 else axis, None]
        step = (size - width) / max(count - 1, 1)
        first = ((torch.arange(count) + start) * step).trunc() - (start * step).trunc()
        last = torch.arange(count) == count - 1
        first = torch.where(last, size - width, first.to(torch.int64))
        window = first[..., None] + torch.arange(width)
        places = places[..., :, None, :, None] * size + window[..., None, :, None, :]
        places = places.flatten(-4, -3).flatten(-2, -1)
    numbers = x.flatten(-rank).gather(-1, places.flatten(-2)).reshape(places.shape)
    most, which = numbers.max(-1)
    indices = places.gather(-1, which[..., None])
    return most.reshape(*batch, *sizes), indices.reshape(*batch, *sizes)
