"""What a run of a plan costs, and which cost the search makes small.

Objective()                                              the fastest plan
Objective(minimise="energy", latency_ms=20)              the thriftiest plan within 20 ms
Objective(energy_mj=50)                                  the fastest plan within 50 mJ
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import is_finite
from tvm_stretch.run.meters import Meters, read_meters

_MISSED = 1e15
"""Costs beyond a budget are larger than all costs within it, and the larger the farther."""


@dataclass(frozen=True)
class Cost:
    """The cost of a run."""

    ns: int  # its latency in nanoseconds
    millijoules: float | None = None  # its energy; None while no model or meter gives it
    # what processors hand over to each other; None if they were not counted
    bytes: int | None = None


@dataclass(frozen=True)
class Objective:
    """What a plan is to make small, within budgets.

    Attributes:
        minimise: ``"latency"`` or ``"energy"`` of a run.
        latency_ms: the longest latency, in milliseconds.
        energy_mj: the most energy of a run, in millijoules.
        meter: measures energy where plans are measured: a `Meter`, or several; by default the
            meters of this machine.

    Raises:
        InputError: a value is none of these.

    Examples:
        >>> thrifty = ts.Objective("energy", latency_ms=12)
        >>> plan = ts.plan_for("resnet18.onnx", device="snapdragon-855", objective=thrifty)
        >>> plan.predicted_mj < 60
        True
    """

    minimise: Literal["latency", "energy"] = "latency"
    latency_ms: float | None = None
    energy_mj: float | None = None
    meter: Meters | None = None

    def __post_init__(self) -> None:
        if self.minimise not in ("latency", "energy"):
            raise InputError(
                f"expected 'latency' or 'energy' for minimise, got {self.minimise!r}; "
                'budgets are arguments of their own: ts.Objective(minimise="energy", latency_ms=20)'
            )
        for name in ("latency_ms", "energy_mj"):
            budget = getattr(self, name)
            if budget is not None and not (is_finite(budget) and budget > 0):
                raise InputError(
                    f"expected a number above 0 for {name}, got {budget!r}; leave it out for no "
                    "budget"
                )
        if self.meter is not None:
            read_meters(self.meter)

    @property
    def needs_energy(self) -> bool:
        """Whether it cannot be judged by latencies alone."""
        return self.minimise == "energy" or self.energy_mj is not None

    def __call__(self, cost: Cost) -> float:
        """The better of two costs has the smaller number."""
        over = self.excess(cost)
        if over:
            return _MISSED * (1 + over)
        known = self.minimise == "energy" and cost.millijoules is not None
        return cost.millijoules if known else cost.ns  # type: ignore[return-value]

    def excess(self, cost: Cost) -> float:
        """By how much a cost exceeds the budgets, relative to them; 0 within them."""
        pairs = ((cost.ns / 1e6, self.latency_ms), (cost.millijoules, self.energy_mj))
        over = (used / most - 1 for used, most in pairs if most is not None and used is not None)
        return max(0.0, *over, 0.0)

    def require(self, best: Cost, all_costs: Iterable[Cost]) -> None:
        """Refuse the best plan if it misses a budget.

        Raises:
            InputError: it does; the message says what can be had.
        """
        if not self.excess(best):
            return
        known = list(all_costs)
        extremes = [min(known, key=lambda cost: cost.ns)]
        extremes += [min(known, key=lambda cost: cost.millijoules or float("inf"))]
        can = " or ".join(dict.fromkeys(map(_said, extremes)))
        raise InputError(
            f"expected a plan within {self} for objective, got {can} at best; allow more, or add "
            "a target"
        )

    def __str__(self) -> str:
        """The budgets, or what it minimises."""
        pairs = ((self.latency_ms, "ms"), (self.energy_mj, "mJ"))
        budgets = [f"{most:g} {unit}" for most, unit in pairs if most is not None]
        return " and ".join(budgets) or f"the least {self.minimise}"


LATENCY = Objective()


def read_objective(objective: object) -> Objective:
    """What a caller of ``ts.compile`` gave.

    Raises:
        InputError: it is no objective.
    """
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, Hashable) and objective in ("latency", "energy"):
        return Objective(objective)
    raise InputError(
        f"expected 'latency', 'energy' or a ts.Objective for objective, got {objective!r:.100}; "
        'write ts.Objective(minimise="energy", latency_ms=20) for the least energy within 20 ms'
    )


def _said(cost: Cost) -> str:
    energy = "" if cost.millijoules is None else f" with {cost.millijoules:.3g} mJ"
    return f"{cost.ns / 1e6:.3g} ms{energy}"
