"""Kernels access no foreign memory and do not fault, whatever values their tensors have.

    y[i] = x[t[i]]           ->   y[i] = x[min(max(t[i], 0), 4)]
    y[i] = a[i] // d[i]      ->   y[i] = a[i] // select(d[i] == 0, 1, d[i])

A network as data (`run/artifact.py`) brings constants and says which tensors kernels get.
Nobody has checked them, so each kernel keeps its own places within their tensors, wherever a place
depends on a value. An index that is in its range by itself, such as that of a table of 256 or
one that the same kernel clamps (`passes/guard_operators.py`), stays as it is.

Kernels that compute rectangles are left alone, because the executor writes their rectangles.
Networks with such kernels cannot be data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.network.rewriting import rewrite

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def with_safe_places(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """See the module docstring; the function itself if nothing has to change."""
    if RECTANGLE in (func.attrs or {}) or not _has_integers(func):
        return func
    values = _Values(func)
    rules = [(TensorLoad, values.safe_load), (tirx.BufferStore, values.safe_store)]
    body = rewrite(func.body, *rules, (_DIVISIONS, values.safe_division))
    return func.with_body(body) if values.changed else func


def _has_integers(func: tirx.PrimFunc) -> bool:
    """Whether a function reads integers or makes them of other values: most kernels do not."""
    found: set[str] = set()
    rules = [
        (TensorLoad, lambda load: found.add(str(load.source.dtype))),
        (tirx.Cast, lambda cast: found.add(str(cast.ty.dtype))),
    ]
    tvm_ffi.structural_walk(func.body, rules)
    return any("int" in dtype for dtype in found)


class _Values:
    """The variables of one function whose values come from tensors, and the ranges of others."""

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.changed = False
        self._analyzer = Analyzer()
        self._computed: set[Var] = set()
        self._ranges: dict[Var, Range] = {}
        rules: list[tuple[Any, Any]] = [
            (tirx.For, lambda loop: self._bind(loop.loop_var, loop.min, loop.extent)),
            (s_tir.SBlockRealize, self._enter),
            ((tirx.Let, tirx.Bind), lambda let: self._copy(let.var, let.value)),
        ]
        tvm_ffi.structural_walk(func.body, rules, order="pre")
        for var, known in self._ranges.items():
            self._analyzer.bind(var, known)

    def safe_load(self, load: TensorLoad) -> TensorLoad:
        """The load at indices that are in range."""
        indices = self._inside(load.source, load.indices)
        return load if indices is None else tirx.BufferLoad(load.source, indices)

    def safe_store(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """The store at indices that are in range."""
        indices = self._inside(store.buffer, store.indices)
        return store if indices is None else tirx.BufferStore(store.buffer, store.value, indices)

    def safe_division(self, division: Any) -> Any:
        """The division, which processors do not survive by zero, nor of the least number by -1."""
        dtype, divisor = str(division.ty.dtype), division.b
        if "int" not in dtype or not self._is_computed(divisor) or self._bounds(divisor)[0] > 0:
            return division
        self.changed = True
        bad = divisor == tirx.const(0, dtype)
        if not dtype.startswith("u"):  # as in guard_operators.py, for TVM's simplifier
            rest = division.a ^ tirx.const(np.iinfo(dtype.split("x")[0]).min, dtype)
            bad |= tirx.all(divisor == tirx.const(-1, dtype), rest == tirx.const(0, dtype))
        return type(division)(division.a, tirx.Select(bad, tirx.const(1, dtype), divisor))

    def _inside(self, buffer: tirx.Buffer, indices: Sequence[Expr]) -> list[Expr] | None:
        """Indices that are in range; None if the given ones are."""
        safe = [*map(self._clamped, indices, buffer.shape)]
        return None if all(map(lambda a, b: a.same_as(b), safe, indices)) else safe

    def _clamped(self, index: Expr, extent: Expr) -> Expr:
        if not self._is_computed(index):
            return index
        if isinstance(index, tirx.Ramp):
            reach = index.stride * (index.lanes - 1)
            base = self._clamped(index.base, extent - reach)
            return index if base.same_as(index.base) else tirx.Ramp(base, index.stride, index.lanes)
        low, high = self._bounds(index)
        if low >= 0 and high < self._bounds(extent)[0]:
            return index
        self.changed = True
        dtype = str(index.ty.dtype)
        last = tirx.const(0, dtype) + extent - 1
        return tirx.min(tirx.max(index, tirx.const(0, dtype)), last)

    def _bounds(self, expr: Expr) -> tuple[int, int]:
        bounds = self._analyzer.const_int_bound(expr)
        return bounds.min_value, bounds.max_value

    def _is_computed(self, expr: Any) -> bool:
        """Whether an expression depends on the values of a tensor."""
        if isinstance(expr, tirx.IntImm):
            return False
        found: list[bool] = []
        rules: list[tuple[Any, Any]] = [(TensorLoad, lambda _: found.append(True))]
        if self._computed:
            rules.append((Var, lambda var: found.append(var in self._computed)))
        tvm_ffi.structural_walk(expr, rules)
        return any(found)

    def _copy(self, var: Var, value: Expr) -> None:
        if self._is_computed(value):
            self._computed.add(var)

    def _bind(self, var: Var, low: Expr, extent: Expr) -> None:
        if self._is_computed(low) or self._is_computed(extent):
            self._computed.add(var)
        else:
            self._ranges.setdefault(var, Range.from_min_extent(low, extent))

    def _enter(self, block: s_tir.SBlockRealize) -> None:
        for axis, value in zip(block.block.iter_vars, block.iter_values, strict=True):
            self._copy(axis.var, value)
            self._bind(axis.var, axis.dom.min, axis.dom.extent)
