"""Kernels of a GPU are learned without what waiting for their launches adds."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from helpers.cpu_targets import TARGET
from helpers.gpu_checks import LARGE
from tvm.target import Target

from tvm_stretch.plan.cost.prediction import CostModel, Prediction
from tvm_stretch.plan.measuring.bench import in_place
from tvm_stretch.plan.measuring.campaign import Campaign
from tvm_stretch.plan.measuring.dataset import Dataset
from tvm_stretch.plan.measuring.samples import Sample, wide_window
from tvm_stretch.plan.measuring.similar import kernel_of_sample
from tvm_stretch.plan.measuring.timing import busy_times
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import opencl_processor

CPU = cpu_processor(TARGET, 1)
BIG = replace(LARGE, name="NVIDIA H100", max_group_size=1024, compute_units=132)
GPU = opencl_processor(Target("opencl"), CPU, BIG)


def trace_of(*kernels: tuple[int, int, int]) -> dict[str, Any]:
    """A trace of kernels, each with its node, nanoseconds since the one before, and duration."""
    spans, now = [], 50_000
    for node, gap, duration in kernels:
        spans.append(
            {"kind": "kernel", "id": node, "start": now + gap, "end": now + gap + duration}
        )
        now += gap + duration
    spans.append({"kind": "send", "start": 0, "end": 9})
    return {"regions": [spans[::-1]]}


def test_what_waiting_adds_is_no_part_of_a_kernel() -> None:
    in_time = [(0, 0, 90_000), (1, 1_200, 4_000), (2, 2_200, 4_000)]
    late = [(3, 3_200, 5_700), (4, 20_000, 6_300), (5, 7_500, 3_000)]
    # the first one waited, too; at least a half of each is its own
    assert busy_times(trace_of(*in_time), 3) == [87_700, 4_000, 4_000]
    assert busy_times(trace_of(*in_time, *late), 6)[3:] == [4_300, 4_000, 1_500]
    twice = trace_of((0, 0, 9_000), (1, 1_200, 2_000), (1, 9_000, 6_000))  # a node of two launches
    assert busy_times(twice, 2) == [6_700, 5_700]


def test_bytes_of_a_round_count_once_on_a_gpu() -> None:
    """Two nodes write the same memory in turns, and read a constant each."""
    spans = [("arena", 0, 100), ("arena", 50, 100), ("constant", 0, 30), ("constant", 30, 30)]
    tensors = [SimpleNamespace(kind=k, buffer=0, offset=o, bytes=b) for k, o, b in spans]
    nodes = [
        SimpleNamespace(kernel="k", inputs=(a, weight), outputs=(b,))
        for a, weight, b in ((0, 2, 1), (1, 3, 0), (0, 2, 1))
    ]
    kernel = kernel_of_sample(Sample("conv", 64, (14, 14), 64), GPU.machine)
    assert kernel is not None
    graph: Any = SimpleNamespace(tensors=tensors, nodes=nodes)
    for once, expected in ((True, 210), (False, 690)):
        (found,) = set(
            None if k is None else k.round_bytes for k in in_place(graph, {"k": kernel}, once=once)
        )
        assert found == expected
    (placed, *_) = in_place(graph, {"k": kernel}, flushed=True, once=True)
    assert placed is not None and replace(placed, round_bytes=0) == replace(kernel, round_bytes=0)
    assert placed.round_bytes > 10**9


def test_campaigns_of_gpus_have_convolutions_for_winograd(tmp_path: Any) -> None:
    dice = random.Random(0)
    found = [wide_window(dice) for _ in range(60)]
    assert all(sample.is_possible for sample in found)
    kernels = [kernel_of_sample(sample, GPU.machine) for sample in found[:4]]
    families = {kernel.family for kernel in kernels if kernel is not None}
    assert families == {"group_conv", "group_winograd"}

    sizes: list[int] = []

    class Samples(Workshop):
        def samples(self, samples: Any, apart: bool = False) -> Any:
            sizes.append(len(samples))

    for processors, extra in (([GPU, CPU], [2, 1, 1, 2]), ([CPU], [0, 0, 0, 0])):
        campaign = Campaign(Samples(processors), Dataset(tmp_path, {}, []), random.Random(0))
        sizes.clear()
        for batch in range(4):
            campaign.prepare(batch)
        assert sizes == [12 + n for n in extra]


def test_the_search_prices_a_gpu_in_a_network_whose_weights_its_cache_keeps() -> None:
    seen: list[Any] = []

    class Model(CostModel):
        def predict_all(self, kernels: Any) -> list[Prediction]:
            seen.extend(kernels)
            return [Prediction(7, 7, 7, "measured", ())] * len(kernels)

    models: Any = {CPU.name: Model(), GPU.name: Model()}
    costs = Costs((CPU, GPU), models, lambda *_: 0, (1.0, 1.0), "", True)
    kernel = kernel_of_sample(Sample("conv", 64, (14, 14), 64), GPU.machine)
    assert kernel is not None
    assert costs.sum([kernel], 0) == costs.sum([kernel], 1) == 7
    near = replace(kernel, round_bytes=24_000_000 + kernel.weight_bytes)
    assert seen == [kernel, near] and near.far_weight_bytes == 0
