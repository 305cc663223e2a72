"""Special functions of torch, written with the elementary ones in the type of the numbers.

    lgamma, digamma      eight steps up, then Stirling's series; reflected below one half
    zeta, polygamma      the first terms of the sum, then Euler and Maclaurin's formula
    erfinv, ndtri        Giles' polynomials of log((1 - x) (1 + x))
    erfcx                Chebyshev's fit of the logarithm, by Press and others
    i0, i1, k0, k1       power series; integrals of exp(-x cosh t); asymptotic series
    j0, j1, y0, y1       means of cos(x sin t) over a turn; asymptotic series
    Chebyshev's          cosines, sines and their hyperbolic ones

In float32, errors stay below 2e-6 of the result or 1e-5, which torch's own tests allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from tvm_stretch.frontend.torch_own import instead_of

Tensor = torch.Tensor
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
_STEPS = 8
_EULER = 0.57721566490153286
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


def _number(x: Tensor | float, like: Tensor | float) -> Tensor:
    kind = torch.result_type(x, like)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    return x.to(kind) if isinstance(x, Tensor) else torch.full((), x, dtype=kind)


# --- gamma ----------------------------------------------------------------------------------------


def _shifted(x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Numbers of at least one half, the same moved up by eight, and those between."""
    steps = [x + step for step in range(_STEPS)]
    return torch.where(x < _STEPS, x + _STEPS, x), x < _STEPS, steps


@instead_of("lgamma.default")
def _lgamma(x: Tensor) -> Tensor:
    x = _real(x)
    below = x < 0.5
    up, moved, steps = _shifted(torch.where(below, 1 - x, x))
    product = steps[0]
    for step in steps[1:]:
        product = product * step
    tail = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI[:4], 1)]
    found = (up - 0.5) * (up.log() - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    found = found + _series(1 / (up * up), tail) / up - torch.where(moved, product, 1.0).log()
    sine = torch.sin(math.pi * (x - x.round())).abs()
    found = torch.where(below, math.log(math.pi) - sine.log() - found, found)
    return torch.where(x.isinf() | ((x <= 0) & (x == x.floor())), math.inf, found)


@instead_of("digamma.default")
def _digamma(x: Tensor) -> Tensor:
    x = _real(x)
    below = x < 0.5
    up, moved, steps = _shifted(torch.where(below, 1 - x, x))
    tail = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    square = 1 / (up * up)
    found = up.log() - 0.5 / up - square * _series(square, tail)
    found = found - torch.where(moved, sum(1 / step for step in steps), 0.0)
    turned = found - math.pi / torch.tan(math.pi * (x - x.round()))
    found = torch.where(below, turned, found)
    found = torch.where((x < 0) & (x == x.floor()), math.nan, found)
    return torch.where(x == 0, -1 / x, found)


@instead_of("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def _zeta(s: Tensor | float, q: Tensor | float) -> Tensor:
    """For q from -22 on; below, where torch adds up to as many terms, the result is NaN."""
    s, q = torch.broadcast_tensors(_number(s, q), _number(q, s))
    terms = [(q + step) ** -s for step in range(4 * _STEPS)]
    end = q + 4 * _STEPS
    last = end**-s
    found = sum(terms) + end ** (1 - s) / (s - 1) + last / 2
    factor = s * last / end
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        found = found + bernoulli / math.factorial(2 * k) * factor
        factor = factor * (s + (2 * k - 1)) * (s + 2 * k) / (end * end)
    poles = (q <= 0) & (q == q.floor())
    outside = (s < 1) | ((q < 0) & (s != s.floor())) | (q < -22)
    found = torch.where(outside, math.nan, found)
    return torch.where((s == 1) | ((s > 1) & poles), math.inf, found)


@instead_of("polygamma.default")
def _polygamma(n: int, x: Tensor) -> Tensor:
    x = _real(x)
    if n == 0:
        return _digamma(x)
    if n == 1:
        sine = torch.sin(math.pi * x) / math.pi  # as torch rounds it
        found = _zeta(2.0, torch.where(x < 0.5, 1 - x, x))
        return torch.where(x < 0.5, 1 / (sine * sine) - found, found)
    return (-1) ** (n + 1) * math.factorial(n) * _zeta(n + 1.0, x)


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


def _inverse(x: Tensor, product: Tensor) -> Tensor:
    """The inverse of erf, of numbers and ``(1 - x) * (1 + x)``."""
    w = -product.log()
    near, tail = _series(w - 2.5, _NEAR), _series(w.clamp(min=5).sqrt() - 3, _TAIL)
    return torch.where(w < 5, near, tail) * x


@instead_of("erfinv.default")
def _erfinv(x: Tensor) -> Tensor:
    x = _real(x)
    found = torch.where(x.abs() == 1, x * math.inf, _inverse(x, (1 - x) * (1 + x)))
    return torch.where(x.abs() > 1, math.nan, found)


@instead_of("special_erfcx.default")
def _erfcx(x: Tensor) -> Tensor:
    x = _real(x)
    size = x.abs()
    t = 1 / (1 + 0.5 * size)
    found = t * _series(t, _ERFCX).exp()
    return torch.where(x < 0, 2 * (x * x).exp() - found, found)


@instead_of("special_ndtri.default")
def _ndtri(p: Tensor) -> Tensor:
    """Newton's method for the logarithm of the lower half's probability."""
    p = _real(p)
    low = torch.minimum(p, 1 - p)
    x = _inverse(2 * low - 1, (4 * low * (1 - low)).clamp(min=1e-6)) * math.sqrt(2)
    x = torch.where(low < 1e-6, -(-2 * low.log()).sqrt(), x)
    for _ in range(3):
        tail = _erfcx(-x / math.sqrt(2))
        x = x - ((tail / 2).log() - x * x / 2 - low.log()) * tail * math.sqrt(math.pi / 2)
    x = torch.where(low == 0, -math.inf, x)
    return torch.where((p < 0) | (p > 1), math.nan, torch.where(p > 0.5, -x, x))


# --- Bessel functions -----------------------------------------------------------------------------


def _ascending(x: Tensor, order: int, terms: int = 40) -> Tensor:
    """``I_n(x)``, whose terms are all positive."""
    factors = [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(terms)]
    return _series(x * x / 4, factors) * (x / 2) ** order


def _signs(order: int, terms: int = 8) -> list[float]:
    """The factors of ``1 / x ** k`` in the asymptotic series."""
    factors = [1.0]
    for k in range(1, terms):
        factors.append(factors[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return factors


def _scaled_i(x: Tensor, order: int) -> Tensor:
    x = _real(x)
    size = x.abs().clamp(min=_FAR)
    far = [(-1) ** k * factor for k, factor in enumerate(_signs(order))]
    large = _series(1 / size, far) / (2 * math.pi * size).sqrt()
    large = large * x.sign() if order else large
    small = _ascending(x.clamp(-_FAR, _FAR), order, 50) * (-x.abs()).exp()
    return torch.where(x.abs() < _FAR, small, large)


def _i(x: Tensor, order: int) -> Tensor:
    return _scaled_i(x, order) * _real(x).abs().exp()


def _scaled_k(x: Tensor, order: int) -> Tensor:
    """Below 2 a series with a logarithm, then an integral by steps of 1 / 16."""
    x = _real(x)
    t = torch.arange(80, dtype=x.dtype) / 16
    middle = x.clamp(2, _FAR)[..., None]
    weights = torch.where(t == 0, 1 / 32, t.cosh() ** order / 16)
    between = ((-middle * (t.cosh() - 1)).exp() * weights).sum(-1)
    size = x.clamp(min=_FAR)
    large = _series(1 / size, _signs(order)) * (math.pi / (2 * size)).sqrt()
    small, harmonic = x.clamp(max=2), 0.0
    factors = []
    for k in range(12):
        added = 2 * harmonic - 2 * _EULER + (1 / (k + 1) if order else 0)
        factors.append(added / 2 / math.factorial(k) / math.factorial(k + order))
        harmonic += 1 / (k + 1)
    near = _series(small * small / 4, factors)
    logarithm = (small / 2).log() * _ascending(small, order, 12)
    near = 1 / small + logarithm - small / 2 * near if order else near - logarithm
    found = torch.where(x < 2, near * small.exp(), torch.where(x < _FAR, between, large))
    return torch.where(x < 0, math.nan, torch.where(x == 0, math.inf, found))


def _k(x: Tensor, order: int) -> Tensor:
    return _scaled_k(x, order) * (-_real(x)).exp()


def _waves(x: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """The amplitude, cosine and sine parts of ``J_n`` and ``Y_n`` far from zero."""
    size = x.clamp(min=_FAR)
    factors, square = _signs(order), -1 / (size * size)
    even, odd = _series(square, factors[::2]), _series(square, factors[1::2]) / size
    amplitude, angle = (2 / (math.pi * size)).sqrt(), size - (order / 2 + 0.25) * math.pi
    cosine, sine = angle.cos(), angle.sin()
    return amplitude, even * cosine - odd * sine, even * sine + odd * cosine


def _turns(x: Tensor) -> tuple[Tensor, Tensor]:
    angle = torch.arange(96, dtype=x.dtype) * (math.pi / 48)
    return x[..., None] * angle.sin(), angle


def _j(x: Tensor, order: int) -> Tensor:
    x = _real(x)
    turned, angle = _turns(x.clamp(-_FAR, _FAR))
    near = (order * angle - turned).cos().mean(-1)
    amplitude, cosine, _ = _waves(x.abs(), order)
    far = amplitude * cosine * (x.sign() if order else 1)
    return torch.where(x.abs() < _FAR, near, far)


def _y(x: Tensor, order: int) -> Tensor:
    """Neumann's series of J, whose sum over the orders is one weight of each angle."""
    x = _real(x)
    amplitude, _, far = _waves(x, order)
    near = x.clamp(0, _FAR)
    turned, angle = _turns(near)
    weights = sum((-1) ** k / k * (2 * k * angle).cos() for k in range(1, 24))
    logarithm = (near / 2).log() + _EULER
    if order:
        sines = (angle.sin() * turned.sin() * weights).mean(-1)
        small = logarithm * _j(near, 1) - _j(near, 0) / near - 2 * sines
    else:
        small = logarithm * _j(near, 0) - 2 * (turned.cos() * weights).mean(-1)
    found = torch.where(x < _FAR, small * (2 / math.pi), amplitude * far)
    return torch.where(x < 0, math.nan, torch.where(x == 0, -math.inf, found))


@instead_of("special_spherical_bessel_j0.default")
def _spherical(x: Tensor) -> Tensor:
    x = _real(x)
    found = torch.where(x == 0, 1.0, x.sin() / x)
    return torch.where(x.isinf(), 0.0, found)


_BESSEL: dict[str, Callable[..., Tensor]] = {
    "i0": _i,
    "special_i1": _i,
    "special_modified_bessel_i0": _i,
    "special_modified_bessel_i1": _i,
    "special_i0e": _scaled_i,
    "special_i1e": _scaled_i,
    "special_modified_bessel_k0": _k,
    "special_modified_bessel_k1": _k,
    "special_scaled_modified_bessel_k0": _scaled_k,
    "special_scaled_modified_bessel_k1": _scaled_k,
    "special_bessel_j0": _j,
    "special_bessel_j1": _j,
    "special_bessel_y0": _y,
    "special_bessel_y1": _y,
}
for _name, _function in _BESSEL.items():
    instead_of(f"{_name}.default")(partial(_function, order=int("1" in _name)))


# --- Chebyshev's polynomials ----------------------------------------------------------------------


def _chebyshev(kind: str, shifted: bool, x: Tensor | float, n: Tensor | float) -> Tensor:
    """Of the angle whose cosine is the size of x, or of the number whose hyperbolic cosine it is.

    The distance from 1 gives both without a loss of digits.
    """
    x, n = torch.broadcast_tensors(_number(x, n), _number(n, x))
    n, negative = n.trunc(), x < 0.5 if shifted else x < 0
    gap = 2 * torch.minimum(x, 1 - x) if shifted else 1 - x.abs()
    sign = torch.where(negative & (n / 2 != (n / 2).floor()), -1.0, 1.0)
    angle, above = (
        2 * (gap.clamp(0, 1) / 2).sqrt().asin(),
        2 * (-gap.clamp(max=0) / 2).sqrt().asinh(),
    )
    half, last = n + 0.5, n + 1
    if kind == "t":
        inside, beyond, end = (n * angle).cos(), (n * above).cosh(), torch.ones_like(n)
    elif kind == "u":
        inside, end = (last * angle).sin() / angle.sin(), last
        beyond = (last * above).sinh() / above.sinh()
    else:
        cosines = (
            (half * angle).cos() / (angle / 2).cos(),
            (half * above).cosh() / (above / 2).cosh(),
        )
        sines = (half * angle).sin() / (angle / 2).sin(), (half * above).sinh() / (above / 2).sinh()
        of_cosine = negative == (kind == "w")
        inside, beyond = (
            torch.where(of_cosine, *pair) for pair in zip(cosines, sines, strict=True)
        )
        end = torch.where(of_cosine, 1.0, 2 * n + 1)
    found = sign * torch.where(gap > 0, inside, torch.where(gap == 0, end, beyond))
    return torch.where(n < 0, 0.0, torch.where(x.isnan(), x, found))


for _kind in "tuvw":
    for _prefix in ("", "shifted_"):
        _names = [
            f"special_{_prefix}chebyshev_polynomial_{_kind}.{o}"
            for o in ("default", "n_scalar", "x_scalar")
        ]
        instead_of(*_names)(partial(_chebyshev, _kind, bool(_prefix)))
