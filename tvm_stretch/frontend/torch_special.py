"""Special functions of torch, written with the elementary ones in the type of the numbers.

    lgamma, digamma        eight steps up, then Stirling's series; reflected below one half
    special_zeta           the first terms of the sum, then Euler and Maclaurin's formula
    erfinv, special_erfcx  fits of Giles and of Press and others
    i0, i1, i0e, i1e       power series, whose terms are all positive; asymptotic series

In float32, errors stay below 4e-6 of the result or 1e-5, which torch's own tests allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from tvm_stretch.frontend.torch_own import as_tensor, instead_of

Tensor = torch.Tensor
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
_STEPS = 8
_FAR = 20.0
"""Where Bessel functions turn to their asymptotic series."""


def _series(x: Tensor, factors: Sequence[float]) -> Tensor:
    """Horner's scheme, the constant first."""
    total = torch.full_like(x, factors[-1])
    for factor in reversed(factors[:-1]):
        total = total * x + factor
    return total


def _real(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


# --- gamma ----------------------------------------------------------------------------------------


def _shifted(x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Numbers of at least one half moved up by eight, whether they were, and those between."""
    x = torch.where(x < 0.5, 1 - x, x)
    return torch.where(x < _STEPS, x + _STEPS, x), x < _STEPS, [x + i for i in range(_STEPS)]


@instead_of("lgamma.default")
def _lgamma(x: Tensor) -> Tensor:
    x = _real(x)
    up, moved, steps = _shifted(x)
    product = math.prod(steps[1:], start=steps[0])
    tail = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:4], 1)]
    found = (up - 0.5) * (up.log() - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    found = found + _series(1 / (up * up), tail) / up - torch.where(moved, product, 1.0).log()
    sine = torch.sin(math.pi * (x - x.round())).abs()
    found = torch.where(x < 0.5, math.log(math.pi) - sine.log() - found, found)
    return torch.where(x.isinf() | ((x <= 0) & (x == x.floor())), math.inf, found)


@instead_of("digamma.default")
def _digamma(x: Tensor) -> Tensor:
    x = _real(x)
    up, moved, steps = _shifted(x)
    tail = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    square = 1 / (up * up)
    found = up.log() - 0.5 / up - square * _series(square, tail)
    found = found - torch.where(moved, sum(1 / step for step in steps), 0.0)
    turned = found - math.pi / torch.tan(math.pi * (x - x.round()))
    found = torch.where(x < 0.5, turned, found)
    return torch.where(x == 0, -1 / x, torch.where((x < 0) & (x == x.floor()), math.nan, found))


@instead_of("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def _zeta(power: Tensor | float, first: Tensor | float) -> Tensor:
    """For q from -22 on; below, where torch adds up to as many terms, the result is NaN."""
    kind = torch.result_type(power, first)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    both = (as_tensor(x, kind) for x in (power, first))
    s, q = torch.broadcast_tensors(*both)
    end = q + 4 * _STEPS
    last = end**-s
    found = sum((q + i) ** -s for i in range(4 * _STEPS)) + end ** (1 - s) / (s - 1) + last / 2
    factor = s * last / end
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        found = found + bernoulli / math.factorial(2 * k) * factor
        factor = factor * (s + (2 * k - 1)) * (s + 2 * k) / (end * end)
    outside = (s < 1) | ((q < 0) & (s != s.floor())) | (q < -22)
    pole = (s == 1) | ((s > 1) & (q <= 0) & (q == q.floor()))
    return torch.where(pole, math.inf, torch.where(outside, math.nan, found))


@instead_of("polygamma.default")
def _polygamma(n: int, x: Tensor) -> Tensor:
    x = _real(x)
    if n == 0:
        return _digamma(x)
    if n > 1:
        return (-1) ** (n + 1) * math.factorial(n) * _zeta(n + 1.0, x)
    sine = torch.sin(math.pi * x) / math.pi  # as torch rounds it
    found = _zeta(2.0, torch.where(x < 0.5, 1 - x, x))
    return torch.where(x < 0.5, 1 / (sine * sine) - found, found)


# --- error functions ------------------------------------------------------------------------------

_NEAR = (
    *(1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.000218580870),
    *(-4.39150654e-06, -3.52338770e-06, 3.43273939e-07, 2.81022636e-08),
)
_TAIL = (
    *(2.83297682, 1.00167406, 0.00943887047, -0.00762246130, 0.00573950773),
    *(-0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257),
)
_ERFCX = (
    *(-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806),
    *(0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277),
)


@instead_of("erfinv.default")
def _erfinv(x: Tensor) -> Tensor:
    x = _real(x)
    w = -((1 - x) * (1 + x)).log()
    near, tail = _series(w - 2.5, _NEAR), _series(w.clamp(min=5).sqrt() - 3, _TAIL)
    found = torch.where(x.abs() == 1, math.inf, torch.where(w < 5, near, tail)) * x
    return torch.where(x.abs() > 1, math.nan, found)


@instead_of("special_erfcx.default")
def _erfcx(x: Tensor) -> Tensor:
    """A fit of the logarithm."""
    x = _real(x)
    t = 1 / (1 + 0.5 * x.abs())
    found = t * _series(t, _ERFCX).exp()
    return torch.where(x < 0, 2 * (x * x).exp() - found, found)


# --- Bessel functions -----------------------------------------------------------------------------


def _bessel(x: Tensor, order: int, scaled: bool) -> Tensor:
    x = _real(x)
    size, far = x.abs(), [1.0]
    factors = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(50)]
    near = x.clamp(-_FAR, _FAR)
    small = _series(near * near / 4, factors) * (near / 2) ** order * (-size).exp()
    for k in range(1, _STEPS):
        far.append(far[-1] * ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k))
    large = size.clamp(min=_FAR)
    large = _series(1 / large, far) / (2 * math.pi * large).sqrt()
    found = torch.where(size < _FAR, small, large * x.sign() if order else large)
    return found if scaled else found * size.exp()


_MODIFIED = "special_modified_bessel_i"
for _name in ("i0", "special_i1", "special_i0e", "special_i1e", _MODIFIED + "0", _MODIFIED + "1"):
    _function = partial(_bessel, order=int("1" in _name), scaled=_name.endswith("e"))
    instead_of(f"{_name}.default")(_function)
