"""Meters of energy with one interface, and the energy of a run by them.

    joules   a counter      RAPL (powercap), NVML since Volta
    watts    a power        batteries of phones (power_supply), which a thread integrates

A thread reads all meters while the network runs again and again. Meters have steps: a counter of
RAPL moves every millisecond, a phone's gauge a few times a second. So energy is the mean power
between the first and the last step, times the time of a run, and the answer says how often the
meter moved. Drivers also fail silently; a meter that stands still, or jumps, is an error.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from tvm_stretch.base.errors import MeterError

_INTERVAL_S = 1e-3
LEAST_STEPS = 4
"""With fewer steps the first and the last one decide everything."""
_SECONDS, _PATIENCE = 1.0, 10
"""A measurement takes a second, and up to this many times as long if a meter is slow."""
_MOST_WATTS = 20_000.0
"""No device that this package compiles for takes more, so a larger value is a fault."""
_NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True)
class Meter:
    """Something that measures energy.

    Attributes:
        name: for people.
        unit: ``"joules"`` since some time in the past, or ``"watts"`` at present.
        read: returns the present value.
        wraps: where a counter of joules begins again at 0; 0 if it does not.

    Examples:
        >>> import time
        >>> fan = ts.Meter("a constant 3 W", "joules", lambda: 3 * time.monotonic())
        >>> energy = ts.compile("resnet18.onnx").benchmark(5, energy=fan).energy
        >>> 2.9 < energy.watts < 3.1
        True
    """

    name: str
    unit: Literal["joules", "watts"]
    read: Callable[[], float]
    wraps: float = 0.0


Meters: TypeAlias = Meter | Sequence[Meter]


@dataclass(frozen=True)
class Energy:
    """What a run costs.

    Attributes:
        millijoules: of one run, of everything that the meters see.
        watts: the mean power while the network runs.
        runs: how many were measured.
        steps_per_second: how often the slowest meter moved.
        meters: their names.
    """

    millijoules: float
    watts: float
    runs: int
    steps_per_second: float
    meters: tuple[str, ...]

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.millijoules:.3g} mJ a run ({self.watts:.3g} W by {', '.join(self.meters)}, "
            f"{self.steps_per_second:.3g} steps a second, {self.runs} runs)"
        )


def read_meters(meter: object) -> tuple[Meter, ...]:
    """The meters that a caller gave: True for those of this machine, a `Meter`, or several."""
    if meter is True:
        return find_meters()
    meters = (meter,) if isinstance(meter, Meter) else meter
    if isinstance(meters, Sequence) and meters and all(isinstance(one, Meter) for one in meters):
        return tuple(meters)
    raise MeterError(
        f"expected True, a Meter or several for the meter, got {meter!r:.100}; True takes the "
        "meters of this machine"
    )


def find_meters(root: str | Path = "/sys/class", nvml: str = _NVML) -> tuple[Meter, ...]:
    """The meters of this machine: its battery, or else its packages and NVIDIA's GPUs."""
    why: list[str] = []
    battery = _batteries(Path(root, "power_supply"), why)
    meters = battery or (*_packages(Path(root, "powercap"), why), *_gpus(nvml, why))
    if not meters:
        raise MeterError(
            f"expected a meter of energy, got none: {'; '.join(why)}; make one readable, or give a "
            "Meter of your own"
        )
    return tuple(meters)


class Recorder(Protocol):
    """Something that reads meters between its start and its end."""

    error: MeterError | None

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def has_moved(self) -> bool:
        """Whether every meter moved often enough."""

    def powers(self) -> list[tuple[float, float]]:
        """The mean watts of each meter, and how often it moved in a second."""

    def names(self) -> tuple[str, ...]:
        """The names of the meters."""


def measure_energy(
    run: Callable[[], object],  # a call of it runs the network
    meters: Sequence[Meter] | Recorder,  # of this machine, or what reads them elsewhere
    seconds: float = _SECONDS,  # how long, if the meters move often enough
    at_once: int = 1,  # how often a call of `run` runs the network
) -> Energy:
    """Run again and again, and read the meters meanwhile.

    Raises:
        MeterError: a meter fails, jumps or stands still.
    """
    recorder = _Recorder(meters) if isinstance(meters, Sequence) else meters
    runs = 0
    begin = time.perf_counter()
    with recorder:
        while True:
            run()
            runs += at_once
            elapsed = time.perf_counter() - begin
            if recorder.error or (
                elapsed >= seconds and (recorder.has_moved() or elapsed > _PATIENCE * seconds)
            ):
                break
    powers = recorder.powers()
    watts = sum(power for power, _ in powers)
    steps = min(rate for _, rate in powers)
    return Energy(1e3 * watts * elapsed / runs, watts, runs, steps, recorder.names())


class _Recorder:
    """A thread that reads meters, and keeps the times at which their values change."""

    def __init__(self, meters: Sequence[Meter]) -> None:
        self.meters = meters
        self.steps: list[list[tuple[float, float]]] = [[] for _ in meters]
        self.error: MeterError | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def has_moved(self) -> bool:
        return all(len(steps) > LEAST_STEPS for steps in self.steps)

    def names(self) -> tuple[str, ...]:
        return tuple(meter.name for meter in self.meters)

    def powers(self) -> list[tuple[float, float]]:
        if self.error is not None:
            raise self.error
        return [mean_power(*pair) for pair in zip(self.meters, self.steps, strict=True)]

    def _read(self) -> None:
        while not self._end.is_set():
            for meter, steps in zip(self.meters, self.steps, strict=True):
                try:
                    value = float(meter.read())
                except (OSError, ValueError, ArithmeticError) as error:
                    self.error = MeterError(
                        f"expected a value of the meter {meter.name}, got {error}; is its driver "
                        "there, and may this user read it?"
                    )
                    return
                if not steps or value != steps[-1][1]:
                    steps.append((time.perf_counter(), value))
            self._end.wait(_INTERVAL_S)


def mean_power(meter: Meter, steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean watts between the first and the last step, and steps in a second."""
    # the first value may have stood there for long
    steps = steps[1:] if meter.unit == "joules" else steps
    if len(steps) < LEAST_STEPS:
        raise MeterError(
            f"expected a meter that moves for {meter.name}, got {len(steps)} steps while the "
            "network ran; it stands still, or needs longer runs"
        )
    seconds = steps[-1][0] - steps[0][0]
    joules = 0.0
    for (start, before), (end, after) in pairwise(steps):
        gained = (after - before) if meter.unit == "joules" else (end - start) * before
        gained += meter.wraps if meter.unit == "joules" and gained < 0 else 0.0
        # a counter that is read late catches up in its next step
        most = _MOST_WATTS * max(end - start, seconds / len(steps))
        is_sane = math.isfinite(after) and (meter.unit == "joules" or 0 <= after <= _MOST_WATTS)
        if not (is_sane and 0 <= gained <= most):
            raise MeterError(
                f"expected a steady meter for {meter.name}, got {before:g} and then {after:g} "
                f"{meter.unit} in {end - start:.3g} s; it jumps, so measure with another one"
            )
        joules += gained
    return joules / seconds, (len(steps) - 1) / seconds


# --- meters of this machine -----------------------------------------------------------------------


def _batteries(folder: Path, why: list[str]) -> list[Meter]:
    """Batteries that discharge: what all of a phone takes."""
    batteries = []
    for supply in sorted(folder.glob("*")):
        if _text(supply / "type") != "Battery":
            continue
        status = _text(supply / "status")
        if status != "Discharging":
            why.append(f"the battery {supply.name} is {status.lower() or 'silent'}: unplug it")
        elif (supply / "power_now").exists():
            batteries.append(Meter(supply.name, "watts", _reader([supply / "power_now"])))
        else:
            product = [supply / "current_now", supply / "voltage_now"]
            batteries.append(Meter(supply.name, "watts", _reader(product)))
    if not batteries and not why:
        why.append("no battery")
    return batteries


def _reader(files: Sequence[Path]) -> Callable[[], float]:
    """The product of files in millionths; drivers differ in the sign of a current."""
    return lambda: math.prod(abs(float(file.read_text())) / 1e6 for file in files)


def _packages(folder: Path, why: list[str]) -> list[Meter]:
    """RAPL's counters of whole packages; parts of a package are in its sum."""
    packages = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") > 1:
            continue
        counter, limit = zone / "energy_uj", _text(zone / "max_energy_range_uj")
        if _text(counter) and limit:
            name = f"rapl {_text(zone / 'name')}"
            packages.append(Meter(name, "joules", _reader([counter]), float(limit) / 1e6))
        else:
            why.append(f"{counter} cannot be read: root may allow it (chmod a+r)")
    if not packages:
        why.append("no RAPL")
    return packages


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _gpus(library: str, why: list[str]) -> list[Meter]:
    """NVIDIA's GPUs: their counters of millijoules, or their powers before Volta."""
    try:
        nvml = ctypes.CDLL(library)
        count = ctypes.c_uint()
        failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    except (OSError, AttributeError):
        why.append("no NVML")
        return []
    if failed:
        why.append(f"NVML does not start (error {failed})")
        return []
    return [_gpu(nvml, index) for index in range(count.value)]


def _gpu(nvml: ctypes.CDLL, index: int) -> Meter:
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))

    def ask(function: str, kind: Callable[[], ctypes.c_uint | ctypes.c_ulonglong]) -> float:
        value = kind()
        failed = getattr(nvml, function)(handle, ctypes.byref(value))
        if failed:
            raise MeterError(f"expected a value of {function}, got error {failed}; try nvidia-smi")
        return value.value / 1e3

    def joules() -> float:
        return ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)

    try:
        joules()
    except (MeterError, AttributeError):
        return Meter(f"gpu {index}", "watts", lambda: ask("nvmlDeviceGetPowerUsage", ctypes.c_uint))
    return Meter(f"gpu {index}", "joules", joules)
