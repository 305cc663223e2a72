"""Latencies of plans, or of designs, on several devices, and the one that suits all of them.

plan         pixel-8          mi-9             at worst
of pixel-8   31.2 ms  x1.00   55.0 ms  x1.31   x1.31
of mi-9      34.9 ms  x1.12   42.0 ms  x1.00   x1.12
best for all: of mi-9, which costs 12 % on pixel-8, nothing on mi-9
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm_stretch.base.errors import DeviceError

Planned = TypeVar("Planned")


@dataclass(frozen=True)
class PlanTable(Generic[Planned]):
    """The latencies of plans, or of designs, on several devices.

    Attributes:
        devices: the names of the devices.
        plans: the plans, by name.
        seconds: the median latencies of each plan, in the order of devices; None if the plan does
            not run there.
        refusals: the reasons why plans do not run.
    """

    devices: tuple[str, ...]
    plans: Mapping[str, Planned]
    seconds: Mapping[str, tuple[float | None, ...]]
    refusals: tuple[str, ...] = ()

    @property
    def costs(self) -> dict[str, tuple[float | None, ...]]:
        """Each plan's latency relative to the best plan of each device."""
        columns = zip(*self.seconds.values(), strict=True)
        least = [min((s for s in column if s is not None), default=None) for column in columns]
        return {
            name: tuple(
                None if s is None or best is None else s / best
                for s, best in zip(row, least, strict=True)
            )
            for name, row in self.seconds.items()
        }

    @property
    def best(self) -> str:
        """The plan with the least worst cost, of plans that run on all devices.

        Raises:
            DeviceError: no plan runs on all devices.
        """
        everywhere = {
            name: [cost for cost in row if cost is not None]
            for name, row in self.costs.items()
            if None not in row
        }
        if not everywhere:
            raise DeviceError(
                "expected a plan that all devices run, got none: "
                f"{'; '.join(self.refusals)}; add one for processors that all of them have"
            )
        return min(everywhere, key=lambda name: (max(everywhere[name]), sum(everywhere[name])))

    @property
    def plan(self) -> Planned:
        """The best plan, for ``compile(..., device=, plan=)``."""
        return self.plans[self.best]

    def __str__(self) -> str:
        """The table of the module docstring."""
        rows = [["plan", *self.devices, "at worst"]]
        for name, costs in self.costs.items():
            cells = [
                "-" if seconds is None or cost is None else f"{seconds * 1e3:.2f} ms  x{cost:.2f}"
                for seconds, cost in zip(self.seconds[name], costs, strict=True)
            ]
            predicted = [cost for cost in costs if cost is not None]
            worst = f"x{max(predicted):.2f}" if len(predicted) == len(costs) else "-"
            rows.append([name, *cells, worst])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join((*lines, *self.refusals, self._verdict()))

    def _verdict(self) -> str:
        try:
            best = self.best
        except DeviceError:
            return "best for all: none runs everywhere"
        costs = zip(self.devices, self.costs[best], strict=True)
        notes = [
            f"{f'{100 * (cost - 1):.0f} %' if cost > 1.005 else 'nothing'} on {device}"
            for device, cost in costs
            if cost is not None
        ]
        return f"best for all: {best}, which costs {', '.join(notes)}"
