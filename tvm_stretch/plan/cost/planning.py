"""Measurements for planning: this machine's models, hand-overs, and slowdown by others.

    costs = trained_costs(processors)         # None if ts.tune.measure() was never run here
    costs.models["cpu"].predict_all(kernels)
    costs.hand_over(0, 1, 1 << 20)            # from processors[0] to processors[1], one mebibyte

`ts.tune.measure()` stores models in a folder of the user's cache that is named after the device;
`compile()` finds them there. Files of another version or device, or damaged files, are an error and
not silently skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tvm_stretch.plan.cost.fingerprint import default_folder, fingerprint
from tvm_stretch.plan.cost.generic_features import TransferFeatures
from tvm_stretch.plan.cost.measured_model import MeasuredModel, load_cost_model
from tvm_stretch.targets.processor import Processor

_MEBI = 1 << 20


@dataclass(frozen=True)
class TrainedCosts:
    """Models of several processors of one machine."""

    processors: tuple[str, ...]  # their names; hand-overs refer to them by index
    models: dict[str, MeasuredModel]  # by name of processor
    folder: Path  # contains the models
    device: str = ""  # name of the machine; empty for this one

    @property
    def source(self) -> str:
        """The origin of the numbers, for people."""
        return f"measured on {self.device or 'this machine'} ({self.folder})"

    @property
    def together(self) -> tuple[float, ...]:
        """How much longer kernels take while other processors work."""
        ratio = max(model.together_ratio for model in self.models.values())
        return (ratio,) * len(self.processors)

    def hand_over(self, writer: int, reader: int, size: int) -> int | None:
        """Nanoseconds from the end of a kernel to the start of its reader; None if not measured."""
        if writer == reader:
            return 0
        directions = [] if writer == 0 else [(writer, (1, 0))]
        directions += [] if reader == 0 else [(reader, (0, 1))]
        lines = [self._hand_overs.get(place, {}).get(way) for place, way in directions]
        known = [line[0] + line[1] * size for line in lines if line is not None]
        # Transfers between two devices are not measured: at worst they go through the CPU.
        return round(sum(known)) if len(known) == len(directions) else None

    @cached_property
    def _hand_overs(self) -> dict[int, dict[tuple[int, int], tuple[float, float]]]:
        """Transfers to and from each processor but the CPU: time without bytes, and per byte."""
        found = {}
        pairs = [(0, 1), (1, 0)]
        for place, name in enumerate(self.processors):
            model = self.models[name]
            if TransferFeatures.family in model.families:
                ends = [TransferFeatures.of(size, *pair) for size in (0, _MEBI) for pair in pairs]
                none, much = model.nanoseconds(ends).reshape(2, len(pairs))
                lines = zip(none, (much - none) / _MEBI, strict=True)  # models are lines
                found[place] = dict(zip(pairs, lines, strict=True))
        return found


def trained_costs(
    processors: Sequence[Processor], folder: str | Path | None = None
) -> TrainedCosts | None:
    """The models that `ts.tune.measure` made for these processors; None unless each has one.

    Without a folder only processors of this machine or of a device reached by RPC can have models,
    because others are only known by their target.

    Args:
        processors: the CPU first.
        folder: contains the models; by default the folder of `ts.tune.measure`.

    Raises:
        CostModelError: a model is damaged, of another version or from another device.
    """
    if folder is None and not all(p.runs_here or p.device for p in processors):
        return None
    found = Path(folder) if folder is not None else default_folder(processors[0])
    if found is None:
        return None
    paths = {processor.name: found / f"{processor.name}.json" for processor in processors}
    if not all(os.access(path, os.F_OK) for path in paths.values()):
        return None
    models = {
        p.name: _load(paths[p.name], paths[p.name].stat().st_mtime_ns, _frozen(fingerprint(p)))
        for p in processors
    }
    return TrainedCosts(tuple(paths), models, found, processors[0].device)


def _frozen(device: dict[str, Any]) -> str:
    return json.dumps(device, sort_keys=True)


@lru_cache(maxsize=8)
def _load(path: Path, _modified: int, device: str) -> MeasuredModel:
    """Load a model, which takes half a second, once per version of a file."""
    return load_cost_model(path, json.loads(device))
