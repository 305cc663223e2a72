"""Plans with shares and splits on several processors: the same numbers, clear faults."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.mutations import campaign, damaged_json, dice_of
from helpers.relax_helpers import answers, random_const, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, Split
from tvm_stretch.read import load_network


def conv(x: relax.Expr, outputs: int, kernel: int = 3, groups: int = 1, stride: int = 1):
    inputs = int(x.ty.shape.values[1])
    weight = random_const(outputs, inputs // groups, kernel, kernel, seed=outputs)
    padding = kernel // 2
    return relax.op.nn.conv2d(x, weight, strides=stride, padding=padding, groups=groups)


@cache
def two_blocks(size: int = 12, stride: int = 1, channels: int = 16) -> tvm.IRModule:
    """conv2d, relu, [conv2d1, relu1, conv2d2, add, relu2], [conv2d3 dw, relu3, conv2d4, relu4]."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, size, size), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            stem = bb.emit(relax.op.nn.relu(bb.emit(conv(x, channels, stride=stride))))
            inner = bb.emit(relax.op.nn.relu(bb.emit(conv(stem, 24))))
            total = bb.emit(relax.op.add(bb.emit(conv(inner, channels)), stem))
            block = bb.emit(relax.op.nn.relu(total))
            deep = bb.emit(relax.op.nn.relu(bb.emit(conv(block, channels, groups=channels))))
            out = bb.emit_output(relax.op.nn.relu(bb.emit(conv(deep, 16, kernel=1))))
        bb.emit_func_output(out)
    return load_network(bb.get())


NAMES = ("cpu", "fake", "npu")
TARGETS = [TARGET, fake_processor("fake"), fake_processor("npu")]


def plan(shares: dict | None = None, splits: tuple[Split, ...] = ()) -> Plan:
    return Plan(NAMES, (), shares=shares or {}, splits=splits)


def compile_with(mod: tvm.IRModule, planned: object, targets: list | None = None) -> ts.Model:
    return ts.compile(mod, targets or TARGETS, plan=planned, cpu_threads=1, debug=True)


@cache
def answer(mod: tvm.IRModule) -> np.ndarray:
    """What the virtual machine computes from `random_inputs`."""
    (result,) = answers(mod, *random_inputs(mod))
    return result


def check(mod: tvm.IRModule, planned: object) -> ts.Model:
    model = compile_with(mod, planned)
    inputs = random_inputs(mod)
    want = answer(mod)
    got = model(*inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1, np.abs(want).max()))
    return model


def places(model: ts.Model) -> dict[str, str]:
    return model.plan.processor_of()


def test_shares_go_to_the_processors_that_the_numbers_name() -> None:
    model = check(two_blocks(), plan({"conv2d1": (8, 0, 16), "conv2d2": (0, 8, 8)}))
    found = places(model)
    assert found["conv2d1.p0"] == "cpu" and found["conv2d1.p2"] == "npu"
    assert found["conv2d2.p1"] == "fake" and found["relu2.p2"] == "npu"
    assert not any(name.startswith("conv2d1.p1") for name in found)
    assert found["conv2d"] == "cpu", "everything else goes to the first processor"


def test_rows_and_channels_go_to_the_processors_that_the_ratios_name() -> None:
    splits = (RowSplit("x", "relu", (1, 0, 2)), ChannelSplit("relu", "relu2", (0, 1, 1), 8))
    found = places(check(two_blocks(), plan(splits=splits)))
    assert found["conv2d.r0"] == "cpu" and found["conv2d.r1"] == "npu"
    assert found["conv2d1.c0"] == "fake" and found["conv2d1.c1"] == "npu"


def test_all_choices_at_once() -> None:
    mod = two_blocks()
    chosen = plan({"conv2d4": (8, 8, 0)}, (RowSplit("x", "relu2", (2, 1, 1)),))
    model = check(mod, chosen)
    again = check(mod, json.loads(model.plan.to_json()))
    assert again.plan == model.plan, "a plan with its regions pins everything"


def test_a_plan_is_for_processors_by_name_not_by_place() -> None:
    mod = two_blocks()
    two = Plan(("fake", "cpu"), (), shares={"conv2d1": (8, 16)})
    found = places(check(mod, two))
    assert found["conv2d1.p0"] == "cpu" and found["conv2d1.p1"] == "fake"
    assert compile_with(mod, two).plan.shares == {"conv2d1": (16, 8, 0)}


def test_choices_travel_with_the_artifact(tmp_path: Path) -> None:
    model = check(two_blocks(), plan({"conv2d1": (8, 8, 8)}, (RowSplit("x", "relu", (1, 1, 0)),)))
    model.export(tmp_path / "model.so")
    assert ts.load(tmp_path / "model.so").plan == model.plan
    model.plan.write(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    assert Plan.read(tmp_path / "plan.json").to_json() == text


@settings(max_examples=8)
@given(
    size=st.integers(5, 14),
    stride=st.integers(1, 2),
    by=st.sampled_from(["rows", "channels", "shares", "rows and shares"]),
    first=st.sampled_from(["repeat", "split"]),
    ratios=st.tuples(*[st.integers(0, 4)] * 3).filter(lambda r: sum(n > 0 for n in r) > 1),
)
def test_random_choices_keep_the_numbers(
    size: int, stride: int, by: str, first: str, ratios: tuple[int, int, int]
) -> None:
    """Blocks, strides, sizes and ratios: what can be split gives the same numbers."""
    mod = two_blocks(size, stride, channels=32)
    shares, splits = {}, []
    if "rows" in by:
        splits.append(RowSplit("x", "relu2", ratios))
    if by == "channels":
        splits.append(ChannelSplit("relu", "relu2", ratios, 8, first))
    if "shares" in by:
        unit = 32 // sum(ratios) // 8 * 8
        rest = 32 - sum(n * unit for n in ratios)
        widths = [n * unit for n in ratios]
        widths[max(range(3), key=lambda i: ratios[i])] += rest
        shares["conv2d" if by == "shares" else "conv2d4"] = tuple(
            w // 2 if by != "shares" else w for w in widths
        )
    try:
        check(mod, plan(shares, tuple(splits)))
    except (UnsupportedError, PlanError) as error:
        assert str(error).startswith("expected "), "ratios that leave a branch nothing"


@pytest.mark.parametrize(
    ("shares", "splits", "says"),
    [
        ({"conv9": (8, 8, 8)}, (), "expected operators of the network for shares, got ['conv9']"),
        ({"conv2d1": (8, 8, 16)}, (), "expected 24 output channels in all for the shares"),
        ({"relu1": (8, 8, 8)}, (), "expected dense convolutions and matrix products"),
        ({"conv2d3": (8, 8, 0)}, (), "expected dense convolutions and matrix products"),
        ({}, (RowSplit("y", "relu", (1, 1, 0)),), "expected the name of a tensor for start"),
        ({}, (RowSplit("relu", "x", (1, 1, 0)),), "expected a tensor computed from 'relu'"),
        (
            {},
            (RowSplit("x", "relu1", (1, 1, 0)), RowSplit("relu", "relu2", (1, 1, 0))),
            "one tensor in and one out",
        ),
        (
            {},
            (RowSplit("x", "relu2", (1, 1, 0)), RowSplit("relu", "relu2", (1, 1, 0))),
            "segments that share no operator",
        ),
        (
            {"conv2d1": (8, 8, 8)},
            (RowSplit("relu", "relu2", (1, 1, 0)),),
            "shares of operators outside of the plan's splits, got ['conv2d1']",
        ),
        ({}, (RowSplit("x", "relu", (100, 1, 0)),), "at least 1 of 12 for each of the ratios"),
        ({}, (RowSplit("x", "relu", (2, -1, 0)),), "two or more above 0"),
        ({}, (RowSplit("x", "relu", (1, 0, 0)),), "two or more above 0"),
        ({}, (ChannelSplit("x", "relu", (1, math.nan, 0)),), "two or more above 0"),
        ({}, (ChannelSplit("x", "relu", (1, 1, 0), 0),), "positive number for block"),
    ],
)
def test_choices_that_do_not_fit_are_refused(
    shares: dict, splits: tuple[Split, ...], says: str
) -> None:
    with pytest.raises((PlanError, UnsupportedError), match=r"^expected .*, got") as caught:
        compile_with(two_blocks(), plan(shares, splits))
    assert says in str(caught.value)


def test_choices_for_other_processors_are_refused() -> None:
    for chosen in (plan({"conv2d1": (8, 8, 8)}), plan(splits=(RowSplit("x", "relu", (1, 0, 1)),))):
        with pytest.raises(PlanError, match="got 'npu'; add its target"):
            compile_with(two_blocks(), chosen, TARGETS[:2])


def test_parts_that_a_processor_refuses_are_named() -> None:
    def no_relu(call: relax.Call) -> str | None:
        return "no relu here" if call.op.name == "relax.nn.relu" else None

    targets = [TARGET, fake_processor("fake", refuse=no_relu), fake_processor("npu")]
    with pytest.raises(UnsupportedError, match=r"relu1.p1 on fake: no relu here"):
        compile_with(two_blocks(), plan({"conv2d1": (8, 8, 8)}), targets)


def test_edited_regions_are_checked_against_the_branched_network() -> None:
    data = json.loads(compile_with(two_blocks(), plan({"conv2d1": (8, 8, 8)})).plan.to_json())
    with pytest.raises(PlanError, match=r"got 'conv2d1.p0'; similar ones are"):
        compile_with(two_blocks(), {**data, "shares": {}})


# --- plans that were edited by hand ---------------------------------------------------------------


@pytest.fixture(scope="module")
def written() -> str:
    """The JSON of a plan with shares, rows and regions."""
    chosen = plan({"conv2d1": (8, 8, 8)}, (RowSplit("x", "relu", (1, 1, 0)),))
    return compile_with(two_blocks(), chosen).plan.to_json()


def test_a_region_moves_to_another_processor(written: str) -> None:
    data = json.loads(written)
    (region, *_) = (r for r in data["regions"] if "conv2d4" in r["operators"])
    region["processor"] = "npu"
    assert places(check(two_blocks(), data))["conv2d4"] == "npu"


def test_numbers_are_edited_and_regions_left_out(written: str) -> None:
    data = json.loads(written)
    del data["regions"]
    data["shares"]["conv2d1"] = [16, 0, 8]
    data["splits"][0]["ratios"] = [3, 1, 1]
    found = places(check(two_blocks(), data))
    assert found["conv2d1.p0"] == "cpu" and found["conv2d1.p2"] == "npu"
    assert "conv2d1.p1" not in found and found["conv2d.r2"] == "npu"


@pytest.mark.parametrize(
    "edit", [{"shares": {"conv2d1": [16, 0, 8]}}, {"splits": []}, {"shares": {}}]
)
def test_parts_that_no_longer_fit_say_what_helps(written: str, edit: dict) -> None:
    data = {**json.loads(written), **edit}
    with pytest.raises(PlanError, match=r"got .*; (similar|add)") as caught:
        compile_with(two_blocks(), data)
    if data["shares"] or data["splits"]:
        assert "leave the plan's regions out" in str(caught.value)


def test_targets_may_stand_in_another_order_or_be_more(written: str) -> None:
    data = json.loads(written)
    for targets in (TARGETS[::-1], [*TARGETS, fake_processor("extra")]):
        assert places(compile_with(two_blocks(), data, targets)) == places(
            compile_with(two_blocks(), data)
        )


def test_regions_may_be_called_like_operators_and_kernels() -> None:
    mod = two_blocks(channels=32)
    chosen = plan({"conv2d1": (8, 8, 8), "conv2d2": (16, 16, 0)})
    data = json.loads(compile_with(mod, chosen).plan.to_json())
    names = ["winograd_conv2d", "conv2d", "relu", "fused_conv2d_relu", "concat", "add", "cpu"]
    for region, name in zip(data["regions"], names, strict=False):
        region["name"] = name
    model = check(mod, data)
    found = [region.name for region in model.plan.regions]
    assert found[:5] == names[:5]
    assert {region.name for region in model.graph.regions} <= {*found, "outputs"}


@campaign(2000)
def test_any_damage_fits_or_is_refused(written: str, piece: int) -> None:
    """Values replaced, removed, doubled or swapped: an error of ours, or the same numbers."""
    for dice in dice_of(piece):
        damaged = damaged_json(dice, json.loads(written))
        try:
            check(two_blocks(), damaged)
        except (PlanError, UnsupportedError) as error:
            assert re.match(r"(?s)expected .*, got .*; ", str(error)), (damaged, error)
