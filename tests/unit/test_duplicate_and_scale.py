"""Stretched networks: the same function if nothing is scaled; what scaling makes of blocks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import module
from helpers.relax_numpy import evaluate
from helpers.stretch_networks import BLOCKS, SIZE, basic, network, regnet, shuffle_unit
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.ir import assert_structural_equal

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.lab.stretching.segments import find_runs
from tvm_stretch.network.emitting.scale_operators import Scaler, Value
from tvm_stretch.network.emitting.weights import Weights
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.repeated_blocks import detect_blocks, detect_stages
from tvm_stretch.passes.duplicate_and_scale import (
    branch_operators,
    duplicate_and_scale,
    kept_blocks,
    narrowed,
    with_sources,
)
from tvm_stretch.passes.name_operators import rename_variables
from tvm_stretch.plan.design import MERGES, Branch, Design, StretchedSegment
from tvm_stretch.read import load_network

X = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE)).astype("float32")


def ends(mod: tvm.IRModule) -> list[tuple[str, str]]:
    """The two stages of `network`."""
    stages = detect_stages(mod)[-2:]
    return [(stage.blocks[0].inputs[0], stage.blocks[-1].output) for stage in stages]


def design(
    mod: tvm.IRModule, depths: list[list[int]], widths: list[list[int]], merge: str = "concat"
) -> Design:
    return Design.of_lists(
        ends(mod), ["cpu", "gpu", "dsp"][: len(depths[0])], depths, widths, merge
    )


def convolutions(mod: tvm.IRModule) -> list[str]:
    """``name: outputs x inputs of a group``."""
    found = [op for op in Operators(mod["main"]) if op.kind == "nn.conv2d"]
    return [f"{op.name}: {op.arg_shapes[1][0]}x{op.arg_shapes[1][1]}" for op in found]


def assert_same(mod: tvm.IRModule, other: tvm.IRModule) -> None:
    expected, got = evaluate(mod, X), evaluate(other, X)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.variants(4)
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("kind", BLOCKS)
def test_branches_as_deep_and_wide_as_before_change_nothing(kind: str, merge: str):
    mod = network(BLOCKS[kind])
    whole = design(mod, [[2, 2], [3, 3]], [[16, 16], [32, 32]], merge)
    twice = duplicate_and_scale(mod, whole, noise=0)
    assert relax.analysis.check_well_formed(twice)
    assert_same(mod, twice)
    added = {name.rpartition(".b")[0] for name in branch_operators(twice)["gpu"]}
    assert added >= {name for block in detect_blocks(mod)[-5:] for name in block.operators}


SLOW = {"squeeze_mb_conv", "shuffle_unit", "bottleneck", "mb_conv"}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.full) if k in SLOW else k for k in BLOCKS]
)
def test_scaled_branches(kind: str):
    """Each merge: widths that differ, fewer blocks, three branches."""
    mod = network(BLOCKS[kind])
    for merge in MERGES:
        depths, widths = [[1, 2, 1], [2, 3, 1]], [[12, 8, 4], [16, 24, 8]]
        scaled = duplicate_and_scale(mod, design(mod, depths, widths, merge))
        assert relax.analysis.check_well_formed(scaled)
        assert np.isfinite(evaluate(scaled, X)).all()
        shapes = {op.name: op.shape for op in Operators(scaled["main"])}
        total = 48 if merge == "concat" else 30
        assert shapes[ends(mod)[1][1]] == (1, total, 3, 3)


def test_a_basic_block():
    """Before: 8 -> 16 channels, twice; expected: 12 and 4, which the next stage reads beside."""
    mod = network(basic)
    assert convolutions(mod)[:6] == [
        *("conv2d: 8x3", "conv2d1: 16x8", "conv2d2: 16x16", "conv2d3: 16x8"),
        *("conv2d4: 16x16", "conv2d5: 16x16"),
    ]
    scaled = duplicate_and_scale(mod, design(mod, [[1, 2], [1, 1]], [[12, 4], [32, 8]]))
    assert convolutions(scaled) == [
        "conv2d: 8x3",
        *("conv2d1.b0: 12x8", "conv2d2.b0: 12x12", "conv2d3.b0: 12x8"),
        *("conv2d1.b1: 4x8", "conv2d2.b1: 4x4", "conv2d3.b1: 4x8"),
        *("conv2d4.b1: 4x4", "conv2d5.b1: 4x4"),
        *("conv2d6.b0: 32x16", "conv2d7.b0: 32x32", "conv2d8.b0: 32x16"),
        *("conv2d6.b1: 8x16", "conv2d7.b1: 8x8", "conv2d8.b1: 8x16"),
    ]
    head = [op for op in Operators(scaled["main"]) if op.kind == "matmul"]
    assert head[0].arg_shapes == ((1, 40), (40, 5))


def test_other_blocks():
    """What is inside follows the result, or what is read where that is expanded; groups stay."""
    expected = {
        "bottleneck": ["2x8", "2x2", "8x2", "8x8"],
        "regnet": ["8x8", "8x4", "8x8", "8x8"],
        "mb_conv": ["24x8", "24x1", "8x24"],
        "squeeze_mb_conv": ["24x8", "24x1", "4x24", "24x4", "8x24"],
        "separable": ["8x1", "8x8"],
        "plain": ["8x8"],
        "shuffle_unit": ["8x1", "4x8", "4x8", "4x1", "4x4"],
    }
    for kind, shapes in expected.items():
        mod = network(BLOCKS[kind])
        scaled = duplicate_and_scale(mod, design(mod, [[1, 1], [1, 1]], [[12, 8], [8, 8]]))
        first = [c.split(": ")[1] for c in convolutions(scaled) if ".b1: " in c][: len(shapes)]
        assert first == shapes, kind


def test_merges():
    mod = network(BLOCKS["mb_conv"])
    lists = [[1, 1], [1, 1]], [[16, 8], [32, 16]]
    restored = convolutions(duplicate_and_scale(mod, design(mod, *lists, "restore")))
    assert [c for c in restored if ".b" not in c.split(":")[0]] == ["conv2d: 8x3"]
    new = [c for c in restored if ".restore." in c]
    assert [c.split(": ")[1] for c in new] == ["8x16", "16x32"]  # 8 and 16 are as wide as they must
    projected = convolutions(duplicate_and_scale(mod, design(mod, *lists, "project")))
    entries = [c.split(": ")[1] for c in projected if ".enter." in c]
    assert entries == ["8x8", "8x8", "16x16", "8x16"]


def middle(mod: tvm.IRModule) -> StretchedSegment:
    """The last two blocks of the last stage, on their own."""
    last = detect_blocks(mod)[-2:]
    branches = (Branch("cpu", 2, 24), Branch("gpu", 1, 16))
    return StretchedSegment(last[0].inputs[0], last[1].output, branches)


def test_a_segment_within_a_stage():
    """A sum's other operand, or what a shuffle passes on, gets a 1x1 convolution to the width."""
    for block, name in ((basic, "shortcut"), (regnet, "shortcut"), (shuffle_unit, "fit")):
        mod = network(block)
        scaled = duplicate_and_scale(mod, Design((middle(mod),)))
        added = [c.split(": ")[1] for c in convolutions(scaled) if f".{name}." in c]
        assert added == ["24x32", "16x32"]
        whole = tuple(Branch(p, 2, 32) for p in ("cpu", "gpu"))
        twice = StretchedSegment(middle(mod).start, middle(mod).end, whole)
        assert_same(mod, duplicate_and_scale(mod, Design((twice,)), noise=0))


def test_blocks_behind_a_stretched_segment_read_all_of_it():
    mod = network(basic)
    first, second = detect_blocks(mod)[-3:-1]
    branches = (Branch("cpu", 1, 32), Branch("gpu", 1, 32))
    segment = StretchedSegment(first.inputs[0], first.output, branches)
    scaled = duplicate_and_scale(mod, Design((segment,)), noise=0)
    assert_same(mod, scaled)
    shortcuts = [c.split(": ") for c in convolutions(scaled) if ".shortcut" in c]
    assert [shape for _, shape in shortcuts] == ["32x64"]
    assert second.output in {op.name for op in Operators(scaled["main"])}


def test_no_design_changes_nothing():
    mod = network(basic)
    same = duplicate_and_scale(mod, Design(()))
    assert_structural_equal(same["main"].body, mod["main"].body, map_free_vars=True)
    assert branch_operators(mod) == branch_operators(same) == {}


def test_one_branch_only_scales():
    mod = network(basic)
    one = duplicate_and_scale(mod, design(mod, [[1], [2]], [[16], [32]]))
    assert [c for c in convolutions(one) if ".b" in c] == []
    assert len(convolutions(one)) == len(convolutions(mod)) - 4
    assert branch_operators(one) == {}


def test_start_without_the_weights():
    mod = network(basic)
    twice = design(mod, [[2, 2], [3, 3]], [[16, 16], [32, 32]])
    first, again, other = (
        evaluate(duplicate_and_scale(mod, twice, warm=False, seed=seed), X) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize("warm", [True, False])
def test_dense_layers_of_several_axes(warm: bool):
    """They do not sum over the axis of channels, which stay as they are."""
    weight = np.ones((4, 3), "float32")

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.matmul(relax.op.nn.relu(x), relax.const(weight))

    operators = Operators(module(body, (1, 5, 4))["main"])
    *_, matmul = operators
    (name,) = matmul.inputs
    scaler = Scaler(operators, Weights(warm, np.random.default_rng(0)))
    same = scaler.unchanged(name)
    found = scaler.again(matmul, {name: same}, "again")
    assert found.channels == 5 and shape_of(found.var) == [1, 5, 3]
    with pytest.raises(UnsupportedError, match=f"got '{matmul.name}'"):
        scaler.again(matmul, {name: Value(same.var, np.arange(4))}, "other")


def test_equal_branches_are_told_apart():
    """Else they would stay equal in training, and the compiler would compute one of them."""
    mod = network(basic)
    twice = duplicate_and_scale(mod, design(mod, [[2, 2], [3, 3]], [[16, 16], [32, 32]]))
    names = {op.name for op in Operators(load_network(twice)["main"])}
    assert {"conv2d1.b0", "conv2d1.b1"} <= names
    expected, got = evaluate(mod, X), evaluate(twice, X)
    assert 1e-5 < np.abs(got - expected).max() / np.abs(expected).max() < 0.1


def test_names_survive_folding():
    mod = network(basic)
    scaled = duplicate_and_scale(mod, design(mod, [[1, 2], [1, 1]], [[12, 4], [32, 8]]))
    loaded = load_network(scaled)
    folded = Operators(loaded["main"])
    assert branch_operators(loaded) == branch_operators(scaled)
    assert not [op for op in folded if op.kind == "nn.batch_norm"]
    names = set(branch_operators(scaled)["gpu"])
    assert {"conv2d1.b1", "relu1.b1", "add1.b1"} <= {op.name for op in folded} & names
    assert_same(scaled, loaded)


@pytest.mark.parametrize(
    ("depths", "widths", "message"),
    [
        ([[2, 2]], [[16, 16], [32, 32]], "each of 2 segments, got 1 and 2"),
        ([[2, 2], [3, 3]], [[16], [32, 32]], "as many depths as widths for segment 0"),
        ([[0, 2], [3, 3]], [[16, 16], [32, 32]], "a depth from 1 to 2 blocks"),
        ([[2, 2], [3, 4]], [[16, 16], [32, 32]], "a depth from 1 to 3 blocks"),
        ([[2, 2], [3, 3]], [[16, 16], [32, 33]], "a width from 3 to 32 channels"),
        ([[2, 2], [3, 3]], [[16, 16], [2, 32]], "a width from 3 to 32 channels"),
        ([[2, 2], [3, 3]], [[16, 10], [32, 32]], "expected a multiple of 4 for the width"),
    ],
)
def test_designs_that_do_not_fit(depths, widths, message):
    mod = network(regnet)
    with pytest.raises(PlanError, match=message):
        duplicate_and_scale(mod, design(mod, depths, widths))


def test_a_shuffle_has_whole_groups():
    mod = network(shuffle_unit)
    odd = design(mod, [[2, 2], [3, 3]], [[16, 8], [32, 19]])
    with pytest.raises(PlanError, match=r"a multiple of 2 for .* which shuffles 2 groups, got 19"):
        duplicate_and_scale(mod, odd)
    run = find_runs(Operators(mod["main"]))[0]
    assert {run.rounded(percent / 100) % 2 for percent in range(10, 101)} == {0}


def test_segments_that_are_none():
    mod = network(basic)
    (start, end), (_, last) = ends(mod)
    whole = (Branch("cpu", 1, 16),)
    for segment in (
        StretchedSegment(end, start, whole),
        StretchedSegment(start, "nowhere", whole),
        StretchedSegment("relu1", last, whole),
    ):
        with pytest.raises(PlanError, match="a segment between two ends of blocks"):
            duplicate_and_scale(mod, Design((segment,)))
    twice = StretchedSegment(start, end, whole)
    with pytest.raises(PlanError, match="segments that share no block"):
        duplicate_and_scale(mod, Design((twice, twice)))


def test_layers_that_cannot_be_scaled():
    """A convolution in groups of two, to twice as many channels."""

    def body(b, x, width, stride, seed):
        weight = relax.const(np.ones((width, 2, 1, 1), "float32"))
        groups = int(x.ty.shape.values[1]) // 2
        y = b.emit(relax.op.nn.conv2d(x, weight, strides=stride, groups=groups))
        return relax.op.nn.relu(y)

    mod = network(body, [(16, 1), (32, 1)], stem=8)
    blocks = detect_blocks(mod)
    branches = (Branch("cpu", 1, 8), Branch("gpu", 1, 8))
    segment = StretchedSegment(blocks[-2].inputs[0], blocks[-2].output, branches)
    with pytest.raises(UnsupportedError, match="it is grouped, and wider or narrower"):
        duplicate_and_scale(mod, Design((segment,)))


@pytest.mark.parametrize("kind", BLOCKS)
def test_where_channels_come_from(kind: str):
    """Every tensor of a branch stands for channels that the given network has; groups are whole."""
    mod = network(BLOCKS[kind])
    own = design(mod, [[1, 2], [2, 3]], [[12, 8], [16, 24]], "restore")
    scaled, sources = with_sources(mod, own)
    before, after = Operators(mod["main"]), Operators(scaled["main"])
    for name in branch_operators(scaled)["gpu"]:
        shape = after[name].shape
        if len(shape) != 4:  # a tuple of statistics, channels in groups
            continue
        source = sources[name]
        assert len(source.channels) == shape[1]
        assert source.channels.max() < before.shape(source.tensor)[1]
        assert len(source.channels) % source.unit == 0
        if source.tied:
            alike = [s.channels for s in sources.values() if s.tied == source.tied]
            assert all(np.array_equal(channels, source.channels) for channels in alike)
    tied = {source.tied for source in sources.values()} - {""}
    assert bool(tied) == (kind not in ("plain", "separable"))


def test_which_blocks_stay():
    assert [kept_blocks([6], depth) for depth in (1, 2, 3, 6)] == [
        *([0], [0, 5], [0, 2, 5]),
        [0, 1, 2, 3, 4, 5],
    ]
    for stages in ([19], [1, 1], [3, 4], [4, 1, 6], [2, 5, 5, 3]):
        firsts = {sum(stages[:i]) for i in range(len(stages))}
        for depth in range(len(stages), sum(stages) + 1):
            kept = kept_blocks(stages, depth)
            assert kept == sorted(set(kept)) and len(kept) == depth and firsts <= {*kept}
    assert [narrowed(112, width, 160) for width in (160, 128, 8)] == [112, 88, 8]


def reordered(mod: tvm.IRModule, seed: int) -> tvm.IRModule:
    """The same bindings in another order, under other names."""
    main, chance = mod["main"], random.Random(seed)
    left = list(main.body.blocks[0].bindings)
    done, order = set(main.params), []
    while left:
        ready = [b for b in left if set(relax.analysis.free_vars(b.value)) <= done]
        order.append(chance.choice(ready))
        left.remove(order[-1])
        done.add(order[-1].var)
    body = relax.SeqExpr([relax.DataflowBlock(order)], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure)
    shuffled = mod.clone()
    shuffled["main"] = function.with_attrs(dict(main.attrs or {}))
    labels = chance.sample(range(1000), len(order))
    names = {binding.var: f"t{label}" for binding, label in zip(order, labels, strict=True)}
    return rename_variables(shuffled, names)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(BLOCKS)), st.integers(0, 99))
@pytest.mark.full
def test_names_and_order_do_not_matter(kind: str, seed: int):
    mod = network(BLOCKS[kind])
    other = reordered(mod, seed)
    lists = [[1, 2], [2, 1]], [[8, 12], [24, 16]]
    results = [
        evaluate(duplicate_and_scale(m, design(m, *lists, "restore"), noise=0), X)
        for m in (mod, other)
    ]
    assert np.allclose(*results, rtol=1e-4, atol=1e-5 * np.abs(results[0]).max())
