"""``compress_within()``: the levels of compression that meet a budget at the least error.

    small = ts.compress_within("resnet18.onnx", ts.Objective(latency_ms=9), images,
                               device="snapdragon-855", quantize="uint8")
    print(small)    # a row for each step: levels, predicted ms and mJ, error
    model = ts.compile(small.network, device="snapdragon-855")

`levels.py` chooses the levels. The cost of a network is that of its best plan, predicted by the
cost model; the error that of answers to images that no fit has seen, after the fit layer by layer.
The network that is returned is fitted by gradient descent, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import torch
import tvm

from tvm_stretch.api.compiler import to_predict
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, reporting, say
from tvm_stretch.lab.compress import (
    checked_steps,
    compressed,
    in_8_bits,
    passes_of,
    read_images,
    unseen,
)
from tvm_stretch.lab.stretching.levels import Compression, Levels, climb
from tvm_stretch.lab.training import to_torch
from tvm_stretch.plan.search.choose import find
from tvm_stretch.plan.search.limits import NO_LIMITS
from tvm_stretch.plan.search.objective import Cost, Objective
from tvm_stretch.plan.search.site import DeviceLike, Targets
from tvm_stretch.read import load_trainable
from tvm_stretch.read.load import Shapes
from tvm_stretch.read.quantise import onnx_answers

_PRICED = 4
"""Images for the ranges of a network in 8 bits that is only priced."""

_JUDGED = 320
"""The most images for the error of a step: a fifth for the error, the others for the fit."""


@named_arguments
def compress_within(
    source: object,
    objective: Objective,
    data: Any,
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
        found = climb(objective, quantize, judge.cost, judge.error)
        levels = found[-1].levels
        say(f"fitting the network with {levels}")
        network = judge.network(levels, images, steps)
        return Compression(network, found, judge.distance(network))


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
    if quantize not in (None, "uint8", "int8"):
        raise InputError(
            f"expected 'uint8', 'int8' or None for quantize, got {quantize!r}; see ts.quantize"
        )
