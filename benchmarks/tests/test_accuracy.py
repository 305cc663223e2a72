"""The benchmark of accuracy: a trial repeats, pairs are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.stretch_networks import BLOCKS, network

from benchmarks.accuracy import MEASURES, Schedule, interval, show, summary, trial
from benchmarks.accuracy_tasks import CLASSES, Data, shapes
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.plan.design import Design


def test_a_trial():
    """One seed, tiny: every measure is a share of the tests, and the same again."""
    mod = network(BLOCKS["basic"])
    stages = detect_stages(mod)[-2:]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    widths = [[12, 8], [16, 24]]
    design = Design.of_lists(ends, ["cpu", "gpu"], [[1, 2], [2, 3]], widths, "concat")
    random = torch.Generator().manual_seed(0)
    images = torch.randn(40, 3, 12, 12, generator=random)
    labels = torch.randint(5, (40,), generator=random)
    data = Data(images[:32], labels[:32], images[32:], labels[32:])
    rows = [trial(mod, design, data, Schedule(epochs=2, batch=16, steps=2), 1) for _ in range(2)]
    for row in rows:
        assert row.pop("seconds") > 0
        assert all(value in np.arange(9) * 12.5 for value in row.values())
    assert rows[0] == rows[1]


def test_shapes():
    """Another seed draws others; each class has its share."""
    data, same, other = shapes(0, 60, 500), shapes(0, 60, 500), shapes(1, 60, 500)
    assert torch.equal(data.images, same.images) and torch.equal(data.labels, same.labels)
    assert not torch.equal(data.images, other.images)
    assert 0.7 < float(data.test_images.std()) < 1.1
    assert torch.bincount(data.test_labels, minlength=CLASSES).min() > 25


def test_pairs(capsys: pytest.CaptureFixture[str]):
    """Differences of pairs, not of means; Student's interval."""
    mean, half = interval([1.0, 2.0, 3.0, 4.0])
    assert (mean, half) == (2.5, pytest.approx(3.182446 * 1.2909944 / 2))
    rows = [
        {"task": "t", "network": "n", "original": 80.0 + seed, "seconds": 1.0, "schedule": {}}
        | dict.fromkeys(MEASURES, 79.0 + seed)
        for seed in range(3)
    ]
    (row,) = summary(rows)
    assert row["alike"] == {"mean": -1.0, "low": -1.0, "high": -1.0} and row["original"] == 81
    show([row])
    assert "| t | n | 3 | 81.00 | -1.00 [-1.00, -1.00] |" in capsys.readouterr().out
