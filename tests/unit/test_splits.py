"""Splits as data: there and back, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tvm_stretch.errors import PlanError
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, splits_from_data, splits_to_data

SPLITS = (
    RowSplit("x", "relu", (3, 2.5)),
    ChannelSplit("relu", "add", (1, 1, 1), block=16, first="split"),
)


def test_there_and_back():
    data = json.loads(json.dumps(splits_to_data(SPLITS)))
    assert data[0] == {"by": "rows", "start": "x", "end": "relu", "ratios": [3, 2.5]}
    assert splits_from_data(data, "plan.json") == SPLITS


@pytest.mark.parametrize(
    "data, message",
    [
        ({}, "expected a list for splits of plan.json"),
        ([{"by": "rings"}], "by = rows or channels for splits[0] of plan.json"),
        (["rows"], "by = rows or channels for splits[0] of plan.json"),
        (
            [{"by": "rows", "start": "x", "end": "y"}],
            "a list of numbers for ratios of splits[0] of plan.json, got None",
        ),
        (
            [{"by": "rows", "start": "x", "end": 3, "ratios": [1, 1]}],
            "the name of a tensor for end of splits[0] of plan.json, got 3",
        ),
        (
            [{"by": "rows", "start": "x", "end": "y", "ratios": [1, True]}],
            "a list of numbers for ratios of splits[0] of plan.json, got [1, True]",
        ),
        (
            [{"by": "rows", "start": "x", "end": "y", "ratios": [1, 1], "block": 8}],
            "only the fields by, start, end, ratios for splits[0] of plan.json",
        ),
    ],
)
def test_refused(data, message):
    with pytest.raises(PlanError) as raised:
        splits_from_data(data, "plan.json")
    assert message in str(raised.value)


def test_needs_no_compiler():
    """A device that runs a plan has no TVM compiler."""
    code = "import sys, tvm_stretch.plan.splits; assert 'tvm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
