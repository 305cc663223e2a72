"""Stretched networks that say what the given one says, without training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from stretch_networks import BLOCKS, SIZE, network
from training_helpers import net_of
from tvm_stretch.passes.detect_blocks import detect_stages
from tvm_stretch.passes.duplicate_and_scale import with_sources

import tvm_stretch as ts
from tvm_stretch import zoo
from tvm_stretch.errors import InputError, TrainingError
from tvm_stretch.plan.design import Design
from tvm_stretch.training import TrainableNetwork, imitate, recalibrate, to_torch
from tvm_stretch.training.imitate import _Imitation

_RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(128, 3, SIZE, SIZE, generator=_RANDOM)
OTHERS = torch.randn(64, 3, SIZE, SIZE, generator=_RANDOM)


def pair(
    kind: str, depths: list[list[int]], widths: list[list[int]], merge: str
) -> tuple[TrainableNetwork, TrainableNetwork]:
    """A stretched network and its teacher."""
    mod = network(BLOCKS[kind])
    stages = detect_stages(mod)[-2:]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    design = Design.of_lists(ends, ["cpu", "gpu"], depths, widths, merge)
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
        ("basic", "concat"),
        ("regnet", "restore"),
        ("mb_conv", "project"),
        pytest.param("squeeze_mb_conv", "restore", marks=pytest.mark.full),
        pytest.param("shuffle_unit", "restore", marks=pytest.mark.full),
    ],
)
def test_nearer_than_statistics_alone(kind: str, merge: str):
    net, teacher = pair(kind, [[2, 1], [3, 2]], [[12, 8], [24, 16]], merge)
    recalibrated = copy.deepcopy(net)
    recalibrate(recalibrated, IMAGES)
    shapes = {name: value.shape for name, value in net.state_dict().items()}
    imitate(net, teacher, IMAGES)
    assert {name: value.shape for name, value in net.state_dict().items()} == shapes
    assert apart(net, teacher) < 0.7 * apart(recalibrated, teacher)


def test_whole_branches_say_the_same():
    net, teacher = pair("basic", [[2, 2], [3, 3]], [[16, 16], [32, 32]], "concat")
    recalibrate(teacher, IMAGES)  # else its weights and its statistics are strangers
    imitate(net, teacher, IMAGES)
    assert apart(net, teacher) < 1e-3


def test_it_repeats():
    first, teacher = pair("basic", [[1, 1], [2, 1]], [[8, 8], [16, 16]], "concat")
    second = copy.deepcopy(first)
    for net in (first, second):
        imitate(net, teacher, IMAGES)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))


def test_what_is_read_most_stands_inside_of_blocks():
    """A second convolution reads only channels 3, 8, 12 and 15: a narrow branch has them."""
    net, teacher = pair("basic", [[1, 1], [3, 3]], [[4, 4], [32, 32]], "concat")
    read = [3, 8, 12, 15]
    unread = np.setdiff1d(np.arange(16), read)
    teacher.weight_of("conv2d2")[:, unread] = 0
    found = _Imitation(net, teacher, IMAGES).channels
    for branch in ("b0", "b1"):
        assert found[f"conv2d1.{branch}"].tolist() == read
    assert found["conv2d2.b1"].tolist() == [12, 13, 14, 15]  # results of blocks stay


def test_networks_that_do_not_belong_together():
    net, teacher = pair("basic", [[1, 1], [2, 1]], [[8, 8], [16, 16]], "concat")
    for one, other in ((teacher, net), (net, net_of()), (net_of(), net_of())):
        with pytest.raises(InputError, match="expected the network that was stretched for teacher"):
            imitate(one, other, IMAGES)
    with pytest.raises(InputError, match="that to_torch made for teacher, got Linear"):
        imitate(net, torch.nn.Linear(2, 2), IMAGES)  # type: ignore[arg-type]


@pytest.mark.parametrize(("images", "error"), [([], InputError), (IMAGES / 0, TrainingError)])
def test_a_failure_changes_nothing(images, error):
    net, teacher = pair("basic", [[1, 1], [2, 1]], [[8, 8], [16, 16]], "concat")
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(error):
        imitate(net, teacher, images)
    assert all(map(torch.equal, before.values(), net.state_dict().values()))


@pytest.mark.full
def test_layers_with_biases_and_without_normalisations():
    """As VGG has them; and what a stretching gives knows where its channels come from."""
    st = ts.stretch(zoo.build("squeezenet1_1", size=64, classes=10), device="snapdragon-855")
    net, teacher = st.to_torch(st.candidates[0].design), to_torch(st.mod)
    images = torch.randn(16, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = (net(images) - teacher(images)).square().mean()
        imitate(net, teacher, images)
        assert (net(images) - teacher(images)).square().mean() < 0.5 * before
