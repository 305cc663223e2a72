"""Levels of compression, and the search that climbs them until a budget is met.

    given ──prune 0.1──> ──prune 0.2──> ──8 bits──> ──low rank 0.9──> within the budget

Each level is a ladder. A step goes up one of them, to its next rung that is predicted to be nearer
to the budget; rungs that only change the error are passed. Among these steps (at most three), the
search takes the one that adds the least error for what it saves. Costs need no fits and so come
first: a budget that no network meets is refused before the first error is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.progress import say
from tvm_stretch.plan.search.objective import Cost, Objective

_PRUNE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_LOW_RANK = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)

_LEAST_GAIN = 0.005
"""A share of the budget; smaller gains are within the errors of predictions."""


@dataclass(frozen=True)
class Levels:
    """Arguments of `ts.compress`.

    Attributes:
        prune: the share of channels that go, or None.
        low_rank: the share of its multiply-adds that each convolution keeps, or None.
        quantize: the type of activations of 8 bits, or None.
    """

    prune: float | None = None
    low_rank: float | None = None
    quantize: str | None = None

    def __str__(self) -> str:
        """As arguments."""
        pairs = (("prune", self.prune), ("low_rank", self.low_rank), ("quantize", self.quantize))
        return ", ".join(f"{name}={value!r}" for name, value in pairs if value) or "as given"

    def higher(self, quantize: str | None) -> tuple[tuple[Levels, ...], ...]:
        """The rungs above, for each ladder."""
        pruned = [replace(self, prune=p) for p in _PRUNE if p > (self.prune or 0)]
        ranked = [replace(self, low_rank=r) for r in _LOW_RANK if r < (self.low_rank or 1)]
        whole = [replace(self, quantize=quantize)] if quantize and not self.quantize else []
        return tuple(pruned), tuple(ranked), tuple(whole)


@dataclass(frozen=True)
class CompressionStep:
    """A network on the way to the budget.

    Attributes:
        levels: of compression.
        milliseconds: predicted for a run.
        millijoules: predicted for a run, if powers are known.
        error: the mean squared distance of its answers to those of the given network, relative to
            their variance.
    """

    levels: Levels
    milliseconds: float
    millijoules: float | None
    error: float


@dataclass(frozen=True)
class Compression:
    """A network within a budget; printing it shows the steps.

    Attributes:
        network: for ``ts.compile``: a Relax module, in 8 bits an ``onnx.ModelProto``.
        steps: the given network, and what was done to it, one after the other.
        error: that of `network`, whose weights are fitted longer than those of the last step.
    """

    network: tvm.IRModule | onnx.ModelProto
    steps: tuple[CompressionStep, ...]
    error: float

    @property
    def levels(self) -> Levels:
        """The arguments of ``ts.compress`` that make the network."""
        return self.steps[-1].levels

    def __str__(self) -> str:
        """The steps, in Markdown."""
        rows = [
            f"| {step.levels} | {step.milliseconds:.2f} "
            f"| {'' if step.millijoules is None else format(step.millijoules, '.1f')} "
            f"| {step.error:.4f} |"
            for step in self.steps
        ]
        head = "| levels | predicted ms | mJ | error |", "| --- | --- | --- | --- |"
        return "\n".join((*head, *rows, f"\nfitted: an error of {self.error:.4f}"))


def climb(
    objective: Objective,
    quantize: str | None,
    cost: Callable[[Levels], Cost | None],
    error: Callable[[Levels], float],
) -> tuple[CompressionStep, ...]:
    """The steps from the given network to one within the budget.

    Args:
        objective: the budget.
        quantize: the type of activations if 8 bits are allowed.
        cost: of a network with these levels; None if there is none.
        error: of a network with these levels.

    Raises:
        InputError: the budget cannot be met.
    """
    _steps(objective, quantize, cost, lambda _levels: 0.0)  # errors are known after fits: minutes
    return _steps(objective, quantize, cost, error)


def _steps(
    objective: Objective,
    quantize: str | None,
    cost: Callable[[Levels], Cost | None],
    error: Callable[[Levels], float],
) -> tuple[CompressionStep, ...]:
    """See `climb`."""
    seen: list[tuple[Cost, Levels]] = []

    def excess(levels: Levels) -> float:
        price = cost(levels)
        if price is None:
            return float("inf")
        seen.append((price, levels))
        return objective.excess(price)

    here, found = Levels(), []
    left, off = excess(here), 0.0
    while True:
        price = cost(here)
        assert price is not None
        found.append(CompressionStep(here, price.ns / 1e6, price.millijoules, off))
        if not left:
            return tuple(found)
        ladders = here.higher(quantize)
        rungs = [_next(ladder, excess, left) for ladder in ladders]
        choices = [
            ((own - off) / (left - over), over, str(levels), levels, own)
            for levels, over in filter(None, rungs)
            for own in (error(levels),)
        ]
        if not choices:
            raise _out_of_reach(objective, seen)
        _, left, _, here, off = min(choices)
        say(f"{here}: {left:.0%} above the budget, an error of {off:.3g}")


def _next(
    ladder: Sequence[Levels], excess: Callable[[Levels], float], left: float
) -> tuple[Levels, float] | None:
    """The next rung that is nearer to the budget."""
    for levels in ladder:
        over = excess(levels)
        if over < left - _LEAST_GAIN or (left and not over):
            return levels, over
    return None


def _out_of_reach(objective: Objective, seen: Sequence[tuple[Cost, Levels]]) -> InputError:
    best, levels = min(seen, key=lambda one: (objective.excess(one[0]), str(one[1])))
    energy = "" if best.millijoules is None else f" with {best.millijoules:.3g} mJ"
    return InputError(
        f"expected a network within {objective} for objective, got {best.ns / 1e6:.3g} ms{energy} "
        f"at best ({levels}); allow more, add a target, or allow 8 bits with quantize='uint8'"
    )
