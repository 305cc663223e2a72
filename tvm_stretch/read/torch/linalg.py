"""Linear algebra of small matrices, written with the kernels of `tvm_stretch/read/torch/own.py`.

    solve(A, B)      rows of [A | B] are eliminated, then U X = the right part is solved
    qr(A)            reflectors; Q = I - V T V', where T is the inverse of a triangle
    svd(A)           rotations make the columns of A V orthogonal: their lengths are the numbers
    eigh(A)          the same for A + c I, which has no negative eigenvalue

Torch raises an error for singular matrices; here the results are infinities or NaN, and `info`,
where torch returns it, is 0. Signs of singular vectors and eigenvectors are free, as in LAPACK.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tvm_stretch.read.torch.own import OWN, instead_of

Tensor = torch.Tensor
_CHECK = "aten::_linalg_check_errors"


@contextmanager
def unchecked() -> Iterator[None]:
    """Torch keeps the check of `info` as an effect, with tokens that are inputs and results."""
    _register_effectful_op(_CHECK, None)
    try:
        yield
    finally:
        _register_effectful_op(_CHECK, _EffectType.ORDERED)


instead_of("_linalg_check_errors.default")(lambda *_, **__: None)


def _factor(x: Tensor, kind: str) -> Tensor:
    """A kernel's result; nothing is computed for empty matrices."""
    if x.numel():
        return OWN.factor(x, kind)
    more = {"lu": 1, "householder": 1, "rotate": x.shape[-1]}.get(kind, 0)
    return x.new_zeros((*x.shape[:-2], x.shape[-2] + more, x.shape[-1]))


def _factor2(a: Tensor, x: Tensor, kind: str) -> Tensor:
    """The same with two operands, whose batches are broadcast."""
    batch = torch.broadcast_shapes(a.shape[:-2], x.shape[:-2])
    a, x = a.expand(*batch, *a.shape[-2:]), x.expand(*batch, *x.shape[-2:])
    return OWN.factor2(a, x, kind) if a.numel() and x.numel() else x.clone()


def _eye(x: Tensor, rows: int, columns: int | None = None) -> Tensor:
    return torch.eye(rows, rows if columns is None else columns, dtype=x.dtype)


def _diagonal(x: Tensor) -> Tensor:
    return x.diagonal(dim1=-2, dim2=-1)


def _info(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:-2], dtype=torch.int32)


# --- L and U --------------------------------------------------------------------------------------


def _lu(x: Tensor) -> tuple[Tensor, Tensor]:
    factors, rows = _factor(x, "lu"), x.shape[-2]
    return factors[..., :rows, :], factors[..., rows, : min(x.shape[-2:])].to(torch.int32)


instead_of("linalg_lu_factor_ex.default")(lambda x, **_: (*_lu(x), _info(x)))
instead_of("linalg_lu.default")(lambda x, **_: _lu_unpack(*_lu(x)))


@instead_of("lu_unpack.default")
def _lu_unpack(lu: Tensor, pivots: Tensor, data: bool = True, places: bool = True) -> Any:
    rows, least, nothing = lu.shape[-2], min(lu.shape[-2:]), lu.new_empty((0,))
    eye = _eye(lu, rows).expand(*lu.shape[:-2], rows, rows)
    placed = _swapped(pivots, eye).mT.clone() if places else nothing
    if not data:
        return placed, nothing, nothing
    return placed, lu[..., :least].tril(-1) + _eye(lu, rows, least), lu[..., :least, :].triu()


def _swapped(pivots: Tensor, x: Tensor) -> Tensor:
    return _factor2(pivots[..., None, :].to(x.dtype), x, "swap")


def _sign(pivots: Tensor) -> Tensor:
    """-1 for an odd number of interchanges."""
    moved = pivots != torch.arange(1, pivots.shape[-1] + 1)
    return 1 - 2 * (moved.sum(-1) % 2)


@instead_of("_linalg_slogdet.default")
def _slogdet(x: Tensor) -> tuple[Tensor, ...]:
    lu, pivots = _lu(x)
    signs = _diagonal(lu).sign().prod(-1) * _sign(pivots).to(x.dtype)
    return signs, _diagonal(lu).abs().log().sum(-1), lu, pivots


@instead_of("_linalg_det.default")
def _det(x: Tensor) -> tuple[Tensor, ...]:
    lu, pivots = _lu(x)
    return _diagonal(lu).prod(-1) * _sign(pivots).to(x.dtype), lu, pivots


@instead_of("_linalg_solve_ex.default")
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, **_: Any) -> tuple[Tensor, ...]:
    if b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1]):
        solution, *others = _solve_ex(a, b[..., None])
        return solution[..., 0], *others
    if not left:
        solution, *others = _solve_ex(a.mT, b.mT)
        return solution.mT, *others
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if 0 in (*batch, *a.shape, *b.shape):
        return b.new_zeros((*batch, *b.shape[-2:])), a, _info(a)[..., None], _info(a)
    lu, pivots = _lu(torch.cat([x.expand(*batch, *x.shape[-2:]) for x in (a, b)], -1))
    lu, right = lu.split((a.shape[-1], b.shape[-1]), -1)
    return _solve_triangular(lu, right, upper=True), lu, pivots, _info(a)


@instead_of("linalg_inv_ex.default")
def _inv_ex(x: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    return _solve_ex(x, _eye(x, x.shape[-1]).expand(x.shape))[0], _info(x)


@instead_of("linalg_lu_solve.default")
def _lu_solve(
    lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mT, adjoint=not adjoint).mT
    if not adjoint:
        y = _solve_triangular(lu, _swapped(pivots, b), upper=False, unitriangular=True)
        return _solve_triangular(lu, y, upper=True)
    y = _solve_triangular(lu.mT, b, upper=False)
    y = _solve_triangular(lu.mT, y, upper=True, unitriangular=True)
    return _lu_unpack(lu, pivots, data=False)[0] @ y


@instead_of("linalg_solve_triangular.default")
def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Turned around, an upper triangle is a lower one."""
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    if upper:
        turned = a.flip((-2, -1)), b.flip(-2)
        return _solve_triangular(*turned, upper=False, unitriangular=unitriangular).flip(-2)
    return _factor2(a.tril(-1) + _eye(a, a.shape[-1]) if unitriangular else a, b, "forward")


@instead_of("triangular_solve.default")
def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    used, upper = a.mT if transpose else a, upper != transpose
    solution = _solve_triangular(used, b, upper=upper, unitriangular=unitriangular)
    return solution, a.expand(*solution.shape[:-2], *a.shape[-2:]).clone()


# --- Cholesky -------------------------------------------------------------------------------------


@instead_of("cholesky.default")
def _cholesky(x: Tensor, upper: bool = False) -> Tensor:
    return _factor(x.mT, "cholesky").mT if upper else _factor(x, "cholesky")


@instead_of("linalg_cholesky_ex.default")
def _cholesky_ex(x: Tensor, *, upper: bool = False, **_: Any) -> tuple[Tensor, Tensor]:
    """The first row whose root is none ends the positive part of a matrix."""
    factor, count = _cholesky(x, upper), x.shape[-1]
    if not count:
        return factor, _info(x)
    bad = _diagonal(factor).isnan()
    first = torch.where(bad, torch.arange(1, count + 1), count + 1).amin(-1)
    return factor, torch.where(bad.any(-1), first, 0).to(torch.int32)


@instead_of("cholesky_solve.default")
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    return _solve_triangular(lower.mT, _factor2(lower, b, "forward"), upper=True)


@instead_of("cholesky_inverse.default")
def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    return _cholesky_solve(_eye(factor, factor.shape[-1]), factor, upper)


# --- Q and R --------------------------------------------------------------------------------------


@instead_of("geqrf.default")
def _geqrf(x: Tensor) -> tuple[Tensor, Tensor]:
    factors, rows = _factor(x, "householder"), x.shape[-2]
    return factors[..., :rows, :], factors[..., rows, : min(x.shape[-2:])]


@instead_of("linalg_householder_product.default")
def _orthogonal(reflectors: Tensor, factors: Tensor, columns: int | None = None) -> Tensor:
    """The first columns of the product of reflectors; one with the factor 0 changes nothing."""
    columns = reflectors.shape[-1] if columns is None else columns
    rows, count, used = reflectors.shape[-2], factors.shape[-1], factors != 0
    if 0 in (*reflectors.shape, *factors.shape, columns):
        return _eye(reflectors, rows, columns).expand(*reflectors.shape[:-2], rows, columns).clone()
    v = reflectors[..., :count].tril(-1) + _eye(reflectors, rows, count)
    v = torch.where(used[..., None, :], v, 0.0)
    triangle = (v.mT @ v).triu(1) + torch.diag_embed(torch.where(used, 1 / factors, 1.0))
    first = v[..., :columns, :].mT
    return _eye(v, rows, columns) - v @ _solve_triangular(triangle, first, upper=True)


@instead_of("ormqr.default")
def _ormqr(
    x: Tensor, factors: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    q = _orthogonal(x, factors, x.shape[-2])
    q = q.mT if transpose else q
    return q @ other if left else other @ q


@instead_of("linalg_qr.default")
def _qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    reflectors, factors = _geqrf(x)
    count = x.shape[-2] if mode == "complete" else min(x.shape[-2:])
    q = x.new_empty((0,)) if mode == "r" else _orthogonal(reflectors, factors, count)
    return q, reflectors[..., :count, :].triu()


# --- rotations ------------------------------------------------------------------------------------


def _rotated(x: Tensor, *, falling: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of ``x @ v``, their lengths in order, and v."""
    factors, rows = _factor(x, "rotate"), x.shape[-2]
    lengths = torch.linalg.vector_norm(factors[..., :rows, :], dim=-2)
    lengths, order = lengths.sort(dim=-1, descending=falling)
    factors = factors.gather(-1, order[..., None, :].expand(factors.shape))
    return factors[..., :rows, :], lengths, factors[..., rows:, :]


@instead_of("_linalg_eigh.default")
def _eigh(x: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:  # noqa: N803
    half = x.mT if UPLO.upper() == "U" else x
    whole = half.tril() + half.tril(-1).mT
    if x.numel() == 0:
        return x.new_empty(x.shape[:-1]), whole
    shift = whole.abs().sum(-1).amax(-1, keepdim=True)
    moved = whole + torch.diag_embed(shift.expand(x.shape[:-1]))
    _, lengths, vectors = _rotated(moved, falling=False)
    return lengths - shift, vectors if compute_v else x.new_empty((0,))


@instead_of("_linalg_svd.default")
def _svd(x: Tensor, full: bool = False, compute_uv: bool = True, **_: Any) -> tuple[Tensor, ...]:
    rows, columns = x.shape[-2:]
    if rows < columns:
        u, s, vh = _svd(x.mT, full, compute_uv)
        return vh.mT if compute_uv else vh, s, u.mT if compute_uv else u
    if x.numel() == 0:
        u = _eye(x, rows, rows if full else columns)
        s, v = x.new_zeros((*x.shape[:-2], columns)), _eye(x, columns)
        u, v = (m.expand(*x.shape[:-2], *m.shape).clone() for m in (u, v))
        return (u, s, v) if compute_uv else (x.new_empty((0,)), s, x.new_empty((0,)))
    scaled, s, v = _rotated(x, falling=True)
    if not compute_uv:
        return x.new_empty((0,)), s, x.new_empty((0,))
    u = scaled / torch.where(s > 0, s, 1.0)[..., None, :]
    if full and rows > columns:
        u = torch.cat([u, _qr(u, "complete")[0][..., columns:]], -1)
    return u, s, v.mT


@instead_of("linalg_pinv.atol_rtol_tensor")
def _pinv(x: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    if hermitian:  # torch reads no element above the diagonal
        x = x.tril() + x.tril(-1).mT
    u, s, vh = _svd(x)
    if s.shape[-1] == 0:
        return x.new_zeros(x.mT.shape)
    least = max(x.shape[-2:]) * torch.finfo(x.dtype).eps if atol is None else 0.0
    lowest = s[..., :1] * (least if rtol is None else rtol[..., None])
    lowest = lowest if atol is None else torch.maximum(lowest, atol[..., None].to(x.dtype))
    return (vh.mT * torch.where(s > lowest, 1 / s, 0.0)[..., None, :]) @ u.mT


# --- powers ---------------------------------------------------------------------------------------


@instead_of("linalg_matrix_exp.default")
def _matrix_exp(x: Tensor) -> Tensor:
    """A series for the matrix over a power of two, whose result is squared up to 16 times."""
    if x.numel() == 0:
        return x.clone()
    norm = x.abs().sum(-2).amax(-1)[..., None, None]
    halvings = norm.clamp(min=1).log2().ceil()
    x = x * torch.exp2(-halvings)
    total = term = _eye(x, x.shape[-1]).expand(x.shape)
    for number in range(1, 14):
        term = term @ x / number
        total = total + term
    for number in range(16):
        total = torch.where(halvings > number, total @ total, total)
    return torch.where(halvings > 16, torch.nan, total)
