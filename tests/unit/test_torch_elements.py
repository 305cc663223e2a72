"""Choices, bits, orders, places, matrices and complex numbers of torch programs, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cpu_targets import TARGET
from helpers.torch_beside import Net, check, check_written

import tvm_stretch as ts
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network

_ODD = torch.tensor([0.0, -0.0, 1.0, -1.5, torch.inf, -torch.inf, torch.nan, 1e-40, -3e38, 2.0**24])
_ROWS = torch.tensor([[3.0, -1.0, 3.0, 2.0], [-2.0, torch.nan, 5.0, -2.0]])
_NUMBERS = torch.linspace(-2, 3, 24).reshape(2, 3, 4)


def _bits(x: torch.Tensor) -> Any:
    y = x.flip(0)
    signs = torch.signbit(x), torch.copysign(x, y), torch.copysign(x, -1), torch.angle(x)
    return *signs, *torch.frexp(x), torch.nextafter(x, y), torch.fmax(x, y), torch.fmin(x, y)


def _orders(x: torch.Tensor) -> Any:
    found = [*torch.cummax(x, 1), *torch.cummin(x, 0), *torch.median(x, 1), torch.nanmedian(x)]
    return *found, *torch.kthvalue(x, 2, 0), torch.logcumsumexp(x, 1), torch.median(x)


def _places(x: torch.Tensor) -> Any:
    index = torch.tensor([0, 2])
    return (
        torch.masked_scatter(x, x > 0, x.flip(0)),
        torch.diagonal_scatter(x, torch.zeros(4, 2), 0, 0, 1),
        torch.cdist(x, x + 1, 1.0),
        x.index_reduce(1, index, x[:, :2], "mean"),
        torch.nn.functional.pdist(x[:, 0]),
        *torch.mode((x[0] * 2).round(), 1),
    )


def _counted(x: torch.Tensor) -> Any:
    found = torch.histogram(x, torch.tensor([-2.0, -1.0, 0.5, 3.0]))
    ranges = *torch.histogram(x, 5, range=(-1.0, 2.0), density=True), *torch.histogram(x, 7)
    return *found, *ranges, *torch.histogram(x[0, 0, :1], 2), torch.histc(x, 4), torch.histc(x * 0)


def _counted_in_space(x: torch.Tensor) -> Any:
    points = x.reshape(-1, 2)
    given = [torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([-1.0, 3.0, 0.5, 2.0])]
    weight = points[:, 0].abs()
    first = torch.histogramdd(points, [2, 3], weight=weight, density=True)
    second = torch.histogramdd(points, 2, range=(-1.0, 2.0, -2.0, 1.0))
    third = torch.histogramdd(points, given)  # edges that do not rise
    return (*(y for z in (first, second, third) for y in (z.hist, *z.bin_edges)),)


def _fractional_pools(x: torch.Tensor) -> Any:
    """Samples of windows' places are inputs."""
    planes, cubes = x.repeat(1, 2, 2)[None], x.repeat(1, 2, 2)[None, None]
    one, other = x.reshape(-1)[:4].reshape(1, 2, 2).sigmoid(), x[:1, :1, :3].sigmoid()
    pool2, pool3 = torch.ops.aten.fractional_max_pool2d, torch.ops.aten.fractional_max_pool3d
    return *pool2(planes, [2, 3], [4, 3], one), *pool3(cubes, [1, 2, 3], [1, 3, 4], other)


def _segments(x: torch.Tensor) -> Any:
    """One segment has no elements."""
    rows = x.reshape(6, 4)
    lengths, ends = torch.tensor([2, 0, 4]), torch.tensor([0, 1, 1, 6])
    kinds = ("sum", "mean", "max", "min", "prod")
    first = [torch.segment_reduce(rows, kind, lengths=lengths) for kind in kinds]
    return *first, *(torch.segment_reduce(rows, k, offsets=ends, initial=0.5) for k in kinds)


def _slots(x: torch.Tensor) -> Any:
    """Fewer and more slots than there are marked elements."""
    marked = x * (x > 0)
    rows = x.sort(-1)[0]
    return (
        torch.nonzero_static(marked, size=3),
        torch.nonzero_static(marked, size=30, fill_value=7),
        torch.nonzero_static(x[:, :0], size=2),
        torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (1, 3), 4),
        *(torch.searchsorted(rows, x.flip(-1), right=right) for right in (False, True)),
        *(torch.searchsorted(rows[0, 0], number) for number in (0, 0.25)),
        torch.bucketize(2.5, torch.tensor([1, 2, 3])),
    )


def _bags(x: torch.Tensor) -> Any:
    bag, rows = torch.nn.functional.embedding_bag, torch.tensor([0, 3, 1, 1])
    offsets, table = torch.tensor([0, 1, 1]), x.reshape(6, 4)
    return [bag(rows, table, offsets, mode=mode, padding_idx=3) for mode in ("sum", "mean", "max")]


def _trilinear(x: torch.Tensor) -> Any:
    weight = torch.linspace(-1, 1, 32).reshape(2, 4, 4)
    return torch.nn.functional.bilinear(x, x.flip(0), weight), torch.put(
        x, torch.tensor([3, -1]), x[0, :2]
    )


def _pools(x: torch.Tensor) -> Any:
    pool = torch.nn.functional.avg_pool2d
    image = x.reshape(1, 1, 4, 6)
    means = pool(image, 3, 2, 1, ceil_mode=True, divisor_override=4), pool(image, 3, 2, 1, True)
    places = torch.nn.functional.adaptive_max_pool2d(image.round(), (3, 4), return_indices=True)
    return *means, *places, *torch.native_layer_norm(x, [4], None, None, 1e-5)


def _single(x: torch.Tensor) -> Any:
    taken = x.index_select(0, torch.tensor([0])), x.unfold(0, 1, 1)
    return x.amax(0), x.sum(0), *x.sort(0), x.any(0), *taken


WRITTEN: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "bits": (_bits, _ODD),
    "orders": (_orders, _ROWS),
    "places": (_places, _NUMBERS),
    "counted": (_counted, _NUMBERS),
    "counted in space": (_counted_in_space, _NUMBERS),
    "fractional pools": (_fractional_pools, _NUMBERS),
    "segments": (_segments, _NUMBERS),
    "slots": (_slots, _NUMBERS),
    "bags": (_bags, _NUMBERS),
    "three factors": (_trilinear, _NUMBERS[0]),
    "infinite sums": (lambda x: torch.logcumsumexp(x, 0), torch.tensor([-torch.inf] * 3 + [1.0])),
}
COMPILED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "bits": (_bits, _ODD),
    "one number": (lambda x: torch.copysign(x, -x), torch.tensor(-0.0)),
    "larger": (lambda x: torch.maximum(x, x.flip(0)), _ROWS),
    "single numbers": (_single, torch.tensor(3.0)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_written(name: str) -> None:
    check_written(*WRITTEN[name])


@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str) -> None:
    check(*COMPILED[name])


@pytest.mark.full
@pytest.mark.parametrize("name", WRITTEN)
def test_written_and_compiled(name: str) -> None:
    check(*WRITTEN[name])


@pytest.mark.full
def test_pools() -> None:
    check(_pools, _NUMBERS)


@pytest.mark.parametrize("function", [torch.nonzero, torch.unique, lambda x: x[x > 0]])
def test_shapes_that_depend_on_data_are_refused(function: Callable[..., Any]) -> None:
    program = torch.export.export(Net(function), (_ROWS,), strict=False)
    with pytest.raises(UnsupportedError, match="depends on the data"):
        load_network(program)


def _attended(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q, k, v = (turned.reshape(1, 2, 9, 16) for turned in (x, x * 0.7, x + 1))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_attention_is_one_kernel_whose_hidden_rows_are_zeros() -> None:
    x = torch.linspace(-2, 2, 288).reshape(2, 9, 16)
    mask = torch.zeros(9, 9)
    mask[2], mask[5, 4:] = -torch.inf, -torch.inf
    program = torch.export.export(Net(_attended).eval(), (x, mask))
    model = ts.compile(program, [TARGET], cpu_threads=1)
    assert any("attention" in node.kernel for node in model.graph.nodes)
    assert not any("softmax" in node.kernel for node in model.graph.nodes)
    got = np.asarray(model(x.numpy(), mask.numpy()))
    assert not got[:, :, 2].any() and got[:, :, 5].any()
    np.testing.assert_allclose(got, _attended(x, mask).numpy(), rtol=1e-5, atol=1e-5)
