"""Branched networks, compiled by us, answer what ONNX Runtime answers on the whole network."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.onnx_models import random_inputs, run_onnxruntime
from helpers.relax_helpers import answers

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.emitting.row_branches import plan_row_split
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.channel_plan import plan_channel_split
from tvm_stretch.network.properties.repeated_blocks import detect_blocks
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, Split
from tvm_stretch.read import load_network


def alternate(operators: Operators, ratios: tuple[float, ...]) -> list[Split]:
    """Every block split, by rows and by channels in turn where both are possible."""
    splits: list[Split] = []
    for index, block in enumerate(detect_blocks(operators)):
        ends = block.inputs[0], block.output
        rows, channels = RowSplit(*ends, ratios), ChannelSplit(*ends, ratios)
        for split in (rows, channels) if index % 2 else (channels, rows):
            plan = plan_row_split if split is rows else plan_channel_split
            try:
                plan(operators, split)
            except UnsupportedError:
                continue
            splits.append(split)
            break
    return splits


def check(
    name: str, size: int, ratios: tuple[float, ...], count: int, compiled: bool = False
) -> None:
    """Our compiler takes far longer than NumPy."""
    model = zoo.build(name, size=size)
    mod = load_network(model)
    splits = alternate(Operators(mod["main"]), ratios)
    assert len(splits) == count
    branched, _ = branch_segments(mod, splits)
    inputs = random_inputs(model)
    (expected,) = run_onnxruntime(model, inputs)
    if compiled:
        got = ts.compile(branched, targets=[TARGET])(**inputs)
    else:
        (got,) = answers(branched, *inputs.values())
    assert np.abs(got - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    "name, size, ratios, count",
    [
        pytest.param("resnet18", 64, (3, 2), 8, marks=pytest.mark.full),
        ("squeezenet1_1", 67, (2, 1, 1), 8),
    ],
)
def test_small_input(name: str, size: int, ratios: tuple[float, ...], count: int):
    check(name, size, ratios, count)


@pytest.mark.full
@pytest.mark.parametrize(
    "name, size, ratios, count",
    [
        ("mobilenet_v2", 224, (1, 1), 17),
        ("resnet50", 224, (5, 4), 16),
        ("regnetx_1_6gf", 224, (2, 1), 18),
        ("efficientnet_lite0", 224, (1, 1), 16),
        ("mobilenet_v3_large", 224, (3, 2), 15),
        ("inception_v3", 299, (1, 1), 11),
    ],
)
def test_published_input(name: str, size: int, ratios: tuple[float, ...], count: int):
    check(name, size, ratios, count, compiled=True)
