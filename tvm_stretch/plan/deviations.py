"""Compare a plan with its execution: the operators that ran elsewhere than planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stray:
    """An operator that fell back to another processor than planned."""

    operator: str
    planned: str
    found: str


@dataclass(frozen=True)
class Execution:
    """How a plan was executed.

    Attributes:
        operators: number of operators of the plan.
        strays: operators that ran elsewhere.
        without_kernel: operators that need no kernel.
    """

    operators: int
    strays: tuple[Stray, ...]
    without_kernel: tuple[str, ...]

    def __str__(self) -> str:
        """``0 of 57 operators fell back``, and which."""
        text = f"{len(self.strays)} of {self.operators} operators fell back"
        moves = (f"{s.operator} from {s.planned} to {s.found}" for s in self.strays)
        return ": ".join(filter(None, (text, ", ".join(moves))))
