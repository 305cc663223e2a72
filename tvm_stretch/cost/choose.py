"""Let measurements pick the register tiles of convolutions, and between Winograd and direct.

The analytic model of `targets/kernels/choose.py` names a few candidates; the measured model picks
one, unless it knows too little of them or gains less than its own error. `compile()` does so where
``ts.measure()`` left models of this machine; so it never searches, and never times a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm_stretch.cost.describe import Epilogue, template_features
from tvm_stretch.cost.planning import trained_costs
from tvm_stretch.cost.prediction import CostModel
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.processor import Processor

_WORTH = 0.95  # a smaller gain is within the error of the model


def with_measured_choices(processors: Sequence[Processor]) -> Sequence[Processor]:
    """The same processors, with the models of this machine if there are any; the CPU first.

    Raises:
        CostModelError: what `ts.measure` left is damaged or of another version.
    """
    costs = trained_costs(processors)
    if costs is None:
        return processors
    return [with_measured_choice(p, costs.models[p.name]) for p in processors]


def with_measured_choice(processor: Processor, model: CostModel) -> Processor:
    """The same processor, whose convolutions are configured by ``model``."""

    def rank(candidates: tuple[Any, ...], machine: VectorMachine) -> Any:
        features = [template_features(config, Epilogue(), machine) for config in candidates]
        answers = model.predict_all(features)
        trusted = [
            (answer.nanoseconds, index)
            for index, answer in enumerate(answers)
            if answer.source == "measured" and not answer.out_of_range
        ]
        if not trusted or trusted[0][1] != 0:
            return candidates[0]
        latency, index = min(trusted)
        return candidates[index if latency < _WORTH * answers[0].nanoseconds else 0]

    return replace(processor, machine=replace(processor.machine, rank=rank))
