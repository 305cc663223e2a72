"""Special functions of torch programs, beside torch: in floats here, some of them compiled."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from helpers.torch_beside import check, check_written

from tvm_stretch.read.torch import elements, linalg, special  # noqa: F401  they register
from tvm_stretch.read.torch.own import WRITTEN

_X = torch.cat([torch.linspace(-9, 9, 401), torch.linspace(-60, 60, 41)])
_ODD = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-5, 1e-20, 1e4, torch.inf, -torch.inf, torch.nan])
_SHARES = torch.cat([torch.linspace(0, 1, 101), torch.tensor([1e-6, 1e-30, 1 - 1e-7, 2.0, -1.0])])
_SIZES = torch.tensor([0.0, 1e-6, 0.02, 0.5, 1.0, 3.7, 7.9, 8.1, 19.9, 20.1, 60.0, 500.0, 1e4, 1e6])
_SPREAD = torch.tensor([-6.0, -2.5, -1.0, -0.1, 0.0, 0.1, 1.0, 2.5, 6.0])
_NEAR = torch.cartesian_prod(_SIZES, _SPREAD)
_GIVEN = torch.cartesian_prod(_ODD.sign() * _SIZES[3:13], _ODD)
_POWERS = torch.cat([_NEAR[:, 0], _GIVEN[:, 0], _GIVEN[:, 1]])
_ENDS = torch.cat([(_NEAR[:, 0] + _NEAR[:, 1] * _NEAR[:, 0].sqrt()), _GIVEN[:, 1], _GIVEN[:, 0]])
"""Where the function rises, far from there, and beside zero and infinity."""

_OF_ONE = ("lgamma", "digamma", "i0", "special_i1", "special_i0e", "special_i1e", "special_erfcx")
_MODIFIED = itertools.product(("modified_", "scaled_modified_"), ("k0", "k1"))
CASES: dict[str, tuple[Any, ...]] = {
    **{name: (torch.cat([_X, _ODD]),) for name in _OF_ONE},
    **{f"special_bessel_{kind}": (_X,) for kind in ("j0", "j1", "y0", "y1")},
    **{f"special_{kind}bessel_{order}": (_X.abs(),) for kind, order in _MODIFIED},
    "special_spherical_bessel_j0": (torch.cat([_X, _ODD]),),
    "special_ndtri": (_SHARES,),
    "erfinv": (2 * _SHARES - 1,),
    **dict.fromkeys(("igamma", "igammac"), (_POWERS, _ENDS)),
    "special_zeta": (_X.abs() / 8 + 1, _X.flip(0).clamp(min=-20)),
    **{f"polygamma {n}": (n, _X.clamp(min=-3.6) + 0.01) for n in range(4)},
}


@pytest.mark.parametrize("name", CASES)
def test_in_floats(name: str) -> None:
    """What is compiled is written in torch."""
    operator = getattr(torch.ops.aten, name.split()[0]).default
    found, want = WRITTEN[operator](*CASES[name]), operator(*CASES[name])
    torch.testing.assert_close(found, want, rtol=4e-6, atol=1e-5, equal_nan=True)


@pytest.mark.full
def test_compiled() -> None:
    check(lambda x: (torch.lgamma(x), torch.digamma(x), torch.polygamma(2, x)), _X[200:220])
    check(lambda x: (torch.erfinv(x), torch.special.log_ndtr(x * 9)), _SHARES[:60] * 2 - 1)
    check(lambda x: (torch.i0(x), torch.special.i1(x)), _ODD)


def test_powers_that_are_numbers() -> None:
    check_written(lambda x: torch.special.zeta(2.5, x), _X.abs() + 1)


def test_sums_of_many_terms_are_none() -> None:
    """Torch would add up 23 terms and more."""
    assert math.isnan(WRITTEN[torch.ops.aten.special_zeta.default](3.0, torch.tensor(-22.5)))


@pytest.mark.parametrize("name", [n for n in dir(torch.ops.aten) if "_polynomial_" in n])
def test_polynomials(name: str) -> None:
    """Torch computes some of them with cosines."""
    x, n = torch.linspace(-2, 2, 41)[:, None], torch.arange(-1.0, 13.0) + 0.3
    operator = getattr(torch.ops.aten, name)
    for overload, degree in ((operator.default, n), (operator.n_scalar, 5)):
        want = overload(x, degree)
        error = 4e-6 * float(want.abs().max())
        torch.testing.assert_close(WRITTEN[overload](x, degree), want, rtol=4e-6, atol=error)


def test_polynomials_beyond_the_degrees_that_are_computed_are_none() -> None:
    found = WRITTEN[torch.ops.aten.special_legendre_polynomial_p.default]
    assert found(torch.tensor(0.5), torch.tensor([32.0, 33.0])).isnan().tolist() == [False, True]
