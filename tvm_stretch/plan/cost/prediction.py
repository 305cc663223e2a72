"""Predictions, which every cost model returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tvm_stretch.targets.kernels.features import Features

Source = Literal["measured", "analytic"]


@dataclass(frozen=True)
class Prediction:
    """A latency and how far to trust it."""

    nanoseconds: int  # the expected latency
    low: int  # with 90 % confidence the latency lies between this and ``high``
    high: int  # see ``low``
    source: Source  # whether it is based on measurements
    # why measurements say little of this kernel; empty if they apply. A reason to measure it.
    out_of_range: tuple[str, ...] = ()


class CostModel(Protocol):
    """Predicts latencies of kernels on one processor."""

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel."""
        ...
