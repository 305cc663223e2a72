"""The cost model of a processor without measurements: peak, bandwidth and start of a kernel.

    nanoseconds = start + max(cycles of the template's model / clock, bytes / bandwidth)

It orders kernels well but does not know the absolute speed, so its intervals are wide and its
predictions are marked as analytic. Learned models correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tvm_stretch.cost.features import Features, RunFeatures, TransferFeatures
from tvm_stretch.cost.prediction import Prediction
from tvm_stretch.errors import CostModelError
from tvm_stretch.targets.cpu import CORE
from tvm_stretch.targets.processor import Speed

_DOUBT = 2.5  # covers budget to desktop cores, and effects outside of the model


class AnalyticModel:
    """See the module docstring."""

    def __init__(self, speed: Speed = CORE) -> None:
        self.speed = speed

    def nanoseconds(self, kernel: Features) -> float:
        """The latency of one kernel."""
        speed = self.speed
        if isinstance(kernel, RunFeatures):
            return 0.0  # the overhead of a kernel is included in its start
        if isinstance(kernel, TransferFeatures):
            return speed.handover_ns + kernel.in_bytes / speed.bytes_per_ns
        compute = (kernel.model_cycles + kernel.epilogue_flops / 8) / speed.cycles_per_ns
        memory = (kernel.in_bytes + kernel.out_bytes) / speed.bytes_per_ns
        return speed.start_ns + max(compute, memory)

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel."""
        found = []
        for kernel in kernels:
            ns = self.nanoseconds(kernel)
            low, high = round(ns / _DOUBT), round(ns * _DOUBT)
            found.append(Prediction(round(ns), low, high, "analytic", ("nothing measured",)))
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return asdict(self.speed)

    @staticmethod
    def from_json(data: dict[str, Any]) -> AnalyticModel:
        """Read what `to_json` wrote."""
        try:
            return AnalyticModel(Speed(**{key: float(value) for key, value in data.items()}))
        except (TypeError, ValueError, AttributeError) as error:
            raise CostModelError(
                f"expected the numbers of Speed for analytic, got {data!r} ({error}); train again"
            ) from error
