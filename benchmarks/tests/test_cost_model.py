"""`benchmarks.cost_model` compiles in other processes, then measures here, and goes on later."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.cpu_targets import TARGET

from benchmarks import cost_model_measured
from benchmarks.cost_model_measured import measure_all, read_networks
from tvm_stretch.plan.measuring.dataset import Dataset


def test_networks_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One network and one batch are measured twice; the next call measures only a new batch."""
    monkeypatch.setattr(cost_model_measured, "_PASSES", 2)
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
