"""NN-Stretch's tables of designs, HOPE's clusters: what stands in the papers' parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import Schedule
from benchmarks.accuracy_networks import NETWORKS, Small
from benchmarks.papers import clusters, designs
from tvm_stretch.plan.design import Design

TINY = Small(NETWORKS["resnet"].block, 8, (16, 32), (2, 2))
QUICK = Schedule(trained=64, tested=50, epochs=1)
SIZE = 64


def test_branches_that_meet_at_ends_of_stages_are_a_design() -> None:
    st = designs.stretching(TINY, SIZE)
    wide = designs.design(st, (1, 0.75), (1, 0.75)).segments
    judged = Design(tuple(replace(segment, merge="restore") for segment in wide))
    assert designs.meeting_after(st, (2, 4), 0.75) == judged


def test_each_meeting_costs_a_hand_over() -> None:
    st = designs.stretching(TINY, SIZE)
    times = [
        st.judge(designs.meeting_after(st, points, 0.5)).ns
        for points in ((4,), (2, 4), (1, 2, 3, 4))
    ]
    assert times[1] - times[0] > 400_000 and times[2] - times[1] > 800_000


def test_trainings_are_kept_and_belong_to_a_schedule(tmp_path: Path) -> None:
    rows = [designs.original(TINY, "theirs")]
    first = designs.accuracies(rows, tmp_path, 2, QUICK, 1)
    assert [len(percents) for percents in first] == [2]
    (path, _) = sorted(tmp_path.glob("*.json"))
    assert json.loads(path.read_text())["percent"] == first[0][0]
    path.write_text(path.read_text().replace(str(first[0][0]), "77.5"))
    assert designs.accuracies(rows, tmp_path, 1, QUICK, 1) == [[77.5]]
    other = Schedule(trained=64, tested=40, epochs=1)
    assert designs.accuracies(rows, tmp_path, 1, other, 1) != [[77.5]]
    assert designs.trained((rows[0].graph, 1, QUICK))["percent"] == first[0][1], "a seed repeats"


def test_the_table_has_paired_differences(capsys: pytest.CaptureFixture[str]) -> None:
    row = designs.Row("as it is", None, 2_000_000, 5_000_000, 3_000, "70 %")  # type: ignore[arg-type]
    other = designs.Row("half", None, 1_000_000, 4_000_000, 2_000, "69 %")  # type: ignore[arg-type]
    designs.show([row, other], [[90.0, 80.0], [91.0, 83.0]])
    *_, first, second = capsys.readouterr().out.splitlines()
    assert first == "| as it is | 85.00 % | 2.00 | 1.00 | 5.0 | 3 | 70 % |"
    assert second == "| half | +2.00 [-10.71, +14.71] | 1.00 | 2.00 | 4.0 | 2 | 69 % |"
    designs.show([row, other], [[90.0], [91.0]])
    *_, alone = capsys.readouterr().out.splitlines()
    assert alone.startswith("| half | +1.00 | 1.00 |")  # one seed has no interval


def test_clusters_have_no_transfers() -> None:
    _, _, row = clusters.counted(["squeezenet1_0"])
    big, star, greedy, lp = (float(cell) for cell in row.split(" | ")[1:5])
    assert lp <= greedy <= big and lp <= star <= big


def test_a_slower_core_has_a_half_of_its_time() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pytest.skip("no right to real-time priorities")
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    core = max(os.sched_getaffinity(0))
    code = f"""
import os, time
os.sched_setaffinity(0, {{{core}}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
wall, own = time.perf_counter(), time.process_time()
while time.perf_counter() < wall + 0.4: pass
print((time.process_time() - own) / (time.perf_counter() - wall))
"""
    with clusters.slower(core, 0.5):
        time.sleep(0.05)
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert 0.35 < float(said.stdout) < 0.6
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
