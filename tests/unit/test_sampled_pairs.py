"""Campaigns on a GPU measure pairs of layers, as networks join them, and weights from memory."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from helpers.cpu_targets import TARGET
from helpers.gpu_checks import LARGE
from tvm import relax
from tvm.target import Target

from tvm_stretch.plan.measuring.campaign import Campaign
from tvm_stretch.plan.measuring.dataset import Dataset
from tvm_stretch.plan.measuring.sample_networks import chain
from tvm_stretch.plan.measuring.samples import (
    Sample,
    by_kind,
    far_reader,
    load_prior,
    neighbour,
    pairs_of,
)
from tvm_stretch.plan.measuring.similar import kernel_of_sample
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import opencl_processor

BIG = replace(LARGE, name="NVIDIA H100", max_group_size=1024, compute_units=132)
CPU = cpu_processor(TARGET, 1)
GPU = opencl_processor(Target("opencl"), CPU, BIG)
PAIR = Sample("pair", 64, (14, 14), 96, (3, 3), (1, 1), (1, 1, 1, 1), epilogue="add")


def test_the_layers_of_a_pair_follow_each_other() -> None:
    pairs = pairs_of(load_prior())
    assert len(pairs) > 100 and all(pair.is_possible for pair in pairs)
    dice = random.Random(0)
    for pair in [*pairs, *(neighbour(pair, dice) for pair in pairs)]:
        assert Sample.from_json(pair.to_json()) == pair
        first, second = pair.of_pair
        assert first.groups == first.in_channels == first.out_channels == second.in_channels
        assert (second.in_size, second.out_channels) == (pair.out_size, pair.out_channels)
    depthwise = Sample("depthwise", 8, (9, 9), 8, (3, 3), groups=8)
    following = Sample("conv", 8, (7, 7), 16, epilogue="relu")
    others = [replace(following, in_size=(9, 9)), replace(following, in_channels=16)]
    expected = Sample("pair", 8, (9, 9), 16, (3, 3), epilogue="relu")
    assert pairs_of([depthwise, *others, following]) == [expected]


def test_a_sampled_pair_becomes_the_kernel_of_networks() -> None:
    for apart in (False, True):
        prepared = Workshop([GPU, CPU]).samples([PAIR, replace(PAIR, epilogue="relu6")], apart)
        families = [kernel.features.family for kernel in prepared.kernels.values()]
        assert families.count("group_pair") == 2
        assert not {"depthwise", "group_conv"} & set(families)
    kernels = [kernel.features for kernel in prepared.kernels.values()]
    kernel = next(features for features in kernels if features.family == "group_pair")
    found = kernel_of_sample(PAIR, GPU.machine)
    assert found is not None and found.family == kernel.family
    assert found.phases()["start"] == kernel.phases()["start"]
    assert kernel_of_sample(PAIR, CPU.machine) is None


def test_only_campaigns_of_gpus_have_pairs(tmp_path: Path) -> None:
    for workshop, expected in ((Workshop([GPU, CPU]), True), (Workshop([CPU]), False)):
        prior = Campaign(workshop, Dataset(tmp_path, {}, []), random.Random(0)).prior
        assert any(sample.kind == "pair" for sample in prior) == expected


def test_few_layers_of_a_kind_are_taken_more_often_than_their_share() -> None:
    prior, dice = load_prior(), random.Random(0)
    taken = [by_kind(prior, dice).kind for _ in range(2_000)]
    for kind in ("avg", "dense"):
        share = sum(sample.kind == kind for sample in prior) / len(prior)
        assert share < 0.025 < 0.04 < taken.count(kind) / len(taken)
    assert taken.count("conv") > 900


def test_a_far_reader_has_more_weights_than_a_cache() -> None:
    dice = random.Random(0)
    readers = [far_reader(dice) for _ in range(50)]
    assert all(reader.is_possible and Sample.from_json(reader.to_json()) for reader in readers)
    weights = [4 * reader.in_channels * reader.out_channels for reader in readers]
    assert 45e6 < min(weights) < 60e6 < 100e6 < max(weights) < 115e6


def test_a_row_of_a_gpu_reads_its_weights_from_the_cache_or_from_memory() -> None:
    near = kernel_of_sample(Sample("dense", 4096, (1, 1), 1000, epilogue="bias"), GPU.machine)
    assert near is not None and near.family == "group_row"
    assert replace(near, round_bytes=40_000_000).phases()["far_weights"] == 0
    far = replace(near, round_bytes=480_000_000)
    assert far.far_weight_bytes == 0.9 * far.weight_bytes
    assert far.phases()["far_weights"] > far.phases()["moved"]


def test_samples_on_a_gpu_follow_one_another() -> None:
    samples = [Sample("conv", 8, (14, 14), 8, epilogue="add")] * 8
    (block,) = chain(samples, busy=True)["main"].body.blocks
    calls = [b.value for b in block.bindings if isinstance(b.value, relax.Call)]
    names = [call.op.name for call in calls]
    conv, mean = "relax.nn.conv2d", "relax.mean"  # each result becomes a number by two means
    order = [name for name in names if name in (conv, mean)]
    assert order == [conv] * 6 + [mean] * 12 + [conv] * 2 + [mean] * 4
