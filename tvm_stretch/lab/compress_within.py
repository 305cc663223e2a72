"""``compress_within()``: the levels of compression that meet a budget at the least error.

    small = ts.compress_within("resnet18.onnx", ts.Objective(latency_ms=9), images,
                               device="snapdragon-855", quantize="uint8")
    print(small)    # a row for each step: levels, predicted ms and mJ, error
    model = ts.compile(small.network, device="snapdragon-855")

given ──prune 0.1──> ──prune 0.2──> ──8 bits──> ──low rank 0.9──> within the budget

Each level is a ladder. A step goes up one of them, to its next rung that is predicted to be nearer
to the budget; rungs that only change the error are passed. Among these steps (at most three), the
search takes the one that adds the least error for what it saves. Costs need no fits and so come
first: a budget that no network meets is refused before the first error is known. The cost of a
network is that of its best plan, predicted by the cost model; the error that of answers to images
that no fit has seen, after the fit layer by layer. The network that is returned is fitted by
gradient descent, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
import tvm

from tvm_stretch.api.compiler import to_predict
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.named_arguments import is_one_of, named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.compress import (
    checked_steps,
    compressed,
    in_8_bits,
    passes_of,
    read_images,
    unseen,
)
from tvm_stretch.lab.training import to_torch
from tvm_stretch.make.quantise import onnx_answers
from tvm_stretch.plan.search.choose import find
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.objective import Cost, Objective
from tvm_stretch.plan.search.site import DeviceLike, Targets
from tvm_stretch.read import load_trainable
from tvm_stretch.read.load import Shapes

_PRICED = 4
"""Images for the ranges of a network in 8 bits that is only priced."""

_JUDGED = 320
"""The most images for the error of a step: a fifth for the error, the others for the fit."""


@named_arguments
def compress_within(
    source: object,
    objective: Objective,
    data: object,
    *,
    targets: Targets = None,
    device: DeviceLike = None,
    quantize: str | None = None,
    steps: int = 400,
    shapes: Shapes = None,
    cpu_threads: int | None = None,
    progress: Progress | None = None,
) -> Compression:
    """Compress a network until it is predicted to meet a budget, at the least error.

    Args:
        source: as for ``ts.compress``.
        objective: with ``latency_ms``, ``energy_mj`` or both.
        data: typical inputs, as for ``ts.compress``; a fifth of them is held out of the fits.
        targets: as for ``ts.plan_for``.
        device: as for ``ts.plan_for``; by default the costs are those of this machine.
        quantize: allows 8 bits: ``"uint8"`` or ``"int8"``, as for ``ts.compress``.
        steps: of gradient descent for the network that is returned.
        shapes: as for ``ts.compile``.
        cpu_threads: as for ``ts.plan_for``.
        progress: as for ``ts.compile``.

    Raises:
        InputError: the budget cannot be met, and the message says what can; it is none; `data` are
            no images of the network.
        InstallError: ONNX Runtime, whose quantiser `quantize` uses, is not installed.

    Examples:
        >>> images = np.random.default_rng(0).standard_normal((8, 3, 224, 224), dtype="float32")
        >>> budget = ts.Objective(latency_ms=14)
        >>> small = ts.compress_within("resnet18.onnx", budget, images, device="snapdragon-855",
        ...                            steps=0)
        >>> small.steps[-1].milliseconds <= 14
        True
    """
    _check(objective, quantize)
    checked_steps(steps)
    with reporting(progress), compiling():
        mod = load_trainable(source, shapes)
        images = read_images(mod, data)

        def price(network: object) -> Cost:
            return _predicted(network, objective, targets, device, cpu_threads)

        judge = _Judge(mod, images, price)
        best = climb(objective, quantize, judge.cost, judge.error)
        levels = best[-1].levels
        say(f"fitting the network with {levels}")
        network = judge.network(levels, images, steps)
        return Compression(network, best, judge.distance(network))


class _Judge:
    """Networks by their levels, with costs and errors, each of them made once."""

    def __init__(
        self, mod: tvm.IRModule, images: np.ndarray, price: Callable[[object], Cost]
    ) -> None:
        self.mod, self.price = mod, price
        self.images = images[:: -(-len(images) // _JUDGED)]
        self.unseen = unseen(self.images)
        self.wanted = _answers(mod, self.unseen)
        self.costs: dict[Levels, Cost | None] = {}
        self.errors: dict[Levels, float] = {Levels(): 0.0}

    def cost(self, levels: Levels) -> Cost | None:
        """The predicted cost; None if no network has these levels."""
        if levels not in self.costs:
            try:
                self.costs[levels] = self.price(self.network(levels, None, 0))
            except UnsupportedError:
                self.costs[levels] = None
            else:
                say(f"{levels}: {self.costs[levels]}")
        return self.costs[levels]

    def error(self, levels: Levels) -> float:
        """The error after a fit layer by layer."""
        if levels not in self.errors:
            self.errors[levels] = self.distance(self.network(levels, self.images, 0))
        return self.errors[levels]

    def network(
        self, levels: Levels, images: np.ndarray | None, steps: int
    ) -> tvm.IRModule | onnx.ModelProto:
        """The network with these levels, fitted if there are images."""
        passes = passes_of(levels.prune, levels.low_rank)
        small = compressed(self.mod, passes, images, steps)
        if levels.quantize is None:
            return small
        some = self.images[:_PRICED] if images is None else images
        return in_8_bits(small, some, levels.quantize)

    def distance(self, network: tvm.IRModule | onnx.ModelProto) -> float:
        """The mean squared difference to the given network's answers, relative to their spread."""
        off = _answers(network, self.unseen) - self.wanted
        return float(np.square(off).mean() / max(self.wanted.var(), 1e-12))


@torch.no_grad()
def _answers(network: tvm.IRModule | onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    if isinstance(network, onnx.ModelProto):
        return onnx_answers(network, images)
    return to_torch(network).eval()(torch.as_tensor(images)).numpy()


def _predicted(
    network: object,
    objective: Objective,
    targets: Targets,
    device: DeviceLike,
    cpu_threads: int | None,
) -> Cost:
    """The cost of the plan that is nearest to the budget."""
    mod, _, site = to_predict(network, targets, device, None, cpu_threads)
    _, _, candidates = find(mod, site, replace(NO_LIMITS, objective=objective))
    return min((candidate.cost for candidate in candidates), key=objective)


def _check(objective: Objective, quantize: str | None) -> None:
    budgets = (getattr(objective, name, None) for name in ("latency_ms", "energy_mj"))
    if not isinstance(objective, Objective) or not any(budgets):
        raise InputError(
            f"expected a ts.Objective with a budget for objective, got {objective!r:.80}; write "
            "ts.Objective(latency_ms=20)"
        )
    if quantize is not None and not is_one_of(quantize, ("uint8", "int8")):
        raise InputError(
            f"expected 'uint8', 'int8' or None for quantize, got {quantize!r}; see ts.quantize"
        )


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
        """The options that differ from the default, as they are written in a call."""
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

    here, steps = Levels(), []
    left, off = excess(here), 0.0
    while True:
        price = cost(here)
        assert price is not None
        steps.append(CompressionStep(here, price.ns / 1e6, price.millijoules, off))
        if not left:
            return tuple(steps)
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
