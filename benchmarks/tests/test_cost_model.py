"""How often `benchmarks.cost_model` measures a network: by scripted times, and truly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.cpu_targets import TARGET

from benchmarks import cost_model_measured as measured
from benchmarks.cost_model_measured import measure_all, read_networks
from tvm_stretch.plan.measuring.bench import NetworkTiming
from tvm_stretch.plan.measuring.dataset import Dataset
from tvm_stretch.plan.measuring.timing import Timing

FAR = 1e18
"""The end, in seconds of the clock."""


def timing(microseconds: float, *kernels: float, quiet: bool = True) -> NetworkTiming:
    total = Timing(round(1e3 * microseconds), 0.0, 15, quiet, 20_000)
    return NetworkTiming([], [], total, 0, [round(1e3 * kernel) for kernel in kernels])


class Script:
    """A bench whose networks take these times, the last one for ever."""

    def __init__(self, times: dict[str, list[NetworkTiming]]) -> None:
        self.times, self.asked = times, list[str]()

    def measure_network(self, name: str, _prepared: Any) -> NetworkTiming:
        self.asked.append(name)
        found = self.times[name]
        return found.pop(0) if len(found) > 1 else found[0]


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: dict[str, list[NetworkTiming]]
) -> tuple[dict[str, int], dict[str, tuple[float, bool]]]:
    """How often each network was measured; microseconds that count, and whether in peace."""
    monkeypatch.setattr(measured, "_read", lambda *_: None)
    bench: Any = Script(times)
    dataset = Dataset(tmp_path / "gpu.jsonl", {}, [])
    jobs = [measured.Job("gpu", name) for name in times]
    measured._measure_networks(jobs, bench, dataset, tmp_path, FAR)
    lines = (tmp_path / "gpu.networks.jsonl").read_text().splitlines()
    found = {i["name"]: (i["nanoseconds"] / 1e3, i["quiet"]) for i in map(json.loads, lines)}
    return {name: bench.asked.count(name) for name in times}, found


def test_a_network_is_measured_until_its_quickest_time_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both times of the second one are explained by its kernels, but they differ."""
    calm = [timing(100, 60, 60)]
    restless = [timing(t, 100, 60) for t in (160, 110, 130, 108, 90)]
    asked, found = run(tmp_path, monkeypatch, {"calm": calm, "restless": restless})
    assert asked == {"calm": 2, "restless": 4}
    assert found == {"calm": (100, True), "restless": (108, True)}


def test_a_plain_run_that_nothing_explains_is_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches of 5 us explain 20 us of four tiny kernels, and not 30."""
    tiny = [timing(t, 2, 2, 2, 2) for t in (30, 30, 21, 21)]
    times = {"tiny": tiny, "least": [timing(10, 4, 4)], "always": [timing(99, 20, 20)]}
    asked, found = run(tmp_path, monkeypatch, times)
    assert asked == {"tiny": 4, "least": 2, "always": 8}
    assert found == {"tiny": (21, True), "least": (10, True), "always": (99, False)}


def test_times_that_the_bench_calls_disturbed_do_not_confirm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = [timing(100, 60, 60, quiet=False)] * 2 + [timing(104, 60, 60), timing(105, 60, 60)]
    asked, found = run(tmp_path, monkeypatch, {"loud": loud})
    assert asked == {"loud": 4} and found == {"loud": (104, True)}


def test_networks_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One network and one batch are measured twice; the next call measures only a new batch."""
    monkeypatch.setattr(measured, "_PASSES", 2)
    measure_all([TARGET], tmp_path, 60, 1, ["random0"])
    (network,) = read_networks(tmp_path, "cpu")
    assert (network.name, network.nanoseconds > 0) == ("random0", True)
    assert capsys.readouterr().err.count("random0: ") == 2
    rows = Dataset.open(tmp_path / "cpu.jsonl").rows
    assert {row.network for row in rows if row.batch is None or row.batch < 0} == {"random0"}
    assert {row.batch for row in rows if not row.network} == {0}
    measure_all([TARGET], tmp_path, 60, 2, ["random0"])
    rows = Dataset.open(tmp_path / "cpu.jsonl").rows
    assert {row.batch for row in rows if not row.network} == {0, 1}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
