"""Stretched networks, all layers of which are brought nearer to the given one."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.stretch_networks import BLOCKS, SIZE, network
from helpers.training_helpers import net_of

from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.lab.training import Batches, TrainableNetwork, imitate, refine, to_torch
from tvm_stretch.lab.training.descent import _compared
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.passes.duplicate_and_scale import with_sources
from tvm_stretch.plan.design import Design

_RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(128, 3, SIZE, SIZE, generator=_RANDOM)
OTHERS = torch.randn(64, 3, SIZE, SIZE, generator=_RANDOM)


def pair(kind: str, merge: str) -> tuple[TrainableNetwork, TrainableNetwork]:
    """A stretched network and its teacher."""
    mod = network(BLOCKS[kind])
    stages = detect_stages(mod)[-2:]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    lists = ([[2, 1], [3, 2]], [[12, 8], [24, 16]])
    design = Design.of_lists(ends, ["cpu", "gpu"], *lists, merge)
    module, sources = with_sources(mod, design)
    return to_torch(module, design.to_data(), sources), to_torch(mod)


def apart(net: TrainableNetwork, teacher: TrainableNetwork) -> float:
    """Of images that were not seen: the error's share of the variance."""
    with torch.no_grad():
        said, wanted = net.eval()(OTHERS), teacher.eval()(OTHERS)
    return float((said - wanted).square().mean() / wanted.var(0).mean())


@pytest.mark.parametrize(
    ("kind", "merge"),
    [
        ("basic", "restore"),
        pytest.param("regnet", "concat", marks=pytest.mark.full),
        pytest.param("mb_conv", "project", marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_nearer_than_layer_by_layer(kind: str, merge: str):
    net, teacher = pair(kind, merge)
    imitate(net, teacher, IMAGES)
    before, taught = apart(net, teacher), copy.deepcopy(teacher.state_dict())
    refine(net, teacher, IMAGES, steps=10)
    assert apart(net, teacher) < 0.95 * before
    assert not net.training
    assert all(map(torch.equal, taught.values(), teacher.state_dict().values()))


def test_ends_of_blocks_and_the_result_are_compared():
    """Not what lies inside, nor the two summands of an end."""
    net, _ = pair("regnet", "concat")
    found = _compared(net)
    kinds = [node.kind for node in net.graph.nodes if node.name in found]
    ends = sum(node.kind == "add" for node in net.graph.nodes if len(node.shape) == 4)
    assert kinds.count("add") == ends + (kinds[-1] == "add")
    result = net.graph.outputs[0]
    assert found[result] == 1
    assert sum(found.values()) == pytest.approx(2)


@pytest.mark.full
def test_it_repeats_and_labels_do_not_matter():
    first, teacher = pair("basic", "concat")
    nets = [first, copy.deepcopy(first), copy.deepcopy(first)]
    labels = torch.arange(128)
    for net, given in zip(nets, (0, 0, 1), strict=True):
        refine(net, teacher, Batches(IMAGES, (labels + given) % 5, 32), steps=5, seed=3)
    for other in nets[1:]:
        assert all(map(torch.equal, first.state_dict().values(), other.state_dict().values()))


@pytest.mark.full
def test_a_generator_gives_all_its_images():
    net, teacher = pair("basic", "concat")
    refine(net, teacher, (batch for batch in [IMAGES]), steps=3)


def test_a_last_batch_of_one_image_is_left_out():
    """Its results would have no variance: NaN."""
    nets, teacher = zip(*(pair("basic", "concat") for _ in range(2)), strict=True)
    refine(nets[0], teacher[0], [IMAGES], steps=2)
    refine(nets[1], teacher[0], [IMAGES, IMAGES[:1]], steps=2)
    assert all(map(torch.equal, nets[0].state_dict().values(), nets[1].state_dict().values()))


@pytest.mark.parametrize("images", [IMAGES[:1], IMAGES[:1].numpy(), [IMAGES[:1], IMAGES[1:2]]])
def test_single_images_are_too_few_to_begin(images, monkeypatch):
    net, teacher = pair("basic", "concat")
    monkeypatch.setattr(TrainableNetwork, "compute", lambda *_: pytest.fail("it computes"))
    with pytest.raises(InputError, match="at least two images to refine with"):
        refine(net, teacher, images, steps=2)


@pytest.mark.parametrize(
    ("images", "error"),
    [
        ([], InputError),
        (iter(()), InputError),
        ([IMAGES[0]], InputError),
        (IMAGES[:, :2], InputError),
        (IMAGES / 0, TrainingError),
    ],
)
def test_a_failure_changes_nothing(images, error):
    net, teacher = pair("basic", "concat")
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(error):
        refine(net, teacher, images, steps=2)
    assert all(map(torch.equal, before.values(), net.state_dict().values()))


def test_wrong_calls():
    net, teacher = pair("basic", "concat")
    with pytest.raises(InputError, match="expected the network that was stretched for teacher"):
        refine(net, net_of(), IMAGES)
    with pytest.raises(InputError, match="a positive number for steps, got 0"):
        refine(net, teacher, IMAGES, steps=0)
    with pytest.raises(InputError, match="a positive number for rate, got nan"):
        refine(net, teacher, IMAGES, rate=float("nan"))
