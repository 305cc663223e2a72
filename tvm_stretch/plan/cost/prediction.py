"""What every cost model answers, and the model of a processor without measurements.

    nanoseconds = start + max(cycles of the template's model / clock, bytes / bandwidth)

It orders kernels well but does not know the absolute speed, so its intervals are wide and its
predictions are marked as analytic. Learned models correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tvm_stretch.plan.cost.generic_features import RunFeatures, TransferFeatures
from tvm_stretch.targets.cpu.cpu import CORE
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Speed

_DOUBT = 2.5  # covers budget to desktop cores, and effects outside of the model


@dataclass(frozen=True)
class Prediction:
    """A latency and how far to trust it."""

    nanoseconds: int  # the expected latency
    low: int  # with 90 % confidence the latency lies between this and ``high``
    high: int  # see ``low``
    source: Literal["measured", "analytic"]  # whether it is based on measurements
    # why measurements say little of this kernel; empty if they apply. A reason to measure it.
    out_of_range: tuple[str, ...] = ()


class CostModel(Protocol):
    """Predicts latencies of kernels on one processor."""

    @property
    def start_ns(self) -> float:
        """The latency of a kernel without work."""
        return 0.0

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel."""
        ...

    def added_ns(self, kernel: Features, alone_ns: float) -> float:
        """How much longer a run takes with a kernel that takes ``alone_ns`` alone."""
        return alone_ns

    def crowded(self, kernels: Sequence[Features]) -> float:
        """How much longer kernels take while others use the same memory, as far as it is known."""
        return 1.0


def analytic(latencies: Sequence[float], doubt: float, *reasons: str) -> list[Prediction]:
    """Predictions that are right up to a factor."""
    return [
        Prediction(round(ns), round(ns / doubt), round(ns * doubt), "analytic", reasons)
        for ns in latencies
    ]


@dataclass(frozen=True)
class AnalyticModel(CostModel):
    """See the module docstring."""

    speed: Speed = CORE

    @property
    def start_ns(self) -> float:
        """The latency of a kernel without work."""
        return self.speed.start_ns

    def nanoseconds(self, kernel: Features) -> float:
        """The latency of one kernel."""
        speed = self.speed
        if isinstance(kernel, RunFeatures):
            return 0.0  # the overhead of a kernel is included in its start
        if isinstance(kernel, TransferFeatures):
            return speed.handover_ns + kernel.in_bytes / speed.bytes_per_ns
        compute = (kernel.model_cycles + kernel.epilogue_flops / 8) / speed.cycles_per_ns
        memory = (kernel.read_bytes + kernel.out_bytes) / speed.bytes_per_ns
        return speed.start_ns + max(compute, memory)

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel."""
        return analytic(list(map(self.nanoseconds, kernels)), _DOUBT, "nothing measured")
