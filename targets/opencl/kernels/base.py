"""What the templates of convolutions for GPUs have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.cycles import Step
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

from .tiles import Sizes, row_cycles


@dataclass(frozen=True, kw_only=True)
class GpuConvConfig(ConvConfig):
    """A convolution on a GPU; cores that take over from the GPU compute it in loops.

    `group_conv_candidates` compares configurations of all these templates, so only
    `GroupConvConfig` offers some, which may be of another template.
    """

    machines: ClassVar[tuple[str, ...]] = ("gpu",)

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        return []

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        if machine.gpu is None:
            return super().cycles(machine, step)
        return row_cycles(Sizes.of(self)) * machine.gpu.cores

    def in_rows(self) -> ConvConfig | None:
        return None

    def on(self, machine: VectorMachine) -> Template | None:
        return self if machine.gpu is not None else taken(ConvConfig, self, pixels=1)
