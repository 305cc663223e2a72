"""The measured cost model of one processor: learned families over an analytic base, in one file.

model = train(dataset.rows, device)           # a minute at most
model.save("cpu.json"); model = load_cost_model("cpu.json", device)
model.predict_all(features)[0]                # Prediction(nanoseconds, low, high, "measured")
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.formats import Format
from tvm_stretch.base.progress import say
from tvm_stretch.plan.cost.correction import Ratios
from tvm_stretch.plan.cost.family import FamilyModel, Parts, fit_family, intervals_of
from tvm_stretch.plan.cost.fingerprint import check_device
from tvm_stretch.plan.cost.generic_features import LaunchedRunFeatures, RunFeatures
from tvm_stretch.plan.cost.generic_features import families as all_families
from tvm_stretch.plan.cost.prediction import AnalyticModel, CostModel, Prediction
from tvm_stretch.plan.cost.residual import Array
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Speed

FORMAT = Format(
    "tvm_stretch.cost_model",
    14,
    "the cost model",
    CostModelError,
    "measure and train again",
    is_sealed=True,
)

_RATES, _ANY = (1e-9, 1e9), (-math.inf, math.inf)
"""Cycles and bytes of a nanosecond in a file, and numbers that describe a device."""

_FEWEST_FAR, _OF_MEMORY = 1e6, 0.8
"""Bytes from memory of kernels that show its speed, and the share of their least time that every
kernel takes: samples are smaller than the largest layers, so the launch counts in them."""


@dataclass(frozen=True)
class MeasuredModel(CostModel):
    """See the module docstring.

    Attributes:
        device: the measured device, as returned by `fingerprint`.
        base: predicts families that were not measured.
        families: by name.
        together_ratio: how much slower kernels are while other processors run; 1 if not measured.
        below: the model that this one corrects, of a processor or device with the same loop nests.
        memory: the most bytes of weights that a kernel read in a nanosecond, many of them from
            memory; None if no kernel did. No prediction is shorter than weights from memory need.
        launching: what runs on a GPU take beside their kernels; None on other processors.
    """

    device: dict[str, object]
    base: AnalyticModel
    families: dict[str, FamilyModel]
    together_ratio: float = 1.0
    below: MeasuredModel | None = None
    memory: float | None = None
    launching: Launching | None = None

    @property
    def start_ns(self) -> float:
        """The latency of a kernel without work."""
        return self.base.start_ns

    def added_ns(self, kernel: Features, alone_ns: float) -> float:
        """How much longer a run takes with a kernel: on a GPU its launch may hide beside it."""
        return alone_ns if self.launching is None else self.launching.added_ns(kernel, alone_ns)

    def predict_all(self, kernels: Sequence[Features]) -> list[Prediction]:
        """One prediction for each kernel, analytic for families that were not measured."""
        predicted = self.base.predict_all(kernels)
        for family, positions in self._by_family(kernels):
            own = [kernels[i] for i in positions]
            latency, outside = self._latencies(family, own), family.outside(own)
            widths = family.half_widths(latency, outside)
            for i, ns, half, reasons in zip(positions, latency, widths, outside, strict=True):
                low, high = math.floor(ns * math.exp(-half)), math.ceil(ns * math.exp(half))
                predicted[i] = Prediction(max(1, round(ns)), low, high, "measured", reasons)
        return predicted

    def nanoseconds(self, kernels: Sequence[Features]) -> Array:
        """Predicted latencies without intervals."""
        times = np.asarray([self.base.nanoseconds(kernel) for kernel in kernels])
        for family, positions in self._by_family(kernels):
            times[positions] = self._latencies(family, [kernels[i] for i in positions])
        return times

    def run_ns(self, kernels: Sequence[Features]) -> float:
        """The predicted latency of a run of these kernels, with its start and its launches."""
        computed = float(self.nanoseconds(kernels).sum())
        if self.launching is not None:
            return self.launching.run_ns(kernels, computed)
        return computed + float(self.nanoseconds([RunFeatures.make(len(kernels))])[0])

    def parts(self, kernels: Sequence[Features]) -> list[Parts | None]:
        """Predicted latencies by phase; None for kernels of families that were not measured."""
        listed: list[Parts | None] = [None] * len(kernels)
        for family, positions in self._by_family(kernels):
            own = [kernels[i] for i in positions]
            every = family.parts(own, self._below(family, own))
            for i, parts in zip(positions, every, strict=True):
                listed[i] = parts
        return listed

    def without_residuals(self) -> MeasuredModel:
        """The weighted phases alone: errors of one device mislead about tiles of another one."""
        families = {n: replace(f, residual=None) for n, f in self.families.items()}
        below = self.below and self.below.without_residuals()
        return replace(self, families=families, below=below)

    @property
    def phases(self) -> dict[str, list[str]]:
        """The phases of each family of `parts`."""
        return {name: family.phases for name, family in self.families.items()}

    def distance(self, kernels: Sequence[Features], measured_ns: Sequence[float]) -> float:
        """The median error, as logarithm, of measured kernels after `train` corrected this model.

        Infinite if it knows no family of the kernels.
        """
        predicted = self.known_parts(kernels)
        if not predicted:
            return math.inf
        target = np.asarray(measured_ns)[list(predicted)]
        return float(np.median(np.abs(Ratios(self.phases).fit([*predicted.values()], target))))

    def known_parts(self, kernels: Sequence[Features]) -> dict[int, Parts]:
        """The parts of kernels of measured families, by their positions."""
        return {
            i: parts
            for i, parts in enumerate(self.parts(kernels))
            if parts is not None and kernels[i].is_kernel
        }

    def _by_family(self, kernels: Sequence[Features]) -> Iterator[tuple[FamilyModel, list[int]]]:
        positions: dict[str, list[int]] = {}
        for index, kernel in enumerate(kernels):
            is_known = kernel.family in self.families or not kernel.stand_in
            name = kernel.family if is_known else kernel.stand_in
            positions.setdefault(name, []).append(index)
        for name, own in positions.items():
            if name in self.families:
                yield self.families[name], own

    def _latencies(self, family: FamilyModel, kernels: Sequence[Features]) -> Array:
        latencies = family.predict(kernels, self._below(family, kernels))
        if self.memory is None:
            return latencies
        least = [_OF_MEMORY * kernel.far_weight_bytes / self.memory for kernel in kernels]
        return np.maximum(latencies, least)

    def _below(self, family: FamilyModel, kernels: Sequence[Features]) -> list[Parts] | None:
        if not family.is_correction or self.below is None:
            return None
        return [parts for parts in self.below.parts(kernels) if parts is not None]

    def save(self, path: str | Path) -> None:
        """Write the file; it appears complete or not at all."""
        FORMAT.write(Path(path), asdict(self))

    def check(self, where: str) -> None:
        """Refuse what the types of fields do not say."""
        FORMAT.within(self, where, together_ratio=(1e-6, 1e6), memory=(1e-9, 1e12), device=_ANY)
        FORMAT.within(self.base.speed, where, cycles_per_ns=_RATES, bytes_per_ns=_RATES)
        if self.launching is not None:
            FORMAT.within(self.launching, f"launching of {where}")
        if self.below is not None:
            self.below.check(f"below in {where}")
        families_below = {} if self.below is None else self.below.families
        for name, family in self.families.items():
            is_known = {name, all_families()[name].stand_in} & set(families_below)
            if family.family != name or (family.is_correction and not is_known):
                raise CostModelError(
                    f"expected family {name!r} in {where} and in the model below it, got "
                    f"{family.family!r} and {', '.join(families_below) or 'none'}; {FORMAT.again}"
                )
            family.check(FORMAT, f"family {name!r} of {where}")


def load_cost_model(path: str | Path, device: Mapping[str, Any] | None = None) -> MeasuredModel:
    """Read what `MeasuredModel.save` wrote.

    Args:
        device: the device on which it must have been measured; None accepts any.

    Raises:
        CostModelError: the file is missing, truncated, of another schema or from another device.
    """
    data, where = FORMAT.read(Path(path)), f"{FORMAT.what} in {path}"
    if device is not None:
        check_device(data.get("device"), device, str(path))
    if changed := _leave_out_changed(data):
        say(
            f"{path}: the cost families {', '.join(changed)} have changed since then; their "
            "kernels are predicted by typical speeds until they are measured again"
        )
    model = FORMAT.build(MeasuredModel, data, where)
    model.check(where)
    return model


def _leave_out_changed(data: dict[str, Any]) -> list[str]:
    """Remove families of other versions from a file's object, and return their names."""
    current, families = all_families(), data.get("families")
    versions = {
        name: family.get("version") if isinstance(family, dict) else None
        for name, family in (families.items() if isinstance(families, dict) else ())
    }
    changed = [n for n, v in versions.items() if n not in current or v != current[n].version]
    if changed:
        data["families"] = {n: f for n, f in data["families"].items() if n not in changed}
    below = data.get("below")
    return sorted({*changed, *(_leave_out_changed(below) if isinstance(below, dict) else ())})


def train(
    kernels: Sequence[Features],  # the measured kernels
    measured_ns: Sequence[float],  # their latencies
    device: Mapping[str, Any],  # on which they were measured
    speed: Speed,  # of typical processors of this kind
    together_ratio: float = 1.0,  # how much slower kernels are while other processors run
    *,
    # what each kernel was measured with; see `fit_family`
    origins: Sequence[Hashable] | None = None,
    # a model of a processor or device with the same loop nests; only the difference is learned
    below: MeasuredModel | None = None,
) -> MeasuredModel:
    """Learn every family with enough measured kernels."""
    base = AnalyticModel(_calibrated(kernels, measured_ns, speed))
    origins = origins if origins is not None else range(len(kernels))
    families: dict[str, FamilyModel] = {}
    weights: dict[str, dict[str, float]] = {}
    parts = [None] * len(kernels) if below is None else below.parts(kernels)
    if below is not None:
        families, weights = _corrected(below, kernels, np.asarray(measured_ns))
    for name in sorted({kernel.family for kernel in kernels} - {LaunchedRunFeatures.family}):
        positions = [i for i, kernel in enumerate(kernels) if kernel.family == name]
        own = [kernels[i] for i in positions]
        own_ns, own_origins = [measured_ns[i] for i in positions], [origins[i] for i in positions]
        measured_parts = [part for i in positions if (part := parts[i]) is not None]
        corrected = (measured_parts, weights[name]) if name in weights else None
        family = fit_family(own, own_ns, own_origins, corrected)
        if family is not None:
            families[name] = family
    stands_on = below if any(family.is_correction for family in families.values()) else None
    launching = None if below is None else below.launching
    return MeasuredModel(
        *(dict(device), base, families, together_ratio, stands_on, _memory(kernels, measured_ns)),
        launching_of(kernels, measured_ns) or launching,
    )


def _memory(kernels: Sequence[Features], measured_ns: Sequence[float]) -> float | None:
    """See `MeasuredModel.memory`."""
    # All weights count: those that a cache kept are few where a kernel is bound by reading them.
    read = [
        kernel.weight_bytes / ns
        for kernel, ns in zip(kernels, measured_ns, strict=True)
        if kernel.far_weight_bytes >= _FEWEST_FAR
    ]
    return max(read, default=None)


def _corrected(
    below: MeasuredModel, kernels: Sequence[Features], measured_ns: Array
) -> tuple[dict[str, FamilyModel], dict[str, dict[str, float]]]:
    """All families of the model below, corrected; and new weights of those that were measured."""
    parts_below = below.known_parts(kernels)
    if not parts_below:
        return {}, {}
    ratios = Ratios(below.phases)
    target = measured_ns[list(parts_below)]
    left = ratios.fit([*parts_below.values()], target)
    edges, widths = intervals_of(np.log(target), np.abs(left))
    weights = {name: ratios.of_family(name) for name in below.families}
    families = {
        name: replace(family, residual=None, weights=weights[name], edges=edges, widths=widths)
        for name, family in below.families.items()
        if all_families()[name].is_kernel
    }
    if (run := below.families.get(RunFeatures.family)) is not None:
        families[run.family] = run  # until enough runs are measured
    measured = {kernels[i].family: parts[0] for i, parts in parts_below.items()}
    return families, {name: weights[of] for name, of in measured.items()}


def _calibrated(kernels: Sequence[Features], measured_ns: Sequence[float], speed: Speed) -> Speed:
    """The speed with the median kernel's clock, so that families without trees are right too."""
    base = AnalyticModel(speed)
    ratios = [
        ns / base.nanoseconds(kernel)
        for kernel, ns in zip(kernels, measured_ns, strict=True)
        if kernel.is_kernel and kernel.flops > 1e6
    ]
    if not ratios:
        return speed
    factor = statistics.median(ratios)
    return Speed(
        speed.cycles_per_ns / factor, speed.bytes_per_ns, speed.start_ns, speed.handover_ns
    )


_FEWEST = 4
"""Runs that tell what launches take."""

_QUICK = 0.1
"""The share of runs whose time by launches is that of launches alone."""

_STARTS, _LAUNCHES = np.linspace(0, 2, 5), np.linspace(0.7, 1.2, 21)
_WEIGHTS, _HIDDEN = np.linspace(0, 0.4, 9), np.linspace(0, 0.6, 13)
"""Values that are tried, in units of the quick runs' time by launches. A run starts with a launch
and ends with an answer, so its start takes about two launches; runs of equal length cannot tell."""

_DELAYED = 0.75
"""The share of runs that may take longer than predicted."""

_DISTURBED = 0.15
"""Larger errors count like this one: other virtual machines delay the host in some runs."""


@dataclass(frozen=True)
class Launching:
    """What launches take in a run on a GPU, all in nanoseconds.

        run = start + max(launches, kernels alone - launches * hidden)

    The host launches kernels while the device computes, so the slower of the two decides. Tracing
    adds the hidden time to each kernel. The times of traced kernels are
    learned: they are the same in samples and in networks, while a kernel's share of a plain run
    depends on the others. Whatever else the host does only delays runs, so the values are those of
    the quicker runs.
    """

    start_ns: float
    launch_ns: float
    weights_ns: float  # what a launch takes longer if weights are among its arguments
    hidden_ns: float

    def run_ns(self, kernels: Sequence[Features], alone_ns: float) -> float:
        """The time of a run of kernels that take ``alone_ns`` if each is alone."""
        features = LaunchedRunFeatures.make(kernels, round(alone_ns))
        return float(self._runs(*_columns([features]))[0])

    def added_ns(self, kernel: Features, alone_ns: float) -> float:
        """What a kernel adds to a run, if its neighbours are like it."""
        return self.run_ns([kernel], alone_ns) - self.start_ns

    def _runs(self, launches: Array, weighted: Array, alone: Array) -> Array:
        by_host = launches * self.launch_ns + weighted * self.weights_ns
        return self.start_ns + np.maximum(by_host, alone - launches * self.hidden_ns)


def _columns(runs: Sequence[LaunchedRunFeatures]) -> Array:
    return np.asarray([(r.launches, r.weight_launches, r.kernel_ns) for r in runs], float).T


def _fit(runs: Sequence[LaunchedRunFeatures], measured_ns: Sequence[float]) -> Launching:
    """The values with the least relative error of the runs."""
    columns, measured = _columns(runs), np.asarray(measured_ns, dtype=np.float64)
    unit = float(np.quantile(measured / columns[0], _QUICK))

    def error(launching: Launching) -> float:
        off = np.clip(launching._runs(*columns) / measured - 1.0, -_DISTURBED, _DISTURBED)
        return float(np.where(off > 0, _DELAYED * off, (_DELAYED - 1) * off).mean())

    tried = itertools.product(_STARTS, _LAUNCHES, _WEIGHTS, _HIDDEN)
    return min((Launching(*(unit * float(v) for v in values)) for values in tried), key=error)


def launching_of(kernels: Sequence[Features], measured_ns: Sequence[float]) -> Launching | None:
    """The launches of the measured runs; None if they are too few."""
    pairs = zip(kernels, measured_ns, strict=True)
    runs = [(kernel, ns) for kernel, ns in pairs if isinstance(kernel, LaunchedRunFeatures)]
    return _fit(*zip(*runs, strict=True)) if len(runs) >= _FEWEST else None
