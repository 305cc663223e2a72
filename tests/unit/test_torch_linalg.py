"""Linear algebra of small matrices of torch programs, beside torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.torch_beside import check

L = torch.linalg


def _square(x: torch.Tensor) -> Any:
    b = x[..., :2] + 1
    return L.det(x), *L.slogdet(x), L.inv(x), L.solve(x, b), L.solve(x, b.mT, left=False), *L.lu(x)


def _factors(x: torch.Tensor) -> Any:
    lu, pivots = L.lu_factor(x)
    b = x[..., :2]
    solved = [L.lu_solve(lu, pivots, b, adjoint=adjoint) for adjoint in (False, True)]
    return *solved, L.lu_solve(lu, pivots, b.mT, left=False), *torch.lu_unpack(lu, pivots)


def _triangles(x: torch.Tensor) -> Any:
    positive = x @ x.mT + torch.eye(4)
    lower, upper = L.cholesky(positive), L.cholesky(positive, upper=True)
    solved = torch.cholesky_solve(x, lower), torch.cholesky_inverse(upper, upper=True)
    unit = L.solve_triangular(x, x, upper=True, unitriangular=True)
    return lower, upper, *solved, unit, L.solve_triangular(lower, x, upper=False, left=False)


def _reflected(x: torch.Tensor) -> Any:
    q, tau = torch.geqrf(x)
    whole = L.qr(x, "complete"), L.qr(x), L.qr(x.mT)
    return *whole, q, tau, L.householder_product(q, tau)


def _rotated(x: torch.Tensor) -> Any:
    symmetric = x[:, :3] + x[:, :3].mT
    values, vectors = L.eigh(symmetric)
    u, s, vh = L.svd(x)
    again = vectors * values[..., None, :] @ vectors.mT, u[..., :3] * s[..., None, :] @ vh
    turned = u.mT @ u, L.svdvals(x.mT), L.pinv(x), L.matrix_rank(x)
    return values, *again, *turned, L.cond(x)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "square": (_square, _random(2, 4, 4)),
    "factors": (_factors, _random(2, 4, 4)),
    "triangles": (_triangles, _random(2, 4, 4)),
    "reflected": (_reflected, _random(2, 4, 3)),
    "rotated": (_rotated, _random(2, 4, 3)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_matrices(name: str) -> None:
    check(*CASES[name], error=2e-5)


def test_small_systems() -> None:
    x = _random(2, 2)
    check(lambda x: (L.solve(x, x[0] + 1), L.qr(x)[1], L.svdvals(x), L.cholesky(x @ x.mT)), x)


def test_as_many_matrices_as_rows() -> None:
    """A right side that is a matrix is not taken for a batch of vectors."""
    x = _random(2, 2, 2)
    check(lambda x: (L.inv(x), L.matrix_power(x, -2), L.matrix_power(x, 0)), x, error=2e-5)


def test_products_of_reflectors_exponentials_and_triangles() -> None:
    x = _random(2, 3, 3)
    check(lambda x: torch.ormqr(*torch.geqrf(x), x + 1, transpose=True), x, error=2e-5)
    check(lambda x: (torch.matrix_exp(x), torch.triangular_solve(x, x.exp())[0]), x, error=2e-5)


def _empty(x: torch.Tensor) -> Any:
    return *L.qr(x[:, :0]), *L.qr(x[:, :, :0], "complete"), *L.svd(x[:, :, :0]), L.inv(x[:, :0, :0])


def test_empty_matrices() -> None:
    check(_empty, _random(2, 3, 3))


def test_singular_matrices_have_no_inverse() -> None:
    """Torch raises an error; a kernel has none."""
    check(lambda x: L.inv_ex(x)[0].isfinite(), torch.zeros(1, 1))
    check(lambda x: L.cholesky_ex(x)[1], torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
