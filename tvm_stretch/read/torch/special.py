"""Special functions of torch, written with the elementary ones in the type of the numbers.

    lgamma, digamma        eight steps up, then Stirling's series; reflected below one half
    igamma, igammac        a series or a continued fraction; Simpson's rule for large a
    special_zeta           the first terms of the sum, then Euler and Maclaurin's formula
    erfinv, special_ndtri  Giles' polynomials of log((1 - x) (1 + x)), for ndtri with Newton's steps
    special_erfcx          a fit of the logarithm, by Press and others
    i0, i1, k0, k1         power series; integrals of exp(-x cosh t); asymptotic series
    j0, j1, y0, y1         means of cos(x sin t) over a turn; asymptotic series
    polynomials            the relation of three consecutive degrees

In float32, errors stay below 4e-6 of the result or 1e-5, which torch's own tests allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from tvm_stretch.read.torch.own import as_tensor, instead_of

Tensor = torch.Tensor
_EULER = 0.57721566490153286
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


def _both(x: Tensor | float, y: Tensor | float) -> Sequence[Tensor]:
    """Two operands as floats of one shape."""
    kind = torch.result_type(x, y)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    return torch.broadcast_tensors(as_tensor(x, kind), as_tensor(y, kind))


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
    series = (up - 0.5) * (up.log() - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    series = series + _series(1 / (up * up), tail) / up - torch.where(moved, product, 1.0).log()
    sine = torch.sin(math.pi * (x - x.round())).abs()
    series = torch.where(x < 0.5, math.log(math.pi) - sine.log() - series, series)
    return torch.where(x.isinf() | ((x <= 0) & (x == x.floor())), math.inf, series)


@instead_of("digamma.default")
def _digamma(x: Tensor) -> Tensor:
    x = _real(x)
    up, moved, steps = _shifted(x)
    tail = [b / (2 * k) for k, b in enumerate(_BERNOULLI, 1)]
    square = 1 / (up * up)
    series = up.log() - 0.5 / up - square * _series(square, tail)
    series = series - torch.where(moved, sum(1 / step for step in steps), 0.0)
    turned = series - math.pi / torch.tan(math.pi * (x - x.round()))
    series = torch.where(x < 0.5, turned, series)
    return torch.where(x == 0, -1 / x, torch.where((x < 0) & (x == x.floor()), math.nan, series))


@instead_of("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def _zeta(power: Tensor | float, first: Tensor | float) -> Tensor:
    """For q from -22 on; below, where torch adds up to as many terms, the result is NaN."""
    s, q = _both(power, first)
    end = q + 4 * _STEPS
    last = end**-s
    total = sum((q + i) ** -s for i in range(4 * _STEPS)) + end ** (1 - s) / (s - 1) + last / 2
    factor = s * last / end
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        total = total + bernoulli / math.factorial(2 * k) * factor
        factor = factor * (s + (2 * k - 1)) * (s + 2 * k) / (end * end)
    outside = (s < 1) | ((q < 0) & (s != s.floor())) | (q < -22)
    pole = (s == 1) | ((s > 1) & (q <= 0) & (q == q.floor()))
    return torch.where(pole, math.inf, torch.where(outside, math.nan, total))


@instead_of("polygamma.default")
def _polygamma(n: int, x: Tensor) -> Tensor:
    x = _real(x)
    if n == 0:
        return _digamma(x)
    if n > 1:
        return (-1) ** (n + 1) * math.factorial(n) * _zeta(n + 1.0, x)
    sine = torch.sin(math.pi * x) / math.pi  # as torch rounds it
    value = _zeta(2.0, torch.where(x < 0.5, 1 - x, x))
    return torch.where(x < 0.5, 1 / (sine * sine) - value, value)


_LARGE = 20.0
"""From here on, the distribution is so wide that Simpson's rule integrates it."""
_PIECES = 128


def _poisson(a: Tensor, x: Tensor) -> Tensor:
    """``x ** a * exp(-x) / gamma(a + 1)``; large exponents cancel before they are computed."""
    part = (x - a) / a
    near = part * part * _series(part, [(-1) ** (k + 1) / k for k in range(2, 12)])
    exponent = a * torch.where(part.abs() < 0.1, near, (x / a).log() - part)
    stirling = _series(
        1 / (a * a), [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_BERNOULLI, 1)]
    )
    exponent = exponent - stirling / a - 0.5 * (2 * math.pi * a).log()
    return torch.where(a < _STEPS, a * x.log() - x - _lgamma(a + 1), exponent).exp()


def _tail(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The probability between x and where hardly any is left, for a large a; whether it is P."""
    mode = a - 1
    root, below = mode.sqrt(), x <= mode
    lower = torch.minimum(mode - 7.5 * root, x - 5 * root).clamp(min=1e-3)
    end = torch.where(below, lower, torch.maximum(mode + 11.5 * root, x + 6 * root))
    width, place = end - x, torch.arange(_PIECES + 1, dtype=x.dtype)
    weights = torch.where((place == 0) | (place == _PIECES), 1.0, 2 + 2 * (place % 2))
    between = x[..., None] + place / _PIECES * width[..., None]
    total = (_poisson(mode[..., None], between) * weights).sum(-1) / (3 * _PIECES)
    return total * width.abs(), below


def _gamma_parts(power: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper regularised gamma function; for NumPy's names, P and Q."""
    a, x = _both(power, end)
    series = torch.ones_like(x)
    for n in range(32, 0, -1):
        series = 1 + series * x / (a + n)
    fraction = x + 65 - a
    for n in range(32, 0, -1):
        fraction = x + (2 * n - 1) - a - n * (n - a) / fraction
    density = _poisson(a, x)
    far, of_far = _tail(a.clamp(min=_LARGE), x)
    below = torch.where(a < _LARGE, x < a + 1, of_far)
    part = torch.where(a < _LARGE, density * torch.where(below, series, a / fraction), far)
    part = torch.where((x == 0) | x.isinf() | (a == 0), 0.0, part)
    below = (below & (a > 0) & x.isfinite()) | (x == 0) | a.isinf()
    wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | (a.isinf() & x.isinf())
    part = torch.where(wrong | x.isnan(), math.nan, torch.where(a.isinf(), 0.0, part))
    return torch.where(below, part, 1 - part), torch.where(below, 1 - part, part)


instead_of("igamma.default")(lambda a, x: _gamma_parts(a, x)[0])
instead_of("igammac.default")(lambda a, x: _gamma_parts(a, x)[1])


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
    value = torch.where(x.abs() == 1, x * math.inf, _inverse(x, (1 - x) * (1 + x)))
    return torch.where(x.abs() > 1, math.nan, value)


@instead_of("special_erfcx.default")
def _erfcx(x: Tensor) -> Tensor:
    """A fit of the logarithm."""
    x = _real(x)
    t = 1 / (1 + 0.5 * x.abs())
    value = t * _series(t, _ERFCX).exp()
    return torch.where(x < 0, 2 * (x * x).exp() - value, value)


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
    value = torch.where(x < 2, near * small.exp(), torch.where(x < _FAR, between, large))
    return torch.where(x < 0, math.nan, torch.where(x == 0, math.inf, value))


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
    value = torch.where(x < _FAR, small * (2 / math.pi), amplitude * far)
    return torch.where(x < 0, math.nan, torch.where(x == 0, -math.inf, value))


@instead_of("special_spherical_bessel_j0.default")
def _spherical(x: Tensor) -> Tensor:
    x = _real(x)
    value = torch.where(x == 0, 1.0, x.sin() / x)
    return torch.where(x.isinf(), 0.0, value)


_BESSEL: dict[str, Callable[..., Tensor]] = {
    "i0": _i,
    "special_i1": _i,
    "special_i0e": _scaled_i,
    "special_i1e": _scaled_i,
    **{f"special_modified_bessel_i{order}": _i for order in (0, 1)},
    **{f"special_modified_bessel_k{order}": _k for order in (0, 1)},
    **{f"special_scaled_modified_bessel_k{order}": _scaled_k for order in (0, 1)},
    **{f"special_bessel_j{order}": _j for order in (0, 1)},
    **{f"special_bessel_y{order}": _y for order in (0, 1)},
}
for _name, _function in _BESSEL.items():
    instead_of(f"{_name}.default")(partial(_function, order=int("1" in _name)))


# --- polynomials ----------------------------------------------------------------------------------

_DEGREES = 32
"""Degrees that are computed where they are tensors; the result of higher ones is NaN."""

# The second polynomial's factors of x and 1; those of x, 1, and the polynomial before the last one.
_Step = Callable[[int], tuple[float, float, float]]
_POLYNOMIALS: dict[str, tuple[float, float, _Step]] = {
    "chebyshev_polynomial_t": (1, 0, lambda k: (2, 0, 1)),
    "chebyshev_polynomial_u": (2, 0, lambda k: (2, 0, 1)),
    "chebyshev_polynomial_v": (2, -1, lambda k: (2, 0, 1)),
    "chebyshev_polynomial_w": (2, 1, lambda k: (2, 0, 1)),
    "hermite_polynomial_h": (2, 0, lambda k: (2, 0, 2 * k - 2)),
    "hermite_polynomial_he": (1, 0, lambda k: (1, 0, k - 1)),
    "laguerre_polynomial_l": (-1, 1, lambda k: (-1 / k, 2 - 1 / k, 1 - 1 / k)),
    "legendre_polynomial_p": (1, 0, lambda k: (2 - 1 / k, 0, 1 - 1 / k)),
}


def _polynomial(name: str, shifted: bool, x: Tensor | float, n: Tensor | float) -> Tensor:
    """Three polynomials of consecutive degrees are related; those below degree 0 are zero."""
    most = _DEGREES if isinstance(n, Tensor) else int(n)
    first, constant, step = _POLYNOMIALS[name]
    x, n = _both(x, n)
    x, n = 2 * x - 1 if shifted else x, n.trunc()
    last, now = torch.ones_like(x), first * x + constant
    value = torch.where(n == 0, last, torch.where(n < 0, 0.0, torch.where(n == 1, now, math.nan)))
    for k in range(2, most + 1):
        of_x, of_one, of_last = step(k)
        last, now = now, (of_x * x + of_one) * now - of_last * last
        value = torch.where(n == k, now, value)
    return value


for _name in _POLYNOMIALS:
    for _prefix in ("", "shifted_")[: 1 + _name.startswith("chebyshev")]:
        _given = partial(_polynomial, _name, bool(_prefix))
        for _overload in ("default", "n_scalar", "x_scalar"):
            instead_of(f"special_{_prefix}{_name}.{_overload}")(_given)
