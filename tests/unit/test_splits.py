"""Splits as data: there and back, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tvm_stretch.base.errors import PlanError
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, Split, splits_to_data

SPLITS = (
    RowSplit("x", "relu", (3, 2.5, 0)),
    ChannelSplit("relu", "add", (1, 1, 1), block=16, first="split"),
)


def read(splits: object) -> tuple[Split, ...]:
    data = json.loads(Plan(("cpu", "npu", "gpu"), ()).to_json())
    return Plan.read({**data, "splits": splits}).splits


def test_there_and_back():
    data = json.loads(json.dumps(splits_to_data(SPLITS)))
    assert data[0] == {"by": "rows", "start": "x", "end": "relu", "ratios": [3, 2.5, 0]}
    assert read(data) == SPLITS


@pytest.mark.parametrize(
    "data, message",
    [
        ({}, "expected a list for splits of the plan"),
        ([{"by": "rings"}], "by = rows or channels for splits[0] of the plan"),
        (["rows"], "by = rows or channels for splits[0] of the plan"),
        (
            [{"by": "rows", "start": "x", "end": "y"}],
            "the fields start, end and ratios for splits[0] of the plan, got",
        ),
        (
            [{"by": "rows", "start": "x", "end": 3, "ratios": [1, 1]}],
            "a string for end of splits[0] of the plan, got 3",
        ),
        (
            [{"by": "rows", "start": "x", "end": "y", "ratios": [1, True]}],
            "a number for ratios[1] of splits[0] of the plan, got True",
        ),
        (
            [{"by": "rows", "start": "x", "end": "y", "ratios": [1, 1], "block": 8}],
            "the fields start, end and ratios for splits[0] of the plan",
        ),
    ],
)
def test_refused(data, message):
    with pytest.raises(PlanError) as raised:
        read(data)
    assert message in str(raised.value)


def test_needs_no_compiler():
    """A device that runs a plan has no TVM compiler."""
    code = "import sys, tvm_stretch.plan.splits; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
