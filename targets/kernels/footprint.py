"""Analyse the memory accesses of a PrimFunc's block: how far each moves along each axis.

out[n, c, x] = data[n, c, 2 * x] * scale[c]
->  store (C*X, X, 1), loads (2*C*X, 2*X, 2) and (0, 1, 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir.schedule import ScheduleError
from tvm.sym import detect_linear_equation

from tvm_stretch.network.rewriting import rewrite


@dataclass(frozen=True)
class Access:
    """``strides[i]``: elements by which a step of axis ``i`` moves; None if that varies."""

    buffer: tirx.Buffer
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class Footprint:
    """Every access of a block; ``pinned`` axes are used for more than constant strides."""

    store: Access
    loads: tuple[Access, ...]
    pinned: frozenset[int]

    @property
    def accesses(self) -> Iterator[Access]:
        """The store, then the loads."""
        yield self.store
        yield from self.loads


def footprint(block: Any) -> Footprint:
    """Analyse a block of one store; raises ScheduleError for others."""
    body = block.body
    if not isinstance(body, tirx.BufferStore):
        raise ScheduleError("not a block of one store")
    axes = [axis.var for axis in block.iter_vars]
    pinned: set[int] = set()

    def access(buffer: tirx.Buffer, indices: Sequence[Expr]) -> Access:
        flat: Expr = tirx.const(0, axes[0].ty)
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * extent + index
        strides = tuple(_stride(flat, axis) for axis in axes)
        pinned.update(i for i, stride in enumerate(strides) if stride is None)
        return Access(buffer, strides)

    loads: list[Access] = []
    visit = (TensorLoad, lambda node: loads.append(access(node.source, node.indices)))
    tvm_ffi.structural_walk(body.value, visit, order="post")
    zero = (TensorLoad, lambda node: tirx.const(0, node.ty))
    rest = rewrite(body.value, zero)
    seen: list[tirx.Var] = []
    tvm_ffi.structural_walk(rest, (tirx.Var, seen.append), order="post")
    pinned.update(i for i, a in enumerate(axes) if any(a.same_as(v) for v in seen))
    return Footprint(access(body.buffer, body.indices), tuple(loads), frozenset(pinned))


def _stride(place: Expr, axis: tirx.Var) -> int | None:
    """How far a step of ``axis`` moves; None if that is not constant."""
    found = detect_linear_equation(place, [axis])
    return int(found[0]) if found and isinstance(found[0], tirx.IntImm) else None
