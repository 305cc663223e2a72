"""What a run of a plan costs, and which cost the search makes small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Cost:
    """The predicted cost of a run."""

    ns: int  # its latency in nanoseconds
    millijoules: float | None = None  # its energy; None while no model predicts it
    # what processors hand over to each other; None if they were not counted
    bytes: int | None = None


Objective: TypeAlias = Callable[[Cost], float]
"""The better of two costs has the smaller number."""


def latency(cost: Cost) -> float:
    """The only objective yet: chain.py and clock.py count in it, in whole nanoseconds."""
    return cost.ns
