"""Numbers at the edge of floats, scalars and tensors without elements: as torch computes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from helpers.cpu_targets import QUICK

import tvm_stretch as ts

pytestmark = pytest.mark.filterwarnings("ignore")
F = torch.nn.functional
INF, NAN = math.inf, math.nan
ODD = torch.tensor([1.0, -1, 0.0, -0.0, INF, -INF, NAN, 1e10, -1e10, 3.7, -3.7, 123456789.0])


class Several(torch.nn.Module):
    """Functions of the same inputs."""

    def __init__(self, functions: list[Callable]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *x: torch.Tensor) -> list:
        return torch.utils._pytree.tree_leaves([f(*x) for f in self.functions])


def check(functions: list[Callable], *inputs: torch.Tensor) -> None:
    program = torch.export.export(Several(functions), inputs, strict=False)
    model = ts.compile(program, targets=[QUICK], cpu_threads=1)
    results = torch.utils._pytree.tree_leaves(model(*inputs))
    for result, want in zip(results, program.module()(*inputs), strict=True):
        torch.testing.assert_close(result, want, equal_nan=True)


def test_quotients_of_infinities() -> None:
    check([lambda x: x % 0.1, lambda x: x % -INF, lambda x: x // INF, lambda x: x // 0.0], ODD)


@pytest.mark.full
def test_divisions_and_remainders() -> None:
    check(
        [
            *(lambda x, y, d=d: x % d for d in (3.0, -3.0, 0.1, INF, -INF, 0.0)),
            *(lambda x, y, d=d: x // d for d in (3.0, INF, 0.0)),
            *(lambda x, y, m=m: torch.div(x, 0.0, rounding_mode=m) for m in (None, "trunc")),
            lambda x, y: x[:, None] % y,
            lambda x, y: x[:, None] // y,
            lambda x, y: torch.hypot(x[:, None], y),
        ],
        ODD,
        ODD.flip(0).clone(),
    )


def test_nan_stays() -> None:
    check(
        [
            lambda x, y: F.softshrink(x),
            lambda x, y: x.clamp(min=NAN),
            lambda x, y: x.clamp(0, NAN),
            lambda x, y: torch.clamp(x, y),
            lambda x, y: torch.maximum(x, y),
            lambda x, y: torch.minimum(x, y),
            lambda x, y: x**0.5,
            lambda x, y: x**-0.5,
        ],
        ODD,
        ODD.flip(0).clone(),
    )


def test_factors_of_zero_read_nothing() -> None:
    x = torch.tensor([[NAN, 1.0], [2.0, INF]])
    check(
        [
            lambda x, a: torch.addmm(x, a, a, beta=0),
            lambda x, a: torch.addmm(x, a, a, beta=0, alpha=0),
            lambda x, a: torch.addbmm(x, a[None], a[None], beta=0),
            lambda x, a: torch.baddbmm(x[None], a[None], a[None], beta=0),
            lambda x, a: torch.addr(x, a[0], a[1], beta=0),
            lambda x, a: torch.addr(x, x[0], a[1], beta=0, alpha=0),
        ],
        x,
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    )


def test_variances_of_few_numbers_are_infinite() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 5.0, 7.0]])
    check([lambda x, c=c: x.var(0, correction=c) for c in (0, 1, 2, 3)], x)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_smooth_resizes_with_aligned_corners(mode: str) -> None:
    x = torch.arange(60.0).reshape(1, 2, 5, 6).sin()
    check(
        [
            lambda x, size=size: F.interpolate(
                x, size, mode=mode, antialias=True, align_corners=True
            )
            for size in ((3, 4), (9, 13), (1, 1))
        ],
        x,
    )


def test_scalars_single_parts_and_unsigned_numbers() -> None:
    check([lambda x: torch.split(x, 5, 1), lambda x: torch.chunk(x, 1)], torch.ones(2, 3))
    check([lambda x: -x, lambda x: 3 - x], torch.tensor([1, 2, 255], dtype=torch.uint8))
    check([lambda x: F.rrelu(x)], ODD)


def test_tensors_without_elements() -> None:
    places = torch.empty(0, 3, dtype=torch.int64)
    check(
        [
            lambda x, y, i: x.relu() + 1,
            lambda x, y, i: (x.sum(), x.sum(0), x.prod(0), x.mean(), x.mean(0), x.var(0)),
            lambda x, y, i: ((x > 0).any(0), (x > 0).all()),
            lambda x, y, i: (torch.cat([x, y]), torch.cat([x, x, y, y])),
            lambda x, y, i: (x.T @ x, x @ y.T, F.linear(x, y), x.softmax(0), x.cumsum(0)),
            lambda x, y, i: F.conv2d(x.reshape(0, 3, 1, 1), torch.ones(2, 3, 1, 1)),
            lambda x, y, i: F.pad(x, (0, 0, 1, 1), value=2.0),
            lambda x, y, i: (y.gather(0, i), y.scatter(0, i, x), y[:0] * 2, y.topk(0, 1)),
        ],
        torch.empty(0, 3),
        torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        places,
    )


def test_an_inverse_of_a_symmetric_matrix_reads_one_half() -> None:
    x = torch.tensor([[2.0, 9.0], [0.5, -1.0]])
    check([lambda x: torch.linalg.pinv(x, hermitian=True)], x)


def test_a_number_has_an_axis() -> None:
    check(
        [
            lambda x, i: (x.softmax(0), x.log_softmax(-1), x.cumsum(0), x.cumprod(0)),
            lambda x, i: (*x.topk(1), *x.sort(), *x.max(0), *x.min(0, keepdim=True), x.prod(0)),
            lambda x, i: (x.gather(0, i), x.gather(0, i[None]), x.index_select(0, i), x.take(i)),
            lambda x, i: (x.scatter(0, i, x + 1), x.scatter(0, i, 3.0), x.scatter_add(0, i, x)),
            lambda x, i: (x.scatter_reduce(0, i, x, "amax"), x.index_add(0, i, x)),
            lambda x, i: (
                torch.linalg.vector_norm(x, 3, 0),
                x.sum([]),
                x.mean(0),
                x.unfold(0, 1, 1),
            ),
        ],
        torch.tensor(2.0),
        torch.tensor(0),
    )


def test_results_without_elements() -> None:
    x = torch.empty(0, 3, 2)
    check([lambda x: (*x.max(1), x.prod(1), x.norm(dim=2), *x.sort(1), x[:, :, None])], x)
    check([lambda x: F.adaptive_avg_pool1d(x, 5)], torch.ones(2, 3))
    check([lambda x: F.avg_pool1d(x, 3)], torch.rand(4, 12))  # TVM left its result unbound


def _checked_lengths(x: torch.Tensor) -> torch.Tensor:
    longest = (x > 0).sum().max().item()
    torch._check(longest >= 0)
    torch._check(longest <= 8)
    return x + 1


def test_numbers_that_only_assertions_read_are_left_out() -> None:
    check([_checked_lengths], torch.linspace(-1, 1, 8))


def test_random_numbers_that_nobody_reads_are_left_out() -> None:
    """Networks for speech draw one for each layer that training may skip."""

    class Skips(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.rand([]) * 2
            return x.relu()

    program = torch.export.export(Skips(), (ODD,), strict=False)
    model = ts.compile(program, targets=[QUICK], cpu_threads=1)
    torch.testing.assert_close(model(ODD), ODD.relu(), equal_nan=True)


def test_paddings_that_cut() -> None:
    """Also one that leaves the shape as it was, by which networks shift tokens."""
    x = torch.linspace(-1, 3, 24).reshape(1, 2, 3, 4)
    check(
        [
            lambda x: F.pad(x, (0, 0, 1, -1)),
            lambda x: F.pad(x, (-1, 1, 2, -2, -1, 1), value=0.5),
            lambda x: F.max_pool2d(F.pad(x, (1, -1, -1, 2)), 2),
        ],
        x,
    )


def test_values_at_masks() -> None:
    """The same for each place, and added ones."""

    def put(x: torch.Tensor, values: torch.Tensor, added: bool = False) -> torch.Tensor:
        return x.index_put((x[..., 0] > 0,), values, added)

    check(
        [
            lambda x: put(x, x[0, 0] * 2),
            lambda x: put(x, x[0, :1]),
            lambda x: put(x, x[0, 0, 0], added=True),
        ],
        torch.linspace(-1, 2, 24).reshape(2, 3, 4),
    )


def test_numbers_in_shapes_of_computed_tensors() -> None:
    check([lambda x: torch.full_like(x * 2, 3) + x], ODD)
