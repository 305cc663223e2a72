"""Operators of our own for torch's graphs, which decompositions call and kernels here compute.

    _fft_c2r(z, [1], 0, 8)   ->   torch.ops.tvm_stretch.dft(pairs, 8, True, True)

Torch only learns the shapes of their results: graphs hold them from the decomposition of a program
to its translation, and no file can name them.

One kernel decomposes all matrices of a batch, one by one:

    factor.lu(x)            rows m: L below the diagonal and U; then a row of LAPACK's pivots
    factor.cholesky(x)      L
    factor.forward(a, b)    the solution of L y = b, where L is the lower triangle of a
    factor.swap(p, b)       the rows of b after the interchanges of pivots p, which are one row
    factor.householder(x)   LAPACK's geqrf: R, the reflectors below it; then a row of their factors
    factor.rotate(x)        rows m: x V, whose columns are orthogonal; then V (Jacobi's rotations)

Each step needs the one before, so a GPU has a work-item for each matrix. The loops are those of
LAPACK without blocks: networks decompose matrices of a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from tvm import relax, tirx
from tvm.ir import Expr
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.steps import steps_call
from tvm_stretch.read.torch.importer import Call
from tvm_stretch.targets.kernels.experts import experts_call

_LIBRARY = torch.library.Library("tvm_stretch", "FRAGMENT")
OWN = torch.ops.tvm_stretch
WRITTEN: dict[Any, Callable[..., Any]] = {}
"""Functions of torch that compute an operator of torch in simpler ones."""


def instead_of(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for operators of torch: ``@instead_of("fmax.default")``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            operator, _, overload = name.partition(".")
            WRITTEN[getattr(getattr(torch.ops.aten, operator), overload)] = function
        return function

    return register


def as_tensor(x: torch.Tensor | float, kind: torch.dtype) -> torch.Tensor:
    """A number too; `torch.as_tensor` would make a constant of it, which a program has to list."""
    return x.to(kind) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=kind)


def _define(schema: str, shape: Any) -> None:
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], shape, "Meta")


def _dft_shape(x: torch.Tensor, length: int, inverse: bool, onesided: bool) -> torch.Tensor:
    count = length // 2 + 1 if onesided and not inverse else length
    return x.new_empty((*x.shape[:-2], count, 1 if onesided and inverse else 2))


_define("dft(Tensor x, int length, bool inverse, bool onesided) -> Tensor", _dft_shape)


def _factor_shape(x: torch.Tensor, kind: str) -> torch.Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-2] + MORE_ROWS[kind](x.shape[-1]), x.shape[-1]))


_define("factor(Tensor x, str kind) -> Tensor", _factor_shape)
_define("factor2(Tensor a, Tensor x, str kind) -> Tensor", lambda a, x, kind: x.new_empty(x.shape))


def _factor(call: Call) -> relax.Expr:
    """Batches become one axis."""
    *operands, kind = call.args
    emit, builder = call.emit, call.importer.block_builder
    shapes = [shape_of(x) for x in operands]
    flat = [
        emit(relax.op.reshape(x, [prod(shape[:-2]), *shape[-2:]]))
        for x, shape in zip(operands, shapes, strict=True)
    ]
    factors = emit(factor_call(builder, kind, *flat))
    return emit(relax.op.reshape(factors, [*shapes[-1][:-2], *shape_of(factors)[1:]]))


def _dft(call: Call) -> relax.Expr:
    """The axis before that of the parts, which are one of real numbers and two of complex ones."""
    x, length, inverse, onesided = call.args
    attributes = {"inverse": int(inverse), "onesided": int(onesided)}
    inputs = [x, np.asarray(length), np.asarray(-2)]
    return call.onnx("DFT", inputs, attributes)


def _same_bits(call: Call) -> relax.Expr:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(call.dtype))
    return call.onnx("BitCast", [call.x], {"to": kind})


def _experts(call: Call) -> relax.Expr:
    """Rows are sorted by expert; torch's own operator takes a summand that no network gives."""
    given: list[Any] = [*call.args, None]
    x, weights, ends, *others = given
    is_routed = ends is not None and (len(shape_of(x)), len(shape_of(weights))) == (2, 3)
    if not is_routed or any(other is not None for other in others):
        got = f"shapes {shape_of(x)} and {shape_of(weights)}"
        wanted = "rows and a matrix for each expert"
        raise call.refused(wanted, got, "write the products one by one")
    return call.emit(experts_call(call.importer.block_builder, x, weights, ends))


OWN_CONVERTERS = {
    "grouped_mm_fallback.default": _experts,
    "_grouped_mm.default": _experts,
    "dft.default": _dft,
    "factor.default": _factor,
    "factor2.default": _factor,
    "view.dtype": _same_bits,
}
"""By torch's name."""


_SWEEPS = 12
"""Jacobi's rotations converge quadratically: matrices of 100 columns took 8 sweeps in float32."""

MORE_ROWS: dict[str, Callable[[int], int]] = {
    **dict.fromkeys(("cholesky", "forward", "swap"), lambda _: 0),
    **dict.fromkeys(("lu", "householder"), lambda _: 1),
    "rotate": lambda columns: columns,
}
"""Rows that the result of a kind has more than its last operand, by its columns."""


def factor_call(bb: relax.BlockBuilder, kind: str, *operands: relax.Expr) -> relax.Call:
    """A kernel of the module docstring; operands have three axes, the first of them the batch."""
    shapes, dtype = [shape_of(x) for x in operands], str(operands[0].ty.dtype)
    batch, rows, columns = shapes[-1]
    shape = [batch, rows + MORE_ROWS[kind](columns), columns]
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        given = [
            T.arg(f"x{i}", tirx.decl_buffer(_long(*sizes), dtype, f"x{i}"))
            for i, sizes in enumerate(shapes)
        ]
        y = T.arg("y", tirx.decl_buffer(_long(*shape), dtype, "y"))
        kept = T.sblock_alloc_buffer(_long(4), dtype)
        place = T.sblock_alloc_buffer(_long(1), "int64")
        with T.serial(*_long(0, batch)) as matrix, T.sblock(kind):
            matrix = T.axis.spatial(*_long(batch), matrix)
            _WRITE[kind](_Matrices(given, y, kept, place, matrix, rows, columns))
    result = relax.TensorType(shape, dtype)
    return steps_call(bb, f"factor.{kind}", builder.get(), operands, result)


def _long(*values: Any) -> list[Expr]:
    return [tirx.const(value, "int64") for value in values]


def _range(first: Any, end: Any) -> Any:
    """A loop from ``first`` to the number before ``end``."""
    ends = [
        tirx.const(value, "int64") if isinstance(value, int) else value for value in (first, end)
    ]
    return T.serial(*ends)


@dataclass
class _Matrices:
    """One matrix of each operand and of the result, and statements about them."""

    given: Sequence[tirx.Buffer]
    y: tirx.Buffer
    kept: tirx.Buffer  # four numbers
    place: tirx.Buffer  # the place of the largest one
    matrix: Expr
    rows: int
    columns: int

    def x(self, row: Any, column: Any, operand: int = 0) -> Expr:
        """An element of an operand."""
        return self.given[operand][self.matrix, row, column]

    def __getitem__(self, place: tuple[Any, Any]) -> Expr:
        return self.y[self.matrix, place[0], place[1]]

    def __setitem__(self, place: tuple[Any, Any], value: Any) -> None:
        T.buffer_store(self.y, self.number(value), [self.matrix, *place])

    def number(self, value: Any) -> Expr:
        """A number of the matrices' type."""
        return tirx.const(value, str(self.y.dtype)) if isinstance(value, int | float) else value

    def keep(self, slot: int, value: Any) -> None:
        """Set one of the kept numbers."""
        T.buffer_store(self.kept, self.number(value), _long(slot))

    def add(self, slot: int, value: Expr) -> None:
        """Add to one of the kept numbers."""
        T.buffer_store(self.kept, self.kept[slot] + value, _long(slot))

    def copy(self) -> None:
        """The operand's elements."""
        with _range(0, self.rows) as i, _range(0, self.columns) as j:
            self[i, j] = self.x(i, j)


@contextmanager
def _when(condition: Expr) -> Any:
    with T.If(condition), T.Then():
        yield


def _lu(m: _Matrices) -> None:
    """Each column's largest number on or below the diagonal becomes the pivot."""
    m.copy()
    with _range(0, m.columns) as j:
        m[m.rows, j] = 0
    with _range(0, min(m.rows, m.columns)) as k:
        T.buffer_store(m.place, k, _long(0))
        best = m.place[0]
        with _range(k + 1, m.rows) as i, _when(tirx.abs(m[i, k]) > tirx.abs(m[best, k])):
            T.buffer_store(m.place, i, _long(0))
        m[m.rows, k] = (best + 1).astype(str(m.y.dtype))
        with _range(0, m.columns) as j:
            m.keep(0, m[k, j])
            m[k, j] = m[best, j]
            m[best, j] = m.kept[0]
        with _when(m[k, k] != m.number(0)), _range(k + 1, m.rows) as i:
            m[i, k] = m[i, k] / m[k, k]
            with _range(k + 1, m.columns) as j:
                m[i, j] = m[i, j] - m[i, k] * m[k, j]


def _cholesky(m: _Matrices) -> None:
    """Only the lower triangle is read."""
    with _range(0, m.columns) as j:
        with _range(0, j) as i:
            m[i, j] = 0
        with _range(j, m.rows) as i:
            m.keep(0, m.x(i, j))
            with _range(0, j) as k:
                m.add(0, -m[i, k] * m[j, k])
            with T.If(i == j):
                with T.Then():
                    m[i, j] = tirx.sqrt(m.kept[0])
                with T.Else():
                    m[i, j] = m.kept[0] / m[j, j]


def _forward(m: _Matrices) -> None:
    with _range(0, m.rows) as i, _range(0, m.columns) as j:
        m.keep(0, m.x(i, j, operand=1))
        with _range(0, i) as k:
            m.add(0, -m.x(i, k) * m[k, j])
        m[i, j] = m.kept[0] / m.x(i, i)


def _swap(m: _Matrices) -> None:
    with _range(0, m.rows) as i, _range(0, m.columns) as j:
        m[i, j] = m.x(i, j, operand=1)
    with _range(0, m.given[0].shape[2]) as k, _range(0, m.columns) as j:
        other = m.x(0, k).astype("int64") - 1
        m.keep(0, m[k, j])
        m[k, j] = m[other, j]
        m[other, j] = m.kept[0]


def _householder(m: _Matrices) -> None:
    """A reflector makes zeros below the diagonal; it has 1 on the diagonal, which is not stored."""
    m.copy()
    with _range(0, m.columns) as j:
        m[m.rows, j] = 0
    with _range(0, min(m.rows, m.columns)) as k:
        m.keep(0, 0)
        with _range(k + 1, m.rows) as i:
            m.add(0, m[i, k] * m[i, k])
        with _when(m.kept[0] != m.number(0)):
            m.keep(1, m[k, k])
            length = tirx.sqrt(m.kept[1] * m.kept[1] + m.kept[0])
            m[k, k] = tirx.Select(m.kept[1] < m.number(0), length, -length)
            m[m.rows, k] = (m[k, k] - m.kept[1]) / m[k, k]
            m.keep(1, m.kept[1] - m[k, k])
            with _range(k + 1, m.rows) as i:
                m[i, k] = m[i, k] / m.kept[1]
            with _range(k + 1, m.columns) as j:
                m.keep(2, m[k, j])
                with _range(k + 1, m.rows) as i:
                    m.add(2, m[i, k] * m[i, j])
                m.keep(2, m.kept[2] * m[m.rows, k])
                m[k, j] = m[k, j] - m.kept[2]
                with _range(k + 1, m.rows) as i:
                    m[i, j] = m[i, j] - m.kept[2] * m[i, k]


def _rotate(m: _Matrices) -> None:
    """Each pair of columns is rotated until it is orthogonal, several times over."""
    m.copy()
    with _range(0, m.columns) as i, _range(0, m.columns) as j:
        m[m.rows + i, j] = tirx.Select(i == j, m.number(1), m.number(0))
    small = m.number(float(np.finfo(str(m.y.dtype)).eps) / 4)
    with _range(0, _SWEEPS), _range(0, m.columns) as p, _range(p + 1, m.columns) as q:
        for slot in range(3):
            m.keep(slot, 0)
        with _range(0, m.rows) as i:
            for slot, (one, other) in enumerate(((p, p), (q, q), (p, q))):
                m.add(slot, m[i, one] * m[i, other])
        one, other, both = (m.kept[slot] for slot in range(3))
        with _when(tirx.abs(both) > small * tirx.sqrt(one * other)):
            m.keep(3, (other - one) / (both + both))
            root = tirx.abs(m.kept[3]) + tirx.sqrt(m.number(1) + m.kept[3] * m.kept[3])
            m.keep(3, tirx.Select(m.kept[3] < m.number(0), m.number(-1), m.number(1)) / root)
            m.keep(0, m.number(1) / tirx.sqrt(m.number(1) + m.kept[3] * m.kept[3]))
            m.keep(1, m.kept[0] * m.kept[3])
            with _range(0, m.rows + m.columns) as i:
                m.keep(2, m[i, p])
                m[i, p] = m.kept[0] * m.kept[2] - m.kept[1] * m[i, q]
                m[i, q] = m.kept[1] * m.kept[2] + m.kept[0] * m[i, q]


_WRITE: dict[str, Callable[[_Matrices], None]] = {
    "lu": _lu,
    "cholesky": _cholesky,
    "forward": _forward,
    "swap": _swap,
    "householder": _householder,
    "rotate": _rotate,
}
