"""Means over the pixels of feature maps on a GPU: a work-group for each quad of channels.

for each work-group:                               # one image, four channels
  total = sum of every 64th pixel                  # each item reads whole quads
  total = sum of all items' totals                 # halved again and again in local memory
  out = epilogue(total / pixels)                   # by the first item
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import MeanShape
from tvm_stretch.targets.kernels.loops import block, const, load, loop, store, unravelled, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .groups import QUAD, finish_quad, join_items, launch, load_quad, quads, splat, when, zeros


@dataclass(frozen=True)
class GroupMeanConfig(Template):
    """A mean over rows and columns, and the work-items that share the pixels of a quad."""

    template: ClassVar[str] = "group_mean"
    layers: ClassVar[tuple[type, ...]] = (MeanShape,)
    machines: ClassVar[tuple[str, ...]] = ("gpu",)

    shape: tuple[int, ...]
    items: int

    @property
    def operands(self) -> int:
        return 1

    @property
    def sampled(self) -> object:
        return None

    @property
    def kernel_name(self) -> str:
        return "mean"

    @property
    def out_shape(self) -> tuple[int, ...]:
        images, blocks, _, _, lanes = self.shape
        return images, blocks, 1, 1, lanes

    @property
    def pixels(self) -> int:
        """Numbers of each sum."""
        return self.shape[2] * self.shape[3]

    @classmethod
    def configure(cls, layer: MeanShape, machine: VectorMachine, _block: int) -> Iterable[Template]:
        """The configuration, if groups can share memory."""
        gpu, shape = machine.gpu, layer.shape
        assert gpu is not None
        items = gpu.sum_items(shape[2] * shape[3]) if 0 not in shape else 0
        return [cls(shape, items)] if items and shape[-1] % QUAD == 0 else []

    def cycles(self, machine: VectorMachine) -> float:
        return prod(self.shape) / machine.lanes

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        (x,) = operands
        rows, columns = self.shape[2:4]
        y, z = te.reduce_axis((0, rows), "y"), te.reduce_axis((0, columns), "x")
        total = te.compute(
            self.out_shape,
            lambda n, b, _row, _column, lane: te.sum(x[n, b, y, z, lane], axis=[y, z]),
            name="total",
        )
        return te.compute(
            self.out_shape,
            lambda *at: total[at] / tirx.const(float(self.pixels), x.dtype),
            name="mean",
            attrs=self.annotation,
        )

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        del machine
        return write_group_mean(self, fused)


def write_group_mean(cfg: GroupMeanConfig, fused: FusedKernel) -> tirx.Stmt:
    """The kernel of a mean."""
    x, (images, blocks, _, columns, lanes) = fused.operands[0], cfg.shape
    dtype = str(x.dtype)
    total = quads("total", 1, dtype=dtype)
    shared = quads("shared", cfg.items, dtype=dtype, scope="shared")

    def body(group: Expr, item: Expr) -> tirx.Stmt:
        n, b, quad = unravelled(group, (images, blocks, lanes // QUAD))
        zero = const(0)

        def add(pixel: Expr) -> tirx.Stmt:
            value = load_quad(x, n, b, pixel // columns, pixel % columns, quad * QUAD)
            return store(total, load(total, 0) + value, 0)

        turns, rest = divmod(cfg.pixels, cfg.items)
        added = [loop(turns, lambda turn: add(item + turn * cfg.items))] if turns else []
        if rest:
            added.append(when(item < rest, add(item + turns * cfg.items)))
        mean = load(total, 0) / splat(tirx.const(float(cfg.pixels), dtype))
        place = (n, b, zero, zero, quad * QUAD)
        return within(
            [total, shared],
            store(total, zeros(dtype), 0),
            *added,
            *join_items(total, shared, item, lambda a, b: a + b),
            when(item < 1, block(*finish_quad(fused.epilogue, place, mean, "result"))),
        )

    return launch(images * blocks * (lanes // QUAD), cfg.items, body)
