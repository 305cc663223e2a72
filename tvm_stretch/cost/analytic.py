"""A cost model for a processor that nobody measured: peak, bandwidth and start of a kernel.

    nanoseconds = start + max(cycles of the template's model / clock, bytes / bandwidth)

It orders kernels well and knows no absolute speed, so its intervals are wide and its predictions
say that they are analytic. It is also what learned models correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvm_stretch.cost.features import Features, RunFeatures, TransferFeatures
from tvm_stretch.cost.prediction import Prediction
from tvm_stretch.errors import CostModelError

_DOUBT = 2.5  # between a budget core and a desktop's, and what the model does not see


@dataclass(frozen=True)
class Speed:
    """The few numbers of a processor that decide orders of magnitude.

    Attributes:
        cycles_per_ns: clock of a core, times the cores that share a kernel.
        bytes_per_ns: bandwidth of memory that no cache holds.
        start_ns: a kernel without work.
        handover_ns: a transfer without bytes.
    """

    cycles_per_ns: float
    bytes_per_ns: float
    start_ns: float
    handover_ns: float


SPEEDS = {
    "cpu": Speed(2.8, 10.0, 300.0, 1_000.0),
    "opencl": Speed(20.0, 12.0, 10_000.0, 50_000.0),
    "hexagon": Speed(10.0, 10.0, 30_000.0, 100_000.0),
}
"""Typical of phones and small machines, by kind of processor."""


def default_speed(kind: str, threads: int = 1, runs_loops: bool = False) -> Speed:
    """The speed to assume of a processor.

    Args:
        kind: as in `Processor.kind`; unknown kinds count as CPUs.
        threads: cores that share a kernel; they reach three quarters of their number.
        runs_loops: an OpenCL device that is a CPU.
    """
    speed = SPEEDS.get(kind, SPEEDS["cpu"])
    cores = 1.0 + 0.75 * (threads - 1)
    if runs_loops and kind != "cpu":
        cpu = SPEEDS["cpu"]
        return Speed(cpu.cycles_per_ns * cores, cpu.bytes_per_ns, 3_000.0, speed.handover_ns)
    factor = cores if kind == "cpu" else 1.0
    return Speed(
        speed.cycles_per_ns * factor, speed.bytes_per_ns, speed.start_ns, speed.handover_ns
    )


class AnalyticModel:
    """See the module docstring."""

    def __init__(self, speed: Speed = SPEEDS["cpu"]) -> None:
        self.speed = speed

    def nanoseconds(self, kernel: Features) -> float:
        """The latency of one kernel."""
        speed = self.speed
        if isinstance(kernel, RunFeatures):
            return 0.0  # what a kernel costs beside its work is in its start
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
