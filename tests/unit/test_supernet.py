"""Supernets: candidates share what they have in common, and are networks of their own again."""

from __future__ import annotations

import pytest
import torch
from helpers.stretch_networks import BLOCKS, basic, network
from helpers.training_helpers import IMAGES, loader

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.lab.training import Training
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.passes.duplicate_and_scale import duplicate_and_scale
from tvm_stretch.plan.design import Design

STAGES = ((16, 2), (32, 2))
DESIGNS = (
    ([[2, 2], [2, 2]], [[12, 8], [16, 24]]),
    ([[1, 2], [2, 1]], [[8, 8], [24, 8]]),
    ([[2, 1], [1, 1]], [[4, 16], [16, 16]]),
)


def candidates(block=basic, merge: str = "concat"):
    mod = network(block, STAGES)
    stages = detect_stages(mod)[-2:]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    return [
        ts.training.to_torch(
            duplicate_and_scale(mod, Design.of_lists(ends, ["a", "b"], *lists, merge))
        )
        for lists in DESIGNS
    ]


@pytest.mark.parametrize(
    ("kind", "merge"),
    [
        ("basic", "restore"),
        ("regnet", "concat"),
        ("squeeze_mb_conv", "project"),
        ("shuffle_unit", "concat"),
    ],
)
def test_candidates_alone_say_what_they_say_in_the_supernet(kind: str, merge: str):
    supernet = ts.training.Supernet(candidates(BLOCKS[kind], merge)).eval()
    with torch.no_grad():
        for index in range(len(DESIGNS)):
            alone = supernet.candidate(index).eval()
            assert torch.equal(alone(IMAGES[:2]), supernet.say(index, IMAGES[:2]))


def test_what_is_shared():
    """The first rows of the largest; columns of both branches where they stand there."""
    supernet = ts.training.Supernet(candidates())
    first = supernet.shared["conv2d1_b0_weight"]
    assert first.shape == (12, 8, 3, 3)
    assert torch.equal(supernet.weights(1)["conv2d1_b0.weight"], first[:8])
    second = supernet.shared["conv2d6_b0_weight"]
    assert second.shape == (24, 12 + 16, 3, 3)
    read = [*range(4), *range(12, 28)]
    assert torch.equal(supernet.weights(2)["conv2d6_b0.weight"], second[:16][:, read])
    given = candidates()[supernet.largest]
    assert torch.equal(supernet.candidate(supernet.largest).conv2d.weight, given.conv2d.weight)
    shared = sum(value.numel() for value in supernet.parameters())
    assert shared < sum(value.numel() for net in candidates() for value in net.parameters())


@pytest.mark.full
def test_the_sandwich_rule():
    """All candidates learn, in the same way again; what comes out is a network of its own."""
    found = []
    for _ in range(2):
        supernet = ts.training.Supernet(candidates())
        before = [value.clone() for value in supernet.weights(1).values()]
        losses = ts.training.fit_supernet(
            supernet, loader(24), Training(epochs=3, seed=2), sampled=1
        )
        assert losses[-1] < losses[0]
        after = list(supernet.weights(1).values())
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        found.append(supernet.candidate(1))
    ts.training.recalibrate(found[0], IMAGES)
    assert torch.equal(found[0].conv2d.weight, found[1].conv2d.weight)
    assert not torch.equal(found[0].tuplegetitem.running_mean, found[1].tuplegetitem.running_mean)


@pytest.mark.full
def test_checkpoints_have_the_statistics_of_all_candidates(tmp_path):
    """A call that finds all epochs done gives what the one that trained gave."""
    trained, found = ts.training.Supernet(candidates()), ts.training.Supernet(candidates())
    for supernet in (trained, found):
        ts.training.fit_supernet(
            supernet, loader(24), Training(epochs=1, checkpoint=tmp_path / "run.pt")
        )
    for index in range(len(trained.nets)):
        one, other = (net.candidate(index).state_dict() for net in (trained, found))
        assert all(torch.equal(one[name], other[name]) for name in one)
    fewer = ts.training.Supernet(candidates()[1:])
    with pytest.raises(TrainingError, match="a checkpoint of this network"):
        ts.training.fit_supernet(
            fewer, loader(24), Training(epochs=1, checkpoint=tmp_path / "run.pt")
        )


def test_candidates_of_one_network_are_needed():
    with pytest.raises(InputError, match="two or more designs"):
        ts.training.Supernet(candidates()[:1])
