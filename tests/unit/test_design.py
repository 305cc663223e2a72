"""Designs of stretched networks as data: written, read, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tvm_stretch.base.errors import PlanError
from tvm_stretch.plan.design import Branch, Design, StretchedSegment

DESIGN = Design(
    (
        StretchedSegment("x", "y", (Branch("cpu", 2, 48), Branch("opencl", 3, 32))),
        StretchedSegment("y", "z", (Branch("cpu", 1, 64),), "restore"),
    )
)


def test_written_and_read(tmp_path: Path):
    path = tmp_path / "design.json"
    DESIGN.write(path)
    assert Design.read(path) == Design.read(json.loads(path.read_text())) == DESIGN
    assert Design.read(DESIGN) is DESIGN
    assert DESIGN.processors == ("cpu", "opencl")
    assert str(DESIGN) == "cpu 2x48 | opencl 3x32; cpu 1x64"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "for the format and version of the design"),
        ({"sizes": []}, "expected the fields segments"),
        ({"segments": 3}, "expected a list for segments"),
        ({"segments": [3]}, "start, end and branches"),
        ({"segments": [{"start": "x", "end": "y", "branches": []}]}, "expected branches"),
        ({"segments": [{"start": "x", "end": "y", "branches": [{"depth": 1}]}]}, "processor"),
    ],
)
def test_what_is_no_design(change: dict[str, object], message: str):
    with pytest.raises(PlanError, match=message):
        Design.read({**DESIGN.to_data(), **change})


def test_wrong_fields():
    with pytest.raises(PlanError, match="one of concat, restore, project for merge"):
        StretchedSegment("x", "y", (Branch("cpu", 1, 8),), "sum")
    with pytest.raises(PlanError, match="whole numbers for depth and width"):
        StretchedSegment("x", "y", (Branch("cpu", 0.5, 8),))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="the name of a processor for each branch"):
        StretchedSegment("x", "y", (Branch(3, 1, 8),))  # type: ignore[arg-type]
    for lists in ([2, 1], None):
        with pytest.raises(PlanError, match="a list of numbers for each segment for widths"):
            Design.of_lists([("x", "y")], ["cpu"], [[1]], lists)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a Design, the path of its file or a dict"):
        Design.read(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="a readable file for the design"):
        Design.read("/no/such/design.json")
