"""Softmax on a GPU: a work-group for each row, whose items hold the row in registers.

for each work-group:                               # one row
  values[..] = x                                   # each item reads every 64th number
  top = max of all items' values                   # halved again and again in local memory
  values = exp(values - top);  total = sum of all items' values
  out = epilogue(values * (1 / total))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.softmax import SoftmaxConfig
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import SoftmaxShape
from tvm_stretch.targets.kernels.loops import block, f32, load, scratch, store, unravelled, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .groups import join_items, launch, shares


@dataclass(frozen=True)
class GroupSoftmaxConfig(SoftmaxConfig):
    """A softmax along the last axis, and the work-items that share a row."""

    template: ClassVar[str] = "group_softmax"
    machines: ClassVar[tuple[str, ...]] = ("gpu",)

    items: int = 64

    @classmethod
    def configure(
        cls, layer: SoftmaxShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        """The configuration, if a group can hold a row."""
        shape, gpu = layer.shape, machine.gpu
        assert gpu is not None
        is_last = layer.axis % len(shape) == len(shape) - 1
        items = gpu.row_items(shape[-1]) if is_last and 0 not in shape else 0
        return [cls(shape, machine.lanes, layer.denormals, items=items)] if items else []

    def on(self, machine: VectorMachine) -> Template | None:
        """The template itself; cores take over by their own."""
        if machine.gpu is not None:
            return self
        return SoftmaxConfig(self.shape, min(machine.lanes, self.extent), self.denormals)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_group_softmax(self, fused)


def write_group_softmax(cfg: GroupSoftmaxConfig, fused: FusedKernel) -> tirx.Stmt:
    """The kernel of a softmax along the last axis."""
    items, extent, x = cfg.items, cfg.extent, fused.operands[0]
    count = -(-extent // items)
    values = scratch("values", count, scope="local")
    joined, top = (scratch(name, 1, scope="local") for name in ("joined", "top"))
    shared = scratch("shared", items, scope="shared")

    def body(row: Expr, item: Expr) -> tirx.Stmt:
        at = unravelled(row, cfg.outer)

        def shared_out(one: Callable[[int, Expr], tirx.Stmt]) -> list[tirx.Stmt]:
            return shares(extent, items, item, one)

        def read(i: int, place: Expr) -> tirx.Stmt:
            value = load(values, i)
            return block(
                store(values, load(x, *at, place), i),
                store(joined, tirx.max(load(joined, 0), value), 0),
            )

        def power(i: int, _: Expr) -> tirx.Stmt:
            return block(
                store(values, tirx.exp(load(values, i) - load(top, 0)), i),
                store(joined, load(joined, 0) + load(values, i), 0),
            )

        def finish(i: int, place: Expr) -> tirx.Stmt:
            return fused.epilogue.store((*at, place), load(values, i) * load(joined, 0))

        return within(
            [values, joined, top, shared],
            store(joined, load(x, *at, tirx.min(item, tirx.const(extent - 1, "int64"))), 0),
            *shared_out(read),
            *join_items(joined, shared, item, tirx.max),
            store(top, load(joined, 0), 0),
            store(joined, f32(0.0), 0),
            *shared_out(power),
            *join_items(joined, shared, item, lambda a, b: a + b),
            store(joined, f32(1.0) / load(joined, 0), 0),
            *shared_out(finish),
        )

    return launch(prod(cfg.outer), items, body)
