"""``ts.tune.calibrate()`` makes a profile of your own phone from latencies of a few networks.

    model,processor,latency_ms             works of each network
    R-34,cpu,21.692                    +   R-34: 33 dense, 4 pointwise,   ──>  profile, residuals
    R-34,gpu,36.517                        3.66e9 multiply-adds, ..

Nine numbers describe a processor, but there may be only six networks. Therefore the numbers' ratios
are assumed to be `TYPICAL` unless the latencies contradict: least squares of relative errors, in
which a number that is 1 + x times its typical value costs as much as a latency that is off by
`sqrt(STIFFNESS)` times x. Among all typical processors, slow and fast, the one that explains most
is used. No number becomes negative, or more than ten times its typical value.

Each network runs on one processor, by any engine. Kernels that `ts.tune.measure(device=...)` timed
can replace the table, each as a network of one kernel. Names, targets, precisions and transfers,
which latencies of one processor do not determine, come from another profile.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, lsq_linear, minimize_scalar

import tvm_stretch.targets.processors  # noqa: F401  registers all kinds of processors
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import as_path, read_text
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import Progress, count, reporting
from tvm_stretch.plan.cost.profile import BYTES, ProcessorProfile, Profile
from tvm_stretch.plan.cost.profile_file import load_profile, write_profile
from tvm_stretch.plan.measuring.dataset import Dataset, require_networks
from tvm_stretch.plan.search.twin import twin_processors, works_of
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import HOST
from tvm_stretch.targets.kernels.features import Work
from tvm_stretch.targets.registry import nicknames

Array = np.ndarray[Any, np.dtype[np.float64]]

TYPICAL = MappingProxyType(
    {
        "image": 3.0,  # three channels fill no vector
        "dense": 1.0,
        "pointwise": 1.0,
        "grouped": 1.0,
        "depthwise": 8.0,  # a loaded value is used nine times, not once for each channel
        "value": 25.0,  # roofline: 150 multiply-adds and 6 values a nanosecond
        "weight": 25.0,
        "group": 12e6,  # 60 us at 200 multiply-adds a nanosecond
        "kernel": 4e6,
    }
)
"""Typical costs of one unit on a phone's processor, in multiply-adds of large convolutions."""

STIFFNESS = 0.1
_FARTHEST = 10.0
_RANGE = math.log(8.0)


def processor_of(word: str) -> str:
    """The name of a processor for its name in tables."""
    others = {word: name for word, name in nicknames().items() if name != HOST}
    return ({"dsp": "hexagon"} | others).get(word, word)


@dataclass(frozen=True)
class Latency:
    """A measured latency."""

    network: str  # its name
    processor: str  # ran the whole network
    ms: float  # milliseconds
    part: str = ""  # the measured part of the network; empty for all of it

    @property
    def label(self) -> str:
        """The name of the network or part that ran."""
        return f"{self.network}, {self.part}" if self.part else self.network


@dataclass(frozen=True)
class Residual:
    """A latency and the predictions of two profiles."""

    latency: Latency  # the measurement
    fitted_ms: float  # prediction of the profile
    # prediction of a profile of the other networks; None if there are none
    left_out_ms: float | None

    @property
    def error(self) -> float:
        """Relative error of the profile."""
        return self.fitted_ms / self.latency.ms - 1

    @property
    def left_out_error(self) -> float | None:
        """Relative error of the profile of the other networks."""
        return None if self.left_out_ms is None else self.left_out_ms / self.latency.ms - 1


@dataclass(frozen=True)
class Calibration:
    """A profile and how well it fits; printing it shows the residuals."""

    profile: Profile
    residuals: tuple[Residual, ...]

    @property
    def left_out_errors(self) -> list[float]:
        """Absolute relative errors for whole networks, predicted by the other networks."""
        whole = [r.left_out_error for r in self.residuals if not r.latency.part]
        return [abs(error) for error in whole if error is not None]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the profile, for `compile` and `predict`."""
        write_profile(self.profile, path)

    def __str__(self) -> str:
        """One line for each latency."""
        head = "| network | processor | measured ms | fitted ms | off | left out ms | off |"
        lines = [head, f"|{' --- |' * 7}"]
        for r in self.residuals:
            left = "- | -"
            if r.left_out_ms is not None and r.left_out_error is not None:
                left = f"{r.left_out_ms:.2f} | {r.left_out_error:+.1%}"
            lines.append(
                f"| {r.latency.label} | {r.latency.processor} | {r.latency.ms:.2f} | "
                f"{r.fitted_ms:.2f} | {r.error:+.1%} | {left} |"
            )
        errors = self.left_out_errors
        if errors:
            lines.append(
                f"\nleft out: mean {np.mean(errors):.1%}, at most {max(errors):.1%} off, of "
                f"{len(errors)} latencies"
            )
        return "\n".join(lines)


def calibrate_profile(
    latencies: Sequence[Latency],  # of networks, each on one processor
    # the kernels of each network (or part), by `Latency.label`
    works: Mapping[str, Sequence[Work]],
    # provides everything that is not calibrated: names, precisions, targets, transfers, and
    # processors without latencies
    like: Profile,
    # how much the numbers' typical ratios weigh; less for an unusual processor
    stiffness: float = STIFFNESS,
) -> Calibration:
    """The profile of the device on which the latencies were measured.

    Raises:
        CostModelError: the processor or network of a latency is unknown.
    """
    processors = dict(like.processors)
    residuals = []
    for name in dict.fromkeys(latency.processor for latency in latencies):
        own = [latency for latency in latencies if latency.processor == name]
        processor = like.processor(name)
        processors[name] = _fitted(processor, own, works, stiffness)
        without = {
            network: _fitted(processor, others, works, stiffness)
            for network in dict.fromkeys(latency.network for latency in own)
            if (others := [latency for latency in own if latency.network != network])
        }
        for latency in own:
            left_out = without.get(latency.network)
            listed = _works_of(latency, works)
            residuals.append(
                Residual(
                    latency,
                    _milliseconds(processors[name], listed),
                    None if left_out is None else _milliseconds(left_out, listed),
                )
            )
    profile = replace(like, processors=MappingProxyType(processors))
    return Calibration(profile, tuple(residuals))


def read_latencies(path: Path) -> list[Latency]:
    """The rows of a table with the columns ``model``, ``processor``, ``latency_ms``."""
    # Excel begins a table with a byte order mark.
    text = read_text(path, "a readable table of latencies", CostModelError, "utf-8-sig")
    reader = csv.DictReader(io.StringIO(text))
    try:
        given_columns = reader.fieldnames or ()
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise CostModelError(
            f"expected comma-separated values in {path}, got {error} in line "
            f"{reader.line_num + 1}; correct it"
        ) from error
    columns = ("model", "processor", "latency_ms")
    missing = [name for name in columns if name not in given_columns]
    if missing:
        raise CostModelError(
            f"expected the columns {', '.join(columns)} in {path}, got "
            f"{', '.join(given_columns) or 'nothing'}; add {missing[0]}"
        )
    latencies: dict[tuple[str, str], Latency] = {}
    for line, row in rows:
        where = f"line {line} of {path}"
        model, given = row["model"], row["processor"]
        latency = Latency(model, processor_of(given), _latency(row["latency_ms"], where))
        key = (latency.network, latency.processor)
        if key in latencies:
            raise CostModelError(
                f"expected one latency of each network and processor, got another of {model} on "
                f"{given} in {where}; keep the one that you trust"
            )
        latencies[key] = latency
    if not latencies:
        raise CostModelError(f"expected rows in {path}, got none; measure some networks")
    return list(latencies.values())


def _latency(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise CostModelError(
            f"expected a positive number of milliseconds for latency_ms of {where}, got {text!r}; "
            "correct it"
        )
    return value


# --- the fit --------------------------------------------------------------------------------------


def _works_of(latency: Latency, works: Mapping[str, Sequence[Work]]) -> Sequence[Work]:
    if latency.label not in works:
        raise CostModelError(
            f"expected networks of all latencies, got none for {latency.label!r}; the networks are "
            f"{', '.join(works) or 'none'}: name its file, or remove its rows"
        )
    return works[latency.label]


def _milliseconds(processor: ProcessorProfile, works: Sequence[Work]) -> float:
    """The time of one region."""
    return processor.region_us / 1e3 + sum(processor.nanoseconds(work) for work in works) / 1e6


def _amounts(works: Sequence[Work]) -> Array:
    """The amount of each of `TYPICAL` in these works."""
    amounts = dict.fromkeys(TYPICAL, 0.0)
    for work in works:
        if work.family in Work.families:
            amounts[work.family] += work.multiply_adds
        amounts["value"] += work.values * (2 if work.family == "grouped" else 1)
        amounts["weight"] += work.weights
        amounts["group"] += work.groups
        amounts["kernel"] += work.kernels
    return np.array(list(amounts.values()))


def _fitted(
    processor: ProcessorProfile,
    latencies: Sequence[Latency],
    works: Mapping[str, Sequence[Work]],
    stiffness: float,
) -> ProcessorProfile:
    """The processor with the numbers that explain its latencies best."""
    nanoseconds = np.array([latency.ms * 1e6 for latency in latencies])
    amounts = np.array([_amounts(_works_of(latency, works)) for latency in latencies])
    relative = amounts / nanoseconds[:, None] * np.array(list(TYPICAL.values()))
    wanted = 1 - 1e3 * processor.region_us / nanoseconds  # what its kernels take of a latency
    ratios = relative.sum(axis=1)
    middle = float(np.log(ratios @ wanted / (ratios @ ratios)))
    # The speed of the typical processor that needs the least change.
    best = minimize_scalar(
        lambda pace: _multiples(relative * math.exp(pace), wanted, stiffness).cost,
        bounds=(middle - _RANGE, middle + _RANGE),
        method="bounded",
        options={"xatol": 0.01},
    )
    pace = math.exp(best.x)
    multiples = (_multiples(relative * pace, wanted, stiffness).x * pace).tolist()
    costs = {
        name: typical * multiple
        for (name, typical), multiple in zip(TYPICAL.items(), multiples, strict=True)
    }
    size = BYTES[processor.precision]
    return replace(
        processor,
        multiply_adds_per_ns=MappingProxyType({f: 1 / costs[f] for f in Work.families}),
        activation_bytes_per_ns=size / costs["value"],
        weight_bytes_per_ns=size / costs["weight"],
        kernel_us=costs["kernel"] / 1e3,
        group_us=costs["group"] / 1e3,
    )


def _multiples(relative: Array, wanted: Array, stiffness: float) -> OptimizeResult:
    """Multiples of the typical numbers that explain the latencies and are near 1."""
    count = relative.shape[1]
    weight = math.sqrt(stiffness)
    rows = np.vstack([relative, weight * np.eye(count)])
    results = np.concatenate([wanted, np.full(count, weight)])
    return lsq_linear(rows, results, bounds=(1 / _FARTHEST, _FARTHEST))


# --- the command ----------------------------------------------------------------------------------


@named_arguments
def calibrate(
    latencies: str | os.PathLike[str],
    networks: Mapping[str, object] | None = None,
    *,
    name: str,
    like: str | os.PathLike[str] = "snapdragon-855",
    progress: Progress | None = None,
) -> Calibration:
    """Fit the profile of a measured device.

    Args:
        latencies: a table (.csv) with the columns ``model``, ``processor``, ``latency_ms``, or a
            folder that `ts.tune.measure` has filled.
        networks: the networks of the table by name, each as `compile` takes it; not for a folder.
        name: what the device is called.
        like: a profile with the facts that latencies do not determine, such as transfers.
        progress: as for `compile`.

    Raises:
        CostModelError: the table, the folder or the profile is invalid.

    Examples:
        >>> import csv
        >>> rows = [["model", "processor", "latency_ms"], ["R-18", "cpu", 23.5]]
        >>> with open("phone.csv", "w") as file:
        ...     csv.writer(file).writerows(rows)
        >>> found = ts.tune.calibrate("phone.csv", {"R-18": "resnet18.onnx"}, name="my-phone")
        >>> found.write("my-phone.toml")
        >>> ts.plan_for("resnet18.onnx", device="my-phone.toml").processors
        ('cpu', 'opencl', 'hexagon')
    """
    base = load_profile(like)
    path = as_path(latencies, "latencies")
    require_networks(networks)
    with reporting(progress), compiling():
        if path.is_dir():
            rows, works = _measured(path, base)
            source = f"kernels that ts.tune.measure timed, {len(rows)} in all"
        else:
            rows = read_latencies(path)
            works = works_of_networks(networks or {}, base, [row.network for row in rows])
            source = f"latencies of whole networks on one processor, {len(rows)} in all"
        source += f"; targets, precisions and transfers as in {base.device}"
        return calibrate_profile(rows, works, replace(base, device=name, source=source))


def works_of_networks(
    networks: Mapping[str, object], like: Profile, wanted: Sequence[str]
) -> dict[str, list[Work]]:
    """The work of the kernels of the wanted networks."""
    (host, *_), _ = twin_processors(like, ["cpu"])
    names = [name for name in dict.fromkeys(wanted) if name in networks]
    found = {}
    for number, name in enumerate(names, start=1):
        count("network", number, len(names))
        groups = works_of(load_network(networks[name]), host)
        found[name] = [work for works in groups.values() for work in works]
    return found


def _measured(folder: Path, base: Profile) -> tuple[list[Latency], dict[str, list[Work]]]:
    """Timed kernels as latencies; the kernels of one network form one entry."""
    rows: list[Latency] = []
    works: dict[str, list[Work]] = {}
    for processor in base.processors:
        path = folder / f"{processor}.jsonl"
        if not path.exists():
            continue
        for number, row in enumerate(Dataset.open(path).rows):
            if row.features.is_kernel:
                network = f"{processor}: {row.network or f'samples {row.batch}'}"
                rows.append(Latency(network, processor, row.nanoseconds / 1e6, f"{number}"))
                works[rows[-1].label] = [row.features.device_work()]
    if not rows:
        raise CostModelError(
            f"expected measurements of {' or '.join(base.processors)} in {folder}, got none; run "
            "ts.tune.measure(..., cache=...) first"
        )
    return rows, works
