"""Energy by meters that are scripted, are files, or are a library that says it is NVML."""

from __future__ import annotations

import itertools
import math
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.base.errors import MeterError
from tvm_stretch.run import meters
from tvm_stretch.run.meters import Meter, find_meters, mean_power, measure_energy, read_meters

NO_NVML = "libno-such-nvml.so"


class Clock:
    """A clock that goes on by a millisecond whenever it is read.

    On a busy machine the thread that reads meters may stand still for longer than a counter takes
    to wrap; with this clock no time passes then.
    """

    def __init__(self) -> None:
        self.ticks = itertools.count()

    def perf_counter(self) -> float:
        return 1e-3 * next(self.ticks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the module under test and of scripted counters."""
    clock = Clock()
    monkeypatch.setattr(meters, "time", clock)
    return clock


def counter(watts: float, step: float = 1e-3, wraps: float = 0.0) -> Meter:
    """A counter of a steady power that moves in steps."""
    start = meters.time.perf_counter() - 1e3 * step

    def read() -> float:
        joules = watts * step * math.floor((meters.time.perf_counter() - start) / step)
        return joules % wraps if wraps else joules

    return Meter("scripted", "joules", read, wraps)


def script(values: list[float], unit: str = "joules") -> Meter:
    """A meter that answers with these values, the last one for ever."""
    return Meter("scripted", unit, lambda: values.pop(0) if values[1:] else values[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("wraps", [0.0, 5.0])
def test_a_run_costs_its_time_by_the_power(clock: Clock, wraps: float) -> None:
    taken: list[float] = []

    def run() -> None:
        begin = clock.perf_counter()
        time.sleep(1e-3)
        taken.append(clock.perf_counter() - begin)

    found = measure_energy(run, [counter(50.0, wraps=wraps)], seconds=0.3)
    assert found.watts == pytest.approx(50.0, rel=0.3)
    assert found.runs == len(taken)
    assert found.millijoules >= 1e3 * found.watts * sum(taken) / len(taken)
    assert "scripted" in str(found)


def test_the_first_value_of_a_counter_may_be_old() -> None:
    """The counter has stood at 7 J for an unknown time; later it gains 2 J in a second."""
    steps = [(0.0, 7.0), (9.0, 8.0), (9.5, 9.0), (10.0, 10.0), (10.5, 11.0), (11.0, 12.0)]
    assert mean_power(counter(1.0), steps) == (2.0, 2.0)


def test_a_counter_may_wrap() -> None:
    steps = [(0.0, 1.0), (1.0, 3.0), (2.0, 1.0), (3.0, 3.0), (4.0, 1.0)]
    assert mean_power(counter(1.0, wraps=4.0), steps) == (2.0, 1.0)


def test_powers_are_held_until_they_change() -> None:
    steps = [(0.0, 2.0), (1.0, 4.0), (2.0, 2.0), (3.0, 4.0), (4.0, 9.0)]
    assert mean_power(script([0.0], "watts"), steps) == (3.0, 1.0)


@pytest.mark.usefixtures("clock")
def test_meters_add_up() -> None:
    one, two = counter(50.0, 1e-6), counter(25.0, 1e-6)
    found = measure_energy(lambda: time.sleep(1e-3), [one, two], seconds=0.2)
    assert found.watts == pytest.approx(75.0, rel=0.3)
    assert found.meters == ("scripted", "scripted")


@pytest.mark.parametrize(
    ("meter", "fault"),
    [
        (script([5.0]), "stands still"),
        (script([3.0], "watts"), "stands still"),
        (script([0.0, 1e-3, 2e-3, 3e-3, 9e9, 9e9 + 1, 9e9 + 2]), "it jumps"),
        (script([9.0, 9.001, 9.002, 9.003, 1.0, 1.001, 1.002]), "it jumps"),
        (script([1.0, 2.0, -3.0, 1.0, 2.0, 3.0], "watts"), "it jumps"),
        (script([1.0, 2.0, 1e9, 1.0, 2.0, 3.0], "watts"), "it jumps"),
        (script([1.0, 2.0, math.nan, 1.0, 2.0, 3.0], "watts"), "it jumps"),
        (Meter("absent", "joules", lambda: Path("/no/such/file").stat().st_size), "No such file"),
    ],
)
def test_faults_of_meters_are_errors(meter: Meter, fault: str) -> None:
    with pytest.raises(MeterError, match=fault):
        measure_energy(lambda: time.sleep(2e-3), [meter], seconds=0.03)


@pytest.mark.parametrize("wrong", [3, [], "rapl", [counter(1.0), None]])
def test_what_is_no_meter_is_refused(wrong: object) -> None:
    with pytest.raises(MeterError, match="expected True, a Meter or several"):
        read_meters(wrong)


def supply(folder: Path, zone: str, **files: str) -> None:
    place = folder / zone
    place.mkdir(parents=True)
    for file, text in files.items():
        (place / file).write_text(text + "\n")


def test_a_battery_that_discharges_is_the_whole_phone(tmp_path: Path) -> None:
    battery = {"type": "Battery", "status": "Discharging"}
    supply(tmp_path / "power_supply", "usb", type="USB", online="0")
    product = {"current_now": "-500000", "voltage_now": "4000000"}
    supply(tmp_path / "power_supply", "a", **battery, **product)
    supply(tmp_path / "power_supply", "b", **battery, power_now="1500000")
    rapl = {"name": "package-0", "energy_uj": "1", "max_energy_range_uj": "2"}
    supply(tmp_path / "powercap", "intel-rapl:0", **rapl)
    found = find_meters(tmp_path, NO_NVML)
    assert [(meter.name, meter.unit, meter.read()) for meter in found] == [
        ("a", "watts", 2.0),
        ("b", "watts", 1.5),
    ]


def test_packages_are_counted_once(tmp_path: Path) -> None:
    zone = {"max_energy_range_uj": "262143328850", "energy_uj": "5000000"}
    supply(tmp_path / "powercap", "intel-rapl:0", name="package-0", **zone)
    supply(tmp_path / "powercap", "intel-rapl:0:0", name="core", **zone)
    (meter,) = find_meters(tmp_path, NO_NVML)
    assert (meter.name, meter.read(), meter.wraps) == ("rapl package-0", 5.0, 262143.32885)


def test_no_meter_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(MeterError, match="no battery; no RAPL; no NVML; make one readable"):
        find_meters(tmp_path, NO_NVML)
    supply(tmp_path / "power_supply", "bat", type="Battery", status="Charging")
    supply(tmp_path / "powercap", "intel-rapl:0", name="package-0")
    with pytest.raises(MeterError, match=r"bat is charging: unplug it; .*energy_uj cannot be read"):
        find_meters(tmp_path, NO_NVML)


NVML = """
static unsigned long long spent;
int nvmlInit_v2(void) { return STARTS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &spent; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
  *mj = spent += 2500; return handle == &spent ? COUNTS : 2; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) {
  *mw = 70500; return handle == &spent ? 0 : 2; }
"""


@pytest.fixture
def nvml(tmp_path: Path) -> Callable[..., str]:
    def build(starts: int = 0, counts: int = 0) -> str:
        source, library = tmp_path / "nvml.c", tmp_path / f"nvml{starts}{counts}.so"
        source.write_text(NVML)
        flags = [f"-DSTARTS={starts}", f"-DCOUNTS={counts}", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
        return str(library)

    return build


def test_gpus_have_counters_or_powers(tmp_path: Path, nvml: Callable[..., str]) -> None:
    (meter,) = find_meters(tmp_path, nvml())
    assert (meter.name, meter.unit) == ("gpu 0", "joules")
    assert meter.read() + 2.5 == meter.read()
    (old,) = find_meters(tmp_path, nvml(counts=3))
    assert (old.unit, old.read()) == ("watts", 70.5)
    with pytest.raises(MeterError, match="NVML does not start"):
        find_meters(tmp_path, nvml(starts=1))


@pytest.mark.usefixtures("clock")
def test_benchmark_measures_energy_if_asked() -> None:
    model = ts.compile(emit(["conv"]), targets=["llvm"], cpu_threads=1)
    assert model.benchmark(3).energy is None
    result = model.benchmark(3, energy=counter(20.0))
    assert result.energy is not None
    assert result.energy.watts == pytest.approx(20.0, rel=0.3)
    assert "mJ a run" in repr(result) and len(result.samples) == 3
