"""What the templates for GPUs have in common that `ts.tune.measure` tunes.

    layer = config.bare()                       # as networks ask for it
    gpu_candidates(layer, gpu, 8)               # configurations to try, of all templates
    config.is_possible(gpu)                     # whether a file of measurements may hold it

A template that is tuned derives from `TunedTemplate`; no other file lists it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.cycles import Step
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, every_template

from .machine import GpuMachine
from .tiles import Sizes, row_cycles

Layer = ConvConfig | WindowConfig
"""A layer as networks ask for it, as the cores' template has it."""

MANY = 400
"""More configurations than are ever tried."""


class TunedTemplate(Template):
    """A template whose configurations are measured."""

    machines: ClassVar[tuple[str, ...]] = ("gpu",)
    slack: ClassVar[float] = 0.0
    """How far numbers of right answers may lie from whole ones."""

    @abstractmethod
    def bare(self) -> Layer:
        """The layer that the configuration computes."""

    @classmethod
    def variants(cls, layer: Layer, gpu: GpuMachine, count: int) -> Sequence[Any]:
        """Configurations of a bare layer to try, the best by the model first, if it fits.

        Of a template beside others, at most a quarter of ``count`` for each of its kinds.
        """
        return ()

    def is_possible(self, gpu: GpuMachine) -> bool:
        """Whether the model could have proposed the configuration for such a GPU."""
        layer = self.bare()
        usual = gpu_candidates(layer, gpu, 4 * MANY)
        return self in (*usual, *gpu_candidates(layer, gpu.barest, 1))


def gpu_candidates(layer: Layer, gpu: GpuMachine, count: int) -> tuple[Any, ...]:
    """Up to ``count`` configurations of a bare layer to try; the first is the model's best.

    The template with most of them gives way to others.
    """
    kinds = (kind for kind in every_template().values() if issubclass(kind, TunedTemplate))
    by_kind = [list(kind.variants(layer, gpu, count)) for kind in kinds]
    while sum(map(len, by_kind)) > count:
        max(by_kind, key=len).pop()
    return tuple(config for some in by_kind for config in some)


def in_images(config: Any, gpu: GpuMachine) -> list[Any]:
    """The same configuration with more and fewer operands in images, where there are images."""
    counts = reversed(image_counts(gpu))
    seen = {replace(config, images=n).image_operands: n for n in counts}
    own = config.image_operands
    return [replace(config, images=n) for read, n in seen.items() if read != own]


def image_counts(gpu: GpuMachine) -> tuple[int, ...]:
    """How many operands may be images."""
    return (0, 1, 2) if gpu.has_images else (0,)


@dataclass(frozen=True, kw_only=True)
class GpuConvConfig(TunedTemplate, ConvConfig):
    """A convolution on a GPU; cores that take over from the GPU compute it in loops.

    `group_conv_candidates` compares configurations of all these templates, so only
    `GroupConvConfig` offers some, which may be of another template.
    """

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        return []

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        if machine.gpu is None:
            return super().cycles(machine, step)
        return row_cycles(Sizes.read(self)) * machine.gpu.cores

    def in_rows(self) -> ConvConfig | None:
        return None

    def on(self, machine: VectorMachine) -> Template | None:
        return self if machine.gpu is not None else taken(ConvConfig, self, pixels=1)

    def bare(self) -> ConvConfig:
        return taken(ConvConfig, self, oc_blocks=1, pixels=1)
