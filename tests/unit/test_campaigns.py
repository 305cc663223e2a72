"""Campaigns of random seeds go on after a failure, and count it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import random_expressions
from helpers import campaign
from helpers.cpu_targets import TARGET

_SCRIPT = """
import os, sys
from helpers import campaign

def check(seed):
    if seed == 1:
        os._exit(3)
    if seed == 2:
        raise ValueError("not ours")
    return [{"verdict": "right", "count": 10}, {"verdict": "refused"}]

sys.exit(campaign.run(campaign.parser("").parse_args(), check))
"""


def test_a_dead_process_costs_one_seed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    command = [sys.executable, str(script), "--count", "4", "--jobs", "2"]
    path = str(Path(campaign.__file__).parents[1])
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    *lines, counts = map(json.loads, run.stdout.splitlines())
    assert run.returncode == 1
    found = {name: counts[name] for name in campaign.VERDICTS}
    assert found == {"right": 20, "refused": 2, "wrong": 0, "raw": 1, "dead": 1}
    bad = {line["verdict"]: line["seed"] for line in lines if line["verdict"] != "refused"}
    assert bad == {"dead": 1, "raw": 2}


def test_an_expression_that_fails_leaves_the_others_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = random_expressions.draw(8, seed=3)
    monkeypatch.setattr(random_expressions, "differences", _failing(str(batch[5])))
    lines = random_expressions.judged(batch, [TARGET])
    assert sum(line.get("count", 0) for line in lines) == 7
    [raw] = [line for line in lines if line["verdict"] != "right"]
    assert raw == {"verdict": "raw", "expression": str(batch[5]), "error": "not ours"}


def _failing(text: str) -> object:
    def differences(batch: list[object], targets: object) -> dict[object, str]:
        if text in map(str, batch):
            raise ValueError("not ours")
        return {}

    return differences
