"""Histograms of torch, of any number of axes, by a search for the interval of each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tvm_stretch.read.torch.own import as_tensor, instead_of

Tensor = torch.Tensor


def _interval(x: Tensor, edges: Tensor) -> Tensor:
    """The number of the interval, -1 outside; edges that do not rise are searched as by torch."""
    first = torch.zeros_like(x, dtype=torch.int64)
    count = torch.full_like(first, len(edges))
    for _ in range(len(edges).bit_length()):
        half = count // 2
        place = (first + half).clamp(max=len(edges) - 1)
        is_later = (count > 0) & ~(x < edges[place])
        first = torch.where(is_later, place + 1, first)
        count = torch.where(is_later, count - half - 1, half)
    place = (first - 1).clamp(max=len(edges) - 2)
    return torch.where((x >= edges[0]) & (x <= edges[-1]), place, -1)


@instead_of("histogram.bins_tensor")
def _histogram(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False, **_: Any
) -> tuple[Tensor, Tensor]:
    """Numbers of each interval."""
    return _histogramdd(x.reshape(-1, 1), [bins], weight=weight, density=density), bins.clone()


@instead_of("_histogramdd_from_bin_tensors.default")
def _histogramdd(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """Counts of points, the rows of x; the last interval of an axis has its end, too."""
    points = x.reshape(-1, len(bins))
    counts = torch.ones_like(points[:, :1]) if weight is None else weight.reshape(-1, 1)
    for axis, edges in enumerate(bins):
        inside = _interval(points[:, axis], edges)[:, None] == torch.arange(len(edges) - 1)
        counts = (counts[:, :, None] * inside.to(x.dtype)[:, None]).flatten(1)
    counts = counts.sum(0).reshape([len(edges) - 1 for edges in bins])
    if not density:
        return counts
    counts = counts / counts.sum()
    for axis, edges in enumerate(bins):
        counts = counts / edges.diff().reshape(-1, *[1] * (len(bins) - 1 - axis))
    return counts


@instead_of("_histogramdd_bin_edges.default")
def _histogramdd_edges(x: Tensor, bins: Sequence[int], **given: Any) -> list[Tensor]:
    ends = given.get("range")
    points = x.reshape(-1, len(bins))
    return [
        _edges(points[:, i], count, 0.5, ends and ends[2 * i : 2 * i + 2])
        for i, count in enumerate(bins)
    ]


@instead_of("_histogramdd_from_bin_cts.default")
def _histogramdd_of_counts(x: Tensor, bins: Sequence[int], **given: Any) -> Tensor:
    edges = _histogramdd_edges(x, bins, **given)
    return _histogramdd(x, edges, weight=given.get("weight"), density=given.get("density", False))


def _edges(x: Tensor, bins: int, apart: float, ends: Sequence[Any] | None) -> Tensor:
    """Ends of equal intervals, by default between the least and the largest number."""
    ends = ends or ((x.amin(), x.amax()) if x.numel() else (0.0, 1.0))
    low, high = (as_tensor(end, x.dtype) for end in ends)
    same = apart * (low == high).to(x.dtype)
    low, high, places = low - same, high + same, torch.arange(bins + 1)
    step = (high - low) / bins
    return torch.where(places < (bins + 1) // 2, low + step * places, high - step * (bins - places))


@instead_of("histogram.bin_ct")
def _histogram_of_count(
    x: Tensor, bins: int = 100, apart: float = 0.5, **given: Any
) -> tuple[Tensor, Tensor]:
    return _histogram(x, _edges(x, bins, apart, given.get("range")), **given)


@instead_of("histc.default")
def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    ends = None if min == max else (float(min), float(max))
    return _histogram_of_count(x, bins, 1.0, range=ends)[0]
