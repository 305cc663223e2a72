"""The cost families of GPUs' convolutions: phases of the model in `tiles.py`.

The family of CPUs describes register tiles; a GPU's kernel has work-groups and slabs instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tvm_stretch.targets.kernels.conv_features import ConvFeatures, DenseFeatures, WinogradFeatures
from tvm_stretch.targets.kernels.features import Features, Phases, Work

_GIGAHERTZ, _BYTES = 1.7, 3000.0
"""Of an H100: its clock, and bytes that the second-level cache gives in a cycle; only first weights
of phases, which are fitted."""

_FAR_BYTES = 2500.0  # that memory gives in a nanosecond; a first weight, too


def far_weights(kernel: Features) -> Phases:
    """The time of weights that come from memory: a large GPU's cache keeps those of small networks.

    An H100 reads the weights of a network of 30 MB at 5 TB/s, and those of VGG-16 at 3.
    """
    return {"far_weights": kernel.far_weight_bytes / _FAR_BYTES}


@dataclass(frozen=True)
class GroupConvFeatures(ConvFeatures):
    """A convolution or dense layer of work-groups; `Cycles` explains the last fields."""

    family: ClassVar[str] = "group_conv"
    version: ClassVar[int] = 6  # since 6, bytes of a round count once

    work_groups: int
    group_items: int
    busy_cycles: float
    waiting_cycles: float
    moved_bytes: float
    exchange_cycles: float
    split_numbers: float
    written_bytes: float

    def own_phases(self) -> Phases:
        """What the model says, in nanoseconds, and a second launch."""
        most = max(math.hypot(self.busy_cycles, self.waiting_cycles), self.moved_bytes / _BYTES)
        return {
            "slabs": most / _GIGAHERTZ,
            "busy": self.busy_cycles / _GIGAHERTZ,
            "waiting": self.waiting_cycles / _GIGAHERTZ,
            "moved": self.moved_bytes / (_BYTES * _GIGAHERTZ),
            "exchange": self.exchange_cycles / _GIGAHERTZ,
            "second": 1000.0 if self.split_numbers else 0.0,
            "splits": self.split_numbers / 700.0,
            "written": self.written_bytes / (_BYTES * _GIGAHERTZ),
            **far_weights(self),
        }

    @property
    def launch_count(self) -> int:
        """A second launch adds up the parts of long sums."""
        return 2 if self.split_numbers else 1

    def hints(self) -> list[float]:
        """Whether the kernel computes or waits."""
        either = self.busy_cycles + self.waiting_cycles
        return [*Features.hints(self), self.busy_cycles / max(1.0, either)]


@dataclass(frozen=True)
class GroupWinogradFeatures(WinogradFeatures):
    """A Winograd convolution of three launches; `Cycles` explains the fields of the products."""

    family: ClassVar[str] = "group_winograd"
    version: ClassVar[int] = WinogradFeatures.version + 2  # bytes of a round count once

    busy_cycles: float = 0.0
    waiting_cycles: float = 0.0
    moved_bytes: float = 0.0
    exchange_cycles: float = 0.0
    plane_numbers: float = 0.0
    sum_numbers: float = 0.0

    @property
    def launch_count(self) -> int:
        """Input transform, products, and output transform."""
        return 3

    def own_phases(self) -> Phases:
        """What the model says of the products, in nanoseconds, and the transforms."""
        most = max(math.hypot(self.busy_cycles, self.waiting_cycles), self.moved_bytes / _BYTES)
        return {
            "slabs": most / _GIGAHERTZ,
            "busy": self.busy_cycles / _GIGAHERTZ,
            "exchange": self.exchange_cycles / _GIGAHERTZ,
            "launches": 2000.0,
            "planes": self.plane_numbers / 700.0,
            "sums": self.sum_numbers / 700.0,
            **far_weights(self),
        }


@dataclass(frozen=True)
class GroupRowFeatures(DenseFeatures):
    """A product of one row with a matrix, whose weights are read once."""

    family: ClassVar[str] = "group_row"
    version: ClassVar[int] = DenseFeatures.version + 1  # since then, bytes of a round count once

    work_groups: int
    group_items: int

    def own_phases(self) -> Phases:
        """Weights, by all units and by the items of one group, and sums of lines."""
        each = self.weight_bytes / max(1, self.work_groups)
        return {
            "moved": self.weight_bytes / (_BYTES * _GIGAHERTZ),
            "steps": each / max(1, self.group_items) / _GIGAHERTZ,
            "group": each / 64 / _GIGAHERTZ,
            "lines": self.group_items / _GIGAHERTZ,
            **far_weights(self),
        }

    def hints(self) -> list[float]:
        """Work-groups that share the units."""
        return [*Features.hints(self), math.log2(1 + self.work_groups)]


@dataclass(frozen=True)
class GroupPairFeatures(Features):
    """A depthwise and a 1x1 convolution in one kernel; `PairCycles` explains the cycles."""

    family: ClassVar[str] = "group_pair"
    version: ClassVar[int] = 2  # since 2, bytes of a round count once

    depthwise_flops: float
    weight_numbers: int
    busy_cycles: float
    waiting_cycles: float
    moved_bytes: float

    def own_phases(self) -> Phases:
        """What the model says, in nanoseconds."""
        either = math.hypot(self.busy_cycles, self.waiting_cycles)
        return {
            "items": either / _GIGAHERTZ,
            "busy": self.busy_cycles / _GIGAHERTZ,
            "waiting": self.waiting_cycles / _GIGAHERTZ,
            "moved": self.moved_bytes / (_BYTES * _GIGAHERTZ),
        }

    def device_work(self) -> Work:
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work("pointwise", self.flops / 2, values, self.weight_numbers)
