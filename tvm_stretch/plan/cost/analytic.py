"""The cost model of a processor without measurements: peak, bandwidth and start of a kernel.

    nanoseconds = start + max(cycles of the template's model / clock, bytes / bandwidth)

It orders kernels well but does not know the absolute speed, so its intervals are wide and its
predictions are marked as analytic. Learned models correct it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.plan.cost.generic_features import RunFeatures, TransferFeatures
from tvm_stretch.plan.cost.prediction import Prediction
from tvm_stretch.targets.cpu.cpu import CORE
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Speed

_DOUBT = 2.5  # covers budget to desktop cores, and effects outside of the model


_LARGEST = 1e9
"""Largest number in a file; rates may not be smaller than its inverse."""


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
        memory = (kernel.read_bytes + kernel.out_bytes) / speed.bytes_per_ns
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
        why = "none of any processor"
        try:
            speed = Speed(**{key: float(value) for key, value in data.items()})
            rates = (speed.cycles_per_ns, speed.bytes_per_ns)
            if min(rates) >= 1 / _LARGEST and all(0 <= n <= _LARGEST for n in vars(speed).values()):
                return AnalyticModel(speed)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            why = str(error)
        raise CostModelError(
            f"expected the numbers of Speed for analytic, got {str(data)[:200]} "
            f"({why}); train again"
        )
