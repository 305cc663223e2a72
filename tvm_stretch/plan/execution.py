"""What became of a plan: the operators that ran elsewhere than planned."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stray:
    """An operator that fell back: it ran elsewhere than planned."""

    operator: str
    planned: str
    found: str


@dataclass(frozen=True)
class Execution:
    """What became of a plan.

    Attributes:
        operators: how many operators the plan has.
        strays: those that ran elsewhere.
        without_kernel: those that need none.
    """

    operators: int
    strays: tuple[Stray, ...]
    without_kernel: tuple[str, ...]

    def __str__(self) -> str:
        """``0 of 57 operators fell back``, and which."""
        text = f"{len(self.strays)} of {self.operators} operators fell back"
        moves = (f"{s.operator} from {s.planned} to {s.found}" for s in self.strays)
        return ": ".join(filter(None, (text, ", ".join(moves))))
