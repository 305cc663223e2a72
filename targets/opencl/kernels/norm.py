"""Rows with mean 0 and variance 1 on a GPU, as layer normalisation needs them, in one kernel.

for each work-group:                               # one row
  values[..] = x                                   # each item reads every 64th number
  values -= mean of all items' values
  out = epilogue(values / sqrt(mean of their squares + epsilon))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.norm import NormTemplate
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import NormShape
from tvm_stretch.targets.kernels.loops import f32, load, scratch, store, unravelled, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .groups import join_items, launch, shares


@dataclass(frozen=True)
class GroupNormConfig(NormTemplate):
    """A normalisation, and the work-items that share a row."""

    template: ClassVar[str] = "group_norm"
    machines: ClassVar[tuple[str, ...]] = ("gpu",)

    items: int

    @classmethod
    def configure(cls, layer: NormShape, machine: VectorMachine, block: int) -> Iterable[Template]:
        """The configuration, if a group can hold a row."""
        del block
        assert machine.gpu is not None
        items = machine.gpu.row_items(layer.shape[-1]) if 0 not in layer.shape else 0
        return [cls(layer.shape, layer.epsilon, layer.is_centred, items)] if items else []

    def cycles(self, machine: VectorMachine) -> float:
        return prod(self.shape) * 8.0 / machine.lanes

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        del machine
        return write_group_norm(self, fused)


def write_group_norm(cfg: GroupNormConfig, fused: FusedKernel) -> tirx.Stmt:
    """The kernel of a normalisation."""
    items, extent, x = cfg.items, cfg.shape[-1], fused.operands[0]
    values = scratch("values", -(-extent // items), scope="local")
    joined = scratch("joined", 1, scope="local")
    shared = scratch("shared", items, scope="shared")

    def body(row: Expr, item: Expr) -> tirx.Stmt:
        at = unravelled(row, cfg.shape[:-1])

        def mean_of(value: Callable[[Expr], Expr]) -> list[tirx.Stmt]:
            """All items get the mean of a function of the row's numbers."""

            def add(i: int, _: Expr) -> tirx.Stmt:
                return store(joined, load(joined, 0) + value(load(values, i)), 0)

            return [
                store(joined, f32(0.0), 0),
                *shares(extent, items, item, add),
                *join_items(joined, shared, item, lambda a, b: a + b),
                store(joined, load(joined, 0) / f32(float(extent)), 0),
            ]

        def read(i: int, place: Expr) -> tirx.Stmt:
            return store(values, load(x, *at, place), i)

        def shift(i: int, _: Expr) -> tirx.Stmt:
            return store(values, load(values, i) - load(joined, 0), i)

        def finish(i: int, place: Expr) -> tirx.Stmt:
            return fused.epilogue.store((*at, place), load(values, i) / load(joined, 0))

        return within(
            [values, joined, shared],
            *shares(extent, items, item, read),
            *(
                (*mean_of(lambda value: value), *shares(extent, items, item, shift))
                * cfg.is_centred
            ),
            *mean_of(lambda value: value * value),
            store(joined, tirx.sqrt(load(joined, 0) + f32(cfg.epsilon)), 0),
            *shares(extent, items, item, finish),
        )

    return launch(prod(cfg.shape[:-1]), items, body)
