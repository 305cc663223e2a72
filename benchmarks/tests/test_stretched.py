"""The tables of stretched networks: published designs in our form, ours at their capacity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.search_helpers import costs
from helpers.stretch_networks import basic, network

from benchmarks import stretched
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.stretching import Stretching, stretch_network
from tvm_stretch.plan.design import Branch

DESIGNS = {
    "mi/R-34-C": {"devices": ["cpu"]},
    "mi/R-34-CD": {
        "block_type": "res_basic_block",
        "depths": [[2, 1], [4, 3]],
        "widths": [[48, 32], [96, 64]],
        "devices": ["cpu", "dsp"],
    },
}


@pytest.fixture
def found() -> Stretching:
    mod = network(basic, ((64, 2), (128, 4)), stem=32)
    return stretch_network(mod, costs(1, 1), (0, 1), Rules())


def test_published_designs(tmp_path: Path, found: Stretching):
    """Those of several branches; the DSP is our hexagon."""
    path = tmp_path / "designs.json"
    path.write_text(json.dumps(DESIGNS), encoding="utf-8")
    ((name, (original, data)),) = stretched.read_designs([str(path)]).items()
    assert (name, original) == ("R-34-CD", "resnet34")
    design = stretched.as_ours(found, data)
    assert design.segments[1].branches == (Branch("cpu", 4, 96), Branch("hexagon", 3, 64))
    assert {segment.merge for segment in design.segments} == {"concat"}


def test_ours_at_the_capacity_of_another(found: Stretching, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stretched, "_SHARES", (0.6, 1.0))
    least = next(c for c in found.candidates if c.kept)
    ours = stretched.equal_capacity(found, least.multiply_adds, least.parameters)
    assert ours.multiply_adds >= least.multiply_adds and ours.parameters >= least.parameters
    assert stretched.shares(found, ours).count("%") == 2
