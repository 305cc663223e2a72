"""Fleets: scripted phones that drop and return, and two servers of this machine."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.rpc_processes import Phone, Tracker

import tvm_stretch as ts
from tvm_stretch.base.errors import CostModelError, DeviceError, InputError
from tvm_stretch.phone import fleet as fleets
from tvm_stretch.phone.fleet import Batches, Crew, Post, carry_out
from tvm_stretch.plan.measuring.campaign import measuring_into
from tvm_stretch.plan.measuring.dataset import Dataset
from tvm_stretch.plan.measuring.samples import Sample
from tvm_stretch.plan.measuring.timing import Stopwatch

SMALL = (Sample("conv", 8, (6, 6), 8, epilogue="relu"), Sample("dense", 16, (1, 1), 8))

KERNELS = 12
"""Of a scripted batch."""


class Work:
    """All that scripted phones do; the clock runs as they do it, whatever else the machine does."""

    def __init__(self, kernels: int, seconds: float) -> None:
        self.kernels, self.seconds = kernels, seconds
        self.rows: dict[str, list[tuple[int, int]]] = {}
        self.drops = 0
        self.lock = threading.Lock()
        self.all_there = threading.Event()

    def monotonic(self) -> float:
        return self.seconds * sum(map(len, self.rows.values())) / self.kernels

    def sleep(self, _seconds: float) -> None:
        threading.Event().wait(0.001)


class ScriptedPhone:
    """Drops now and then, in mid-batch; is hot now and then."""

    def __init__(self, work: Work, key: str, dice: random.Random) -> None:
        self.work, self.key, self.dice = work, key, dice

    def measure(self, number: int, _end: float) -> None:
        rows = [(number, kernel) for kernel in range(KERNELS)]
        if self.dice.random() < 0.02:
            with self.work.lock:
                self.work.drops += 1
            raise DeviceError("the connection is reset")
        if 10 * sum(map(len, self.work.rows.values())) > self.work.kernels:
            self.work.all_there.wait(60)
        with self.work.lock:
            self.work.rows[self.key] += rows

    def is_hot(self) -> bool:
        return self.dice.random() < 0.01

    def close(self) -> None:
        """Another client may have it."""


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_PAUSE", 0.0)
    monkeypatch.setattr(fleets, "_COOLING_SECONDS", 0.0)


def test_fifty_phones_of_four_kinds(no_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 kernels: every batch once, none left out, although phones drop, come and go."""
    work = Work(100_000, seconds=600)
    monkeypatch.setattr(fleets, "time", work)
    counts = {"pixel": 20, "mi": 15, "oneplus": 10, "poco": 5}
    crews = []
    for key in counts:
        work.rows[key] = []
        dice = random.Random(key)

        def begin(key: str = key, dice: random.Random = dice) -> Any:
            if dice.random() < 0.05:
                raise DeviceError("none is free")
            return ScriptedPhone(work, key, dice)

        crews.append(Crew(key, begin, Batches(3)))
    asked = Counter[str]()

    def census() -> dict[str, int]:
        asked["census"] += 1
        half = asked["census"] == 1  # the others come later
        if not half:
            work.all_there.set()
        return {key: count // 2 if half else count for key, count in counts.items()}

    carry_out(crews, census, work.seconds)
    assert sum(map(len, work.rows.values())) >= work.kernels and work.drops > 50
    for crew in crews:
        done = Counter(work.rows[crew.key])
        assert set(done.values()) == {1}, "no row twice"
        missing = set(range(3, crew.batches._next)) - {number for number, _ in done}
        failures = crew.batches._failures
        left_out = {number for number in failures if failures[number] == fleets._ATTEMPTS}
        assert missing == left_out.union(crew.batches._returned), "what is not done was given back"
        assert len(done) == KERNELS * crew.measured
        assert len(crew._threads) == counts[crew.key]


def test_a_batch_that_is_given_back_is_the_next() -> None:
    batches = Batches(7)
    assert [batches.take() for _ in range(3)] == [7, 8, 9]
    batches.give_back(9)
    batches.give_back(7)
    assert [batches.take() for _ in range(3)] == [7, 9, 10]


def test_a_batch_that_failed_is_left_for_others(no_pauses: None) -> None:
    batches = Batches(0)

    class Broken(ScriptedPhone):
        def measure(self, _number: int, _end: float) -> None:
            raise DeviceError("gone")

    crew = Crew("pixel", lambda: Broken(Work(1, 1), "pixel", random.Random(0)), batches)
    carry_out([crew], lambda: {"pixel": 1}, 0.05)
    assert crew.fault == "gone" and crew.measured == 0


def test_a_batch_that_always_fails_is_left_out(no_pauses: None) -> None:
    """And measured when the campaign is resumed: it is missing then."""
    batches, tried = Batches(3, missing=[1]), list[int]()

    class Picky(ScriptedPhone):
        def measure(self, number: int, _end: float) -> None:
            tried.append(number)
            if number in (1, 4):
                raise DeviceError("what no phone compiles")

    crew = Crew("pixel", lambda: Picky(Work(1, 1), "pixel", random.Random(0)), batches)
    carry_out([crew], lambda: {"pixel": 1}, 0.05)
    assert tried[:9] == [1, 1, 1, 3, 4, 4, 4, 5, 6]


# --- two servers of this machine ------------------------------------------------------------------


@pytest.fixture
def farm() -> Iterator[tuple[Tracker, list[Phone]]]:
    pytest.importorskip("tornado")
    tracker = Tracker()
    phones = [Phone("--tracker", tracker.address) for _ in range(2)]
    yield tracker, phones
    for phone in phones:
        phone.kill()
    tracker.kill()


@pytest.mark.full
def test_a_fleet_of_which_one_is_killed(
    farm: tuple[Tracker, list[Phone]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_stretch.plan.measuring.timing._TOLERANCE", 1e9)
    monkeypatch.setattr("tvm_stretch.plan.measuring.campaign.load_prior", lambda: list(SMALL))
    monkeypatch.setattr("tvm_stretch.plan.measuring.bench._SECONDS", 0.02)
    monkeypatch.setattr(fleets, "_PAUSE", 0.1)
    monkeypatch.setattr(fleets, "_COOLING_SECONDS", 0.0)
    tracker, phones = farm
    fleet = ts.tune.Fleet(tracker.address, keys=["pixel"], timeout=10, wait=2)
    assert fleet.count() == {"pixel": 2}
    said: list[str] = []

    def heard(line: str) -> None:
        said.append(line)
        if " in all" in line and phones[0].is_running:
            phones[0].signal(signal.SIGKILL)
            with pytest.raises(CostModelError, match="for these measurements alone, got another"):
                ts.tune.measure(["llvm"], budget=1, cache=tmp_path / "pixel", cpu_threads=1)

    models = ts.tune.measure(
        ["llvm"], device=fleet, budget=3, cache=tmp_path, cpu_threads=1, progress=heard
    )
    assert set(models) == {"pixel/cpu"}, said
    rows = Dataset.open(tmp_path / "pixel" / "cpu.jsonl").rows
    blocks = [batch for batch, _ in itertools.groupby(row.batch for row in rows)]
    assert blocks and len(set(blocks)) == len(blocks), "every batch once, in one piece"
    assert (tmp_path / "pixel" / "cpu.json").is_file()
    with measuring_into(tmp_path / "pixel"):
        pass  # it is over, and the next campaign can begin


def test_a_fleet_without_phones(farm: tuple[Tracker, list[Phone]], tmp_path: Path) -> None:
    tracker, _ = farm
    with pytest.raises(DeviceError, match="of that key; it knows pixel"):
        fleet = ts.tune.Fleet(tracker.address, ["mi"], wait=0.3)
        ts.tune.measure(device=fleet, budget=1, cache=tmp_path)


@pytest.mark.parametrize(
    ("tracker", "keys"),
    [
        ("somewhere", ["a"]),
        ("127.0.0.1:1", []),
        ("127.0.0.1:1", ["a", "a"]),
        ("127.0.0.1:1", None),
        ("127.0.0.1:1", [["a"]]),
    ],
)
def test_wrong_fleets(tracker: str, keys: Any) -> None:
    with pytest.raises(InputError, match="HOST:PORT of a tracker and different keys"):
        ts.tune.Fleet(tracker, keys)


def test_a_phone_is_hot_when_its_reference_kernel_is_slow() -> None:
    now = [100]
    bench: Any = SimpleNamespace(stopwatch=Stopwatch(lambda: now[0]))
    nothing: Any = None
    post = Post(nothing, bench, nothing)
    for now[0], hot in ((100, False), (125, False), (126, True), (100, False)):
        assert post.is_hot() == hot
