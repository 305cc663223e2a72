"""The battery of a device is read there, while a network runs there; its files are scripted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import two_convolutions
from helpers.rpc_processes import Phone, Tracker
from helpers.small_models import scaled_model
from tvm import rpc

import tvm_stretch as ts
from tvm_stretch.base.errors import MeterError
from tvm_stretch.phone import device_recorder


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ts.Model:
    """A model on this process as a device."""
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device_recorder, "SUPPLIES", str(tmp_path / "supplies"))
    return ts.connect(rpc.LocalSession(), "pixel").load(ts.compile(two_convolutions(), TARGET))


@pytest.fixture
def battery(tmp_path: Path) -> Iterator[Path]:
    """A gauge whose current goes back and forth around 0.5 A, at 4 V."""
    (tmp_path / "supplies/usb").mkdir(parents=True)
    (tmp_path / "supplies/usb/type").write_text("USB\n")
    folder = tmp_path / "supplies/bms"
    folder.mkdir()
    for name, text in (("type", "Battery"), ("status", "Discharging"), ("voltage_now", "4000000")):
        (folder / name).write_text(text + "\n")
    (folder / "current_now").write_text("-500000\n")
    ends = threading.Event()

    def move() -> None:
        number = 0
        while not ends.wait(0.01):
            number += 1
            (folder / "new").write_text(f"{-500000 - number % 2}\n")
            (folder / "new").rename(folder / "current_now")

    thread = threading.Thread(target=move)
    thread.start()
    yield folder
    ends.set()
    thread.join()


def test_energy_of_a_run_on_a_device(remote: ts.Model, battery: Path) -> None:
    energy = remote.benchmark(3, energy=True).energy
    assert energy is not None and energy.meters == ("bms",)
    assert energy.watts == pytest.approx(2.0, rel=0.01)
    assert 0 < energy.millijoules < 2000 and energy.runs > 1 and energy.steps_per_second > 1


def test_a_battery_that_charges_says_what_to_do(remote: ts.Model, battery: Path) -> None:
    (battery / "status").write_text("Charging\n")
    with pytest.raises(MeterError, match=r"battery of pixel .* bms, which is Charging; unplug"):
        remote.benchmark(3, energy=True)


def test_no_battery(remote: ts.Model) -> None:
    with pytest.raises(MeterError, match=r"battery of pixel .* got no battery"):
        remote.benchmark(3, energy=True)
    assert remote.benchmark(3).energy is None


@pytest.mark.full
def test_the_battery_behind_the_server_of_a_phone(
    tmp_path: Path, battery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tvm_stretch_rpc` reads the gauge in the process of the session; its files are scripted."""
    pytest.importorskip("tornado")
    monkeypatch.setattr(device_recorder, "SUPPLIES", str(tmp_path / "supplies"))
    tracker = Tracker()
    phone = Phone("--tracker", tracker.address)
    try:
        with ts.connect(tracker.address, "pixel", timeout=60, wait=10.0) as device:
            there = device.load(scaled_model())
            energy = there.benchmark(3, energy=True).energy
            assert energy is not None and energy.meters == ("bms",)
            assert energy.watts == pytest.approx(2.0, rel=0.01)
            assert energy.runs > 1 and energy.steps_per_second > 1
            (battery / "status").write_text("Charging\n")
            with pytest.raises(MeterError, match=r"battery of pixel .* which is Charging; unplug"):
                there.benchmark(3, energy=True)
            assert there.benchmark(3).energy is None
    finally:
        phone.kill()
        tracker.kill()
