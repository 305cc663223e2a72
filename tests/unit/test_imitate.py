"""Stretched networks that say what the given one says, without training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import tvm
from helpers.stretch_networks import BLOCKS, SIZE, basic, conv, mb_conv, network
from helpers.training_helpers import net_of
from tvm import relax

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.lab.training import TrainableNetwork, imitate, recalibrate, to_torch
from tvm_stretch.lab.training.imitate import _Imitation
from tvm_stretch.network.properties.repeated_blocks import detect_stages
from tvm_stretch.passes.canonicalise import CanonicaliseTrainable
from tvm_stretch.passes.duplicate_and_scale import with_sources
from tvm_stretch.plan.design import Design

_RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randn(128, 3, SIZE, SIZE, generator=_RANDOM)
OTHERS = torch.randn(64, 3, SIZE, SIZE, generator=_RANDOM)


def pair(
    kind: str, depths: list[list[int]], widths: list[list[int]], merge: str
) -> tuple[TrainableNetwork, TrainableNetwork]:
    """A stretched network and its teacher."""
    return pair_of(network(BLOCKS[kind]), depths, widths, merge)


def pair_of(
    mod: tvm.IRModule, depths: list[list[int]], widths: list[list[int]], merge: str
) -> tuple[TrainableNetwork, TrainableNetwork]:
    stages = detect_stages(mod)[-len(depths) :]
    ends = [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]
    design = Design.of_lists(ends, ["cpu", "gpu"], depths, widths, merge)
    module, sources = with_sources(mod, design)
    return to_torch(module, design.to_data(), sources), to_torch(mod)


Body = Callable[[relax.BlockBuilder, relax.Expr], Sequence[relax.Expr]]


def built(body: Body) -> tvm.IRModule:
    """A network of one image and all results of ``body``."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, SIZE, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit_output(result) for result in body(builder, x)]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return CanonicaliseTrainable()(builder.get())


def norm(x: relax.Expr) -> relax.Expr:
    """A batch normalisation whose parameters differ."""
    numbers = np.linspace(0.5, 1.5, int(x.ty.shape.values[1])).astype("float32")
    return relax.op.nn.batch_norm(x, *[relax.const(numbers)] * 4, axis=1, training=False)[0]


def bare_conv(x: relax.Expr, width: int, seed: int) -> relax.Expr:
    """A convolution that nothing follows."""
    inside = int(x.ty.shape.values[1])
    weight = np.random.default_rng(seed).standard_normal((width, inside, 3, 3)) * 0.1
    return relax.op.nn.conv2d(x, relax.const(weight.astype("float32")), padding=1)


def pre_activation(b: relax.BlockBuilder, x: relax.Expr) -> list[relax.Expr]:
    """ResNetV2: sums of convolutions, the first of which is the stem."""
    y = b.emit(bare_conv(x, 16, 0))
    for seed in range(1, 7, 2):
        inside = b.emit(relax.op.nn.relu(b.emit(norm(y))))
        inside = b.emit(bare_conv(inside, 16, seed))
        inside = b.emit(relax.op.nn.relu(b.emit(norm(inside))))
        y = b.emit(relax.op.add(b.emit(bare_conv(inside, 16, seed + 1)), y))
    return [relax.op.mean(y, [2, 3])]


def two_heads(b: relax.BlockBuilder, x: relax.Expr) -> list[relax.Expr]:
    """Two dense layers with biases, both of which are results."""
    y = b.emit(relax.op.nn.relu(b.emit(conv(x, 8, 3))))
    for index in range(3):
        y = b.emit(basic(b, y, 16, 1 if index else 2, 10 * index))
    y = b.emit(relax.op.mean(y, [2, 3]))
    weights = np.random.default_rng(1).standard_normal((2, 16, 5)).astype("float32")
    bias = relax.const(weights[0, 0])
    return [relax.op.add(b.emit(relax.op.matmul(y, relax.const(w))), bias) for w in weights]


def apart(net: TrainableNetwork, teacher: TrainableNetwork) -> float:
    """Of images that were not seen: the error's share of the variance."""
    with torch.no_grad():
        said, wanted = (
            torch.cat(found, 1) if isinstance(found, tuple) else found
            for found in (net.eval()(OTHERS), teacher.eval()(OTHERS))
        )
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


@pytest.mark.parametrize(
    ("make", "depths", "widths", "merge"),
    [
        (
            lambda: network(mb_conv, ((16, 1), (32, 3))),
            [[1, 1], [3, 2]],
            [[12, 8], [24, 16]],
            "project",
        ),
        (lambda: built(pre_activation), [[3, 2]], [[12, 8]], "project"),
        (lambda: built(two_heads), [[2, 1]], [[12, 8]], "concat"),
    ],
    ids=["a stage starts at a normalisation", "a stage starts at a convolution", "two results"],
)
def test_new_layers_and_several_results(make, depths, widths, merge):
    """A new layer starts from its own weights, whatever computes its tensor in the teacher."""
    net, teacher = pair_of(make(), depths, widths, merge)
    recalibrated = copy.deepcopy(net)
    recalibrate(recalibrated, IMAGES)
    imitate(net, teacher, IMAGES)
    assert apart(net, teacher) < 0.9 * apart(recalibrated, teacher)


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


def test_a_generator_gives_all_its_images():
    first, teacher = pair("basic", [[1, 1], [2, 1]], [[8, 8], [16, 16]], "concat")
    second = copy.deepcopy(first)
    imitate(first, teacher, IMAGES)
    imitate(second, teacher, (batch for batch in [IMAGES]))
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


@pytest.mark.parametrize(
    ("images", "error"), [([], InputError), (iter(()), InputError), (IMAGES / 0, TrainingError)]
)
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
