"""Costs for the search: kernels, parts of kernels, hand-overs, and slower kernels in company.

The cost of a part of a kernel lies on a straight line through the whole and the half:

    conv 64 -> 128 channels on cpu: 1.00 ms, 64 -> 64 channels: 0.52 ms    ->    48 of 128: 0.40 ms

So a search that needs hundreds of ratios asks the cost model twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm_stretch.network.operator_graph import Group
from tvm_stretch.plan.cost.fingerprint import default_folder, fingerprint
from tvm_stretch.plan.cost.generic_features import TransferFeatures
from tvm_stretch.plan.cost.measured_model import MeasuredModel, load_cost_model
from tvm_stretch.plan.cost.prediction import AnalyticModel, CostModel, Prediction
from tvm_stretch.plan.cost.profile import Power
from tvm_stretch.plan.scheduling.problem import TransferCost
from tvm_stretch.plan.search.objective import Cost
from tvm_stretch.plan.search.priced_kernels import Kernels
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.kernels.layers import Along
from tvm_stretch.targets.processor import Operators, Processor

_SIZES = (0, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
_MEETING_NS, _CACHED_PER_NS = 4_000, 100.0
"""Processors that are cores of one CPU: a meeting and a launch, and bytes through shared caches."""

_GPU_ROUND = 24_000_000
"""Different bytes that most networks touch beside a kernel's own weights: fewer than the cache of a
large GPU keeps. `plan/measuring/bench.py` counts those of networks that are measured."""

_MEBI = 1 << 20
_COPIED_PER_NS = 8.0  # bytes that a core copies in a nanosecond, both directions together


@dataclass
class Costs:
    """Nanoseconds that the search predicts."""

    # those that operators may be placed on; costs name them by their place
    processors: tuple[Processor, ...]
    models: Mapping[str, CostModel]  # the cost model of each of them, by name
    # nanoseconds from the end of a kernel to the start of its reader elsewhere, by places of
    # writer and reader and bytes
    hand_over: Callable[[int, int, int], int]
    together: tuple[float, ...]  # how much longer kernels take while other processors work
    source: str  # where the numbers come from, for people
    trusted: bool  # whether they were measured where it is to run
    # nanoseconds that each region takes beside its kernels, by place: those of engines
    regions: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()  # the factor of all kernels of each processor
    power: Power | None = None  # of the device; None if it is not known
    # predictions of kernels, and costs of groups and of their halves, by place
    _memo: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    kernels: Kernels = field(init=False)

    def __post_init__(self) -> None:
        """Costs are not corrected at first."""
        self.factors = self.factors or (1.0,) * len(self.processors)
        self.regions = self.regions or (0,) * len(self.processors)
        self.kernels = Kernels(self.processors)

    def millijoules(self, place: int, ns: int) -> float | None:
        """The energy of a processor's work, without the idle device; None if it is not known."""
        return None if self.power is None else self.power.watts[place] * ns / 1e6

    def cost(self, ns: int, busy: Sequence[int], moved: int | None = None) -> Cost:
        """The cost of a run; see `Power.millijoules`."""
        power = self.power
        energy = None if power is None else power.millijoules(ns, busy, moved or 0)
        return Cost(ns, energy, moved)

    def whole(self, group: Group, place: int) -> int | None:
        """Nanoseconds of a kernel on a processor; None if it refuses one of its operators."""
        if (key := (group, place)) not in self._memo:
            supported = self.kernels.supported(group, place)
            self._memo[key] = (
                self.sum(self.kernels.whole(group, place), place) if supported else None
            )
        nanoseconds: int | None = self._memo[key]
        return nanoseconds

    def sum(self, kernels: Sequence[Features], place: int) -> int:
        """Kernels on a processor."""
        return sum(answer.nanoseconds for answer in self._predict(place, kernels))

    def slower(self, kernels: Sequence[Features], place: int) -> float:
        """How much longer kernels take on a processor while the others work."""
        return self.together[place] * self.models[self.processors[place].name].crowded(kernels)

    def ask_for(
        self,
        groups: Sequence[Group],
        # groups of which halves are needed, too, and the axis along which they are cut
        halves: Mapping[Group, Sequence[Along]] | None = None,
    ) -> None:
        """Ask the models for many kernels at once, which is much faster than one by one."""
        for place in range(len(self.processors)):
            wanted: dict[Features, None] = {}
            for group in groups:
                if not self.kernels.supported(group, place):
                    continue
                wanted.update(dict.fromkeys(self.kernels.whole(group, place)))
                for along in (halves or {}).get(group, ()):
                    half = self.kernels.half(group, place, along)
                    wanted.update(dict.fromkeys(half[0] if half else ()))
            self._predict(place, list(wanted))

    def ask_for_kernels(self, placed: Iterable[tuple[Sequence[Features], int]]) -> None:
        """Like `ask_for`, for kernels with their places."""
        by_place: dict[int, dict[Features, None]] = {}
        for kernels, place in placed:
            by_place.setdefault(place, {}).update(dict.fromkeys(kernels))
        for place, wanted in by_place.items():
            self._predict(place, list(wanted))

    def unlike_measured(self, groups: Sequence[Group]) -> int:
        """The number of these kernels that are unlike all measured ones on some processor."""

        def is_unlike(group: Group, place: int) -> bool:
            supported = self.kernels.supported(group, place)
            kernels = self.kernels.whole(group, place) if supported else ()
            return any(answer.out_of_range for answer in self._predict(place, kernels))

        places = range(len(self.processors))
        return sum(any(is_unlike(group, place) for place in places) for group in groups)

    def corrected(self, factors: Sequence[float], together: float = 1.0) -> Costs:
        """The same costs with a factor for each processor, and one for all while others work."""
        slower = replace(
            self,
            factors=tuple(a * b for a, b in zip(self.factors, factors, strict=True)),
            together=tuple(ratio * together for ratio in self.together),
            source=f"{self.source}, corrected by a run",
            _memo={},
        )
        slower.kernels = self.kernels
        return slower

    def with_pauses(self, shares: Sequence[float]) -> Costs:
        """The same costs where each processor works for a share of the time and then pauses.

        Its work takes longer accordingly, and needs the same energy.
        """
        if all(share == 1 for share in shares):
            return self
        slower = self.corrected([1 / share for share in shares])
        if (power := self.power) is not None:
            watts = tuple(a * b for a, b in zip(power.watts, shares, strict=True))
            slower.power = replace(power, watts=watts)
        slower.source = self.source
        return slower

    def part(self, group: Group, place: int, along: Along, fraction: float) -> int:
        """Nanoseconds of a part of a kernel, on a processor that supports it, while others work."""
        whole = self.whole(group, place)
        assert whole is not None
        if (key := (group, place, along)) not in self._memo:
            self._memo[key] = self._half(group, place, along, whole)
        half, share = self._memo[key]
        line = whole - (whole - half) * (1 - fraction) / (1 - share)
        slower = self.slower(self.kernels.whole(group, place), place)
        return round(slower * max(half * fraction, line))

    def copy(self, place: int, size: int) -> int:
        """Reading and writing ``size`` bytes, as slices, concatenations and sums do."""
        return self.start(place) + round(2 * size / _COPIED_PER_NS)

    def meeting(self, places: Iterable[int], size: int) -> int:
        """Nanoseconds until all of these processors have the tensor that they wrote together.

        Each receives a part from each of the others, one after the other, as in schedules.
        """
        there = list(places)
        part = size // len(there)

        def begins(q: int) -> int:
            return self.regions[q] + sum(self.hand_over(p, q, part) for p in there if p != q)

        return max(map(begins, there))

    def enter(self, writer: int, reader: int, size: int) -> int:
        """A hand-over, and the start of the region that waits for it.

        Searches that have not formed regions yet count with it: whatever waits begins a region.
        """
        region = 0 if writer == reader else self.regions[reader]
        return self.hand_over(writer, reader, size) + region

    def start(self, place: int) -> int:
        """A kernel without work."""
        return round(self.models[self.processors[place].name].start_ns)

    def transfers(self, *, formed: bool = False) -> list[list[TransferCost]]:
        """Hand-overs in the form that schedulers take.

        Args:
            formed: whether regions are known, so that their starts are counted with their kernels.
        """
        places, cost = range(len(self.processors)), self.hand_over if formed else self.enter
        return [
            [TransferCost(tuple((s, cost(p, q, s)) for s in _SIZES)) for q in places]
            for p in places
        ]

    def _predict(self, place: int, kernels: Sequence[Features]) -> list[Prediction]:
        """What each kernel adds to a run."""
        missing = [kernel for kernel in kernels if (place, kernel) not in self._memo]
        model, factor = self.models[self.processors[place].name], self.factors[place]
        asked = [self._in_a_round(place, kernel) for kernel in missing]
        answers = model.predict_all(asked) if asked else []
        for kernel, answer in zip(missing, answers, strict=True):
            ns = round(factor * model.added_ns(kernel, answer.nanoseconds))
            self._memo[place, kernel] = replace(answer, nanoseconds=ns)
        return [self._memo[place, kernel] for kernel in kernels]

    def _in_a_round(self, place: int, kernel: Features) -> Features:
        """The kernel in a network of usual size."""
        if self.processors[place].machine.gpu is None:
            return kernel
        return replace(kernel, round_bytes=_GPU_ROUND + kernel.weight_bytes)

    def _half(self, group: Group, place: int, along: Along, whole: int) -> tuple[int, float]:
        """Nanoseconds of the half, and its share of the group."""
        half = self.kernels.half(group, place, along)
        if half is None:
            return (whole + self.start(place)) // 2, 0.5
        kernels, fraction = half
        return min(whole, self.sum(kernels, place)), fraction


def not_asked_for(host: Processor) -> Processor:
    """The CPU if it is not among the targets: it only holds inputs and outputs."""
    refusing = Operators(refuse=lambda _: "it is not among the targets")
    return replace(host, operators=refusing)


def planning_costs(processors: Sequence[Processor], folder: str | Path | None = None) -> Costs:
    """Costs by `ts.tune.measure` on their machine, or typical speeds of such processors.

    Args:
        processors: the CPU first.
        folder: contains the models; by default the folder of `ts.tune.measure`.

    Raises:
        CostModelError: a file of `ts.tune.measure` is damaged, of another version or device.
    """
    folder, trained = _trained_models(processors, folder)
    measured = f"measured on {processors[0].hardware.device or 'this machine'} ({folder})"
    typical: dict[str, CostModel] = {p.name: AnalyticModel(p.speed) for p in processors}
    together = max((model.together_ratio for model in trained.values()), default=1.0)
    return Costs(
        processors=tuple(processors),
        models={**typical, **trained},
        hand_over=_hand_overs(processors, trained),
        together=(together,) * len(processors),
        source=measured if trained else _UNMEASURED,
        trusted=bool(trained),
        regions=tuple(round(processor.speed.region_ns) for processor in processors),
    )


_UNMEASURED = "typical of such processors, nothing was measured there (ts.tune.measure)"


def _hand_overs(
    processors: Sequence[Processor], trained: Mapping[str, MeasuredModel]
) -> Callable[[int, int, int], int]:
    """Nanoseconds of a hand-over, by places of writer and reader and bytes."""
    speeds = [processor.speed for processor in processors]
    lines = [_transfer_lines(trained.get(processor.name)) for processor in processors]

    @lru_cache(maxsize=1 << 16)
    def hand_over(writer: int, reader: int, size: int) -> int:
        if writer == reader:
            return 0
        # Transfers between two devices are not measured: at worst they go through the CPU.
        ways = [lines[writer].get((1, 0))] if writer else []
        ways += [lines[reader].get((0, 1))] if reader else []
        times = [way[0] + way[1] * size for way in ways if way is not None]
        if len(times) == len(ways):
            return round(sum(times))
        if processors[writer].hardware.on_host_cores and processors[reader].hardware.on_host_cores:
            return round(_MEETING_NS + size / _CACHED_PER_NS)
        slower = min(speeds[writer].bytes_per_ns, speeds[reader].bytes_per_ns)
        return round(max(speeds[writer].handover_ns, speeds[reader].handover_ns) + size / slower)

    return hand_over


def _transfer_lines(model: MeasuredModel | None) -> dict[tuple[int, int], tuple[float, float]]:
    """Measured transfers from the CPU, (0, 1), and to it: time without bytes, and per byte."""
    if model is None or TransferFeatures.family not in model.families:
        return {}
    lines = {}
    for pair in ((0, 1), (1, 0)):
        none, much = model.nanoseconds([TransferFeatures.make(size, *pair) for size in (0, _MEBI)])
        lines[pair] = (float(none), float(much - none) / _MEBI)  # models are lines
    return lines


def _trained_models(
    processors: Sequence[Processor], folder: str | Path | None
) -> tuple[Path | None, dict[str, MeasuredModel]]:
    """The folder of `ts.tune.measure` and its models; none unless each processor has one.

    Without a folder only processors of this machine or of a device reached by RPC can have models,
    because others are only known by their target.
    """
    place = None if folder is None else Path(folder)
    if folder is None and all(p.hardware.runs_here or p.hardware.device for p in processors):
        place = default_folder(processors[0])
    paths = {p.name: (place or Path()) / f"{p.name}.json" for p in processors}
    if place is None or not all(os.access(path, os.F_OK) for path in paths.values()):
        return place, {}
    return place, {
        p.name: _load(path, path.stat().st_mtime_ns, json.dumps(fingerprint(p), sort_keys=True))
        for p, path in zip(processors, paths.values(), strict=True)
    }


@lru_cache(maxsize=8)
def _load(path: Path, _modified: int, device: str) -> MeasuredModel:
    """Load a model, which takes half a second, once per version of a file."""
    return load_cost_model(path, json.loads(device))
