"""What a run of a plan costs, and which cost the search makes small.

Objective()                                              the fastest plan
Objective(minimise="energy", latency_ms=20)              the plan of least energy in 20 ms
Objective(energy_mj=50)                                  the fastest plan within 50 mJ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import is_finite
from tvm_stretch.base.progress import say
from tvm_stretch.plan.cost.profile import Power
from tvm_stretch.run.meters import Meters, read_meters
from tvm_stretch.run.model import Model

_MISSED = 1e15
"""Costs beyond a budget are larger than all costs within it, and the larger the farther."""

_WORTHS = (2.0, 50.0)
"""What a millijoule is worth, relative to the time in which the hungriest processor takes it."""

Price = Callable[[int, Sequence[int]], float]
"""What the search makes small: of the nanoseconds of a run, and of work of each processor."""


@dataclass(frozen=True)
class Cost:
    """The cost of a run."""

    ns: int  # its latency in nanoseconds
    millijoules: float | None = None  # its energy; None while no model or meter gives it
    # what processors hand over to each other; None if they were not counted
    bytes: int | None = None

    def amount(self, quantity: str) -> float | None:
        """One of `_BUDGETS` in the unit of its budget; None if it is not known."""
        return {"latency": self.ns / 1e6, "energy": self.millijoules}[quantity]

    def __str__(self) -> str:
        shown = ((self.amount(name), unit) for name, (_, unit) in _BUDGETS.items())
        return " with ".join(f"{value:.3g} {unit}" for value, unit in shown if value is not None)


_BUDGETS = {"latency": ("latency_ms", "ms"), "energy": ("energy_mj", "mJ")}
"""What may be made small: the field of `Objective` with its budget, and the unit."""


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
        if self.minimise not in _BUDGETS:
            raise InputError(
                f"expected 'latency' or 'energy' for minimise, got {self.minimise!r}; "
                'budgets are arguments of their own: ts.Objective(minimise="energy", latency_ms=20)'
            )
        for name, budget in self._budgets().items():
            if not (is_finite(budget) and budget > 0):
                raise InputError(
                    f"expected a number above 0 for {_BUDGETS[name][0]}, got {budget!r}; leave it "
                    "out for no budget"
                )
        if self.meter is not None:
            read_meters(self.meter)

    def _budgets(self) -> dict[str, float]:
        """The budgets that are given, by what they are for."""
        given = {name: getattr(self, field) for name, (field, _) in _BUDGETS.items()}
        return {name: budget for name, budget in given.items() if budget is not None}

    @property
    def needs(self) -> set[str]:
        """What must be known of a plan beside its latency."""
        return {self.minimise, *self._budgets()} - {"latency"}

    def __call__(self, cost: Cost) -> float:
        """The better of two costs has the smaller number."""
        over = self.excess(cost)
        return _MISSED * (1 + over) if over else cost.amount(self.minimise) or cost.ns

    def excess(self, cost: Cost) -> float:
        """By how much a cost exceeds the budgets, relative to them; 0 within them."""
        pairs = ((cost.amount(name), most) for name, most in self._budgets().items())
        return max(0.0, *(used / most - 1 for used, most in pairs if used is not None), 0.0)

    def require(self, best: Cost, all_costs: Iterable[Cost]) -> None:
        """Refuse the best plan if it misses a budget.

        Raises:
            InputError: it does; the message says what can be had.
        """
        if not self.excess(best):
            return
        costs = list(all_costs)
        can = " or ".join(dict.fromkeys(str(_least(name, costs)) for name in _BUDGETS))
        raise InputError(
            f"expected a plan within {self} for objective, got {can} at best; allow more, or add "
            "a target"
        )

    def prices(self, power: Power | None) -> list[Price]:
        """What a search makes small in turns, beside latency."""
        if "energy" not in self.needs or power is None:
            return []
        per_watt = min(1 / max(power.idle_watts + watts, 1e-9) for watts in power.watts)
        worths = (1e6 * most * per_watt for most in _WORTHS)
        return [partial(_with_energy, power, worth) for worth in worths]

    def measure(self, models: Sequence[Model], seconds: Sequence[float]) -> list[Cost]:
        """What runs of models cost where they run, which took so long.

        Raises:
            MeterError: the objective counts energy, and no meter is usable.
        """
        costs = [Cost(round(1e9 * one)) for one in seconds]
        if "energy" not in self.needs:
            return costs
        say(f"measuring the energy of {len(models)} plans")
        meter = True if self.meter is None else self.meter
        energies = [model.benchmark(1, energy=meter).energy for model in models]
        pairs = zip(costs, energies, strict=True)
        return [replace(cost, millijoules=e.millijoules) if e else cost for cost, e in pairs]

    def __str__(self) -> str:
        """The budgets, or what it minimises."""
        budgets = [f"{most:g} {_BUDGETS[name][1]}" for name, most in self._budgets().items()]
        return " and ".join(budgets) or f"the least {self.minimise}"


LATENCY = Objective()


def read_objective(objective: object) -> Objective:
    """What a caller of ``ts.compile`` gave."""
    if isinstance(objective, Objective):
        return objective
    if isinstance(objective, Hashable) and objective in ("latency", "energy"):
        return Objective(objective)
    raise InputError(
        f"expected 'latency', 'energy' or a ts.Objective for objective, got {objective!r:.100}; "
        'write ts.Objective(minimise="energy", latency_ms=20) for the least energy within 20 ms'
    )


def _least(quantity: str, costs: Sequence[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.amount(quantity) or math.inf)


def _with_energy(power: Power, worth: float, ns: int, busy: Sequence[int]) -> float:
    return ns + worth * power.millijoules(ns, busy)
