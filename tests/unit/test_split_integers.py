"""Integer networks in shares, bands and summands: the very same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.branch_networks import ROW_LAYERS
from helpers.cpu_targets import host_of
from helpers.integer_networks import IntegerNetwork
from helpers.quantised_models import Quantised, integers, qdq
from helpers.relax_helpers import answers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.split_outputs import can_be_shared, split_outputs
from tvm_stretch.plan.splits import ChannelSplit, RowSplit, Split
from tvm_stretch.read import load_network

RATIOS = st.lists(st.integers(1, 9), min_size=2, max_size=3)
BLOCK = [("residual", 3, True), ("fork",), ("swish",), ("residual", 1, False)]


def network(layers, shape):
    """A random network of these layers, if they fit."""
    return IntegerNetwork(len(layers)).main(layers, shape)


def assert_equal(before, after) -> None:
    """Both compute the same integers."""
    assert relax.analysis.check_well_formed(after)
    shape = [int(d) for d in before["main"].params[0].ty.shape.values]
    x = np.random.default_rng(1).integers(0, 256, shape).astype("uint8")
    for want, got in zip(answers(before, x), answers(after, x), strict=True):
        np.testing.assert_array_equal(got, want)


def kinds(mod) -> list[str]:
    return [operator.kind for operator in Operators(mod["main"])]


def branched(mod, split: Split):
    try:
        return branch_segments(mod, [split])[0]
    except UnsupportedError:
        assume(False)


def ends(mod) -> tuple[str, str]:
    operators = Operators(mod["main"])
    return operators.params[0], operators.outputs[0]


@given(ROW_LAYERS, st.integers(6, 30), RATIOS)
@example(BLOCK[:2], 9, [1, 1])
@example([("avg_pool2d", 3, 2, (1, 1, 1, 1), True, False)], 9, [2, 1, 1])
def test_rows(layers, height, ratios) -> None:
    mod = network(layers, (1, 4, height, 6))
    assume(mod is not None)
    assert_equal(mod, branched(mod, RowSplit(*ends(mod), tuple(ratios))))


@given(ROW_LAYERS, RATIOS, st.sampled_from(["repeat", "split"]))
@example(BLOCK, [2, 1], "split")
@example([("fork",), ("conv", (3, 3), 2, (1, 1, 1, 1), 1, 0, 8), ("fork",)], [2, 1], "repeat")
def test_channels(layers, ratios, first) -> None:
    mod = network(layers, (1, 8, 9, 6))
    assume(mod is not None)
    assert_equal(mod, branched(mod, ChannelSplit(*ends(mod), tuple(ratios), 1, first)))


@given(ROW_LAYERS, st.integers(1, 3), st.booleans())
@example(BLOCK, 2, True)
@example([BLOCK[1], ("avg_pool2d", 2, 1, (0, 1, 0, 1), False, True)], 1, False)
def test_shares(layers, part, three) -> None:
    mod = network(layers, (1, 8, 9, 6))
    assume(mod is not None)
    shares = {}
    for operator in Operators(mod["main"]):
        if can_be_shared(operator.call):
            rest = operator.shape[1] - part
            shares[operator.name] = (part, rest // 2, rest - rest // 2) if three else (part, rest)
    assume(shares)
    assert_equal(mod, split_outputs(mod, shares))


def test_summands_are_rounded_once() -> None:
    convs = [("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 8), ("conv", (1, 1), 1, (0,) * 4, 1, 1, 8)]
    mod = network(convs, (1, 8, 5, 5))
    after = branched(mod, ChannelSplit(*ends(mod), (1, 1, 1), 1))
    assert kinds(after) == ["integer.conv2d"] * 6 + ["integer.round"]
    types = [str(operator.binding.var.ty.dtype) for operator in Operators(after["main"])]
    assert types == ["uint8", "int32"] * 3 + ["uint8"]
    assert_equal(mod, after)


def test_dense_layers_are_shared() -> None:
    x = Quantised(integers(3, 20), 0.02, 3)
    weight = Quantised(integers(20, 30, dtype="int8", limit=127), 0.01, 0)
    model = qdq("MatMul", [x], Quantised(np.zeros(0, "uint8"), 0.1, 7), constants=[weight])
    mod = load_network(model)
    (dense,) = [op.name for op in Operators(mod["main"]) if op.kind == "integer.matmul"]
    after = split_outputs(mod, {dense: (13, 17)})
    assert kinds(after).count("integer.matmul") == 2
    assert_equal(mod, after)


def test_compiled() -> None:
    """Templates leave sums in int32 too, of dense and of grouped layers."""
    wide = ("conv", (1, 1), 1, (0,) * 4, 1, 1, 40)
    mod = network([wide, ("residual", 3, True), ("swish",), wide], (1, 40, 6, 5))
    operators = Operators(mod["main"])
    (add,) = [op.name for op in operators if op.kind == "integer.add"]
    after = branched(mod, ChannelSplit(operators.params[0], add, (2, 3), 8, "split"))
    last = operators.outputs[0]
    after = split_outputs(after, {last: (16, 24)})
    x = np.random.default_rng(1).integers(0, 256, (1, 40, 6, 5)).astype("uint8")
    (want,) = answers(mod, x)
    got = ts.compile(after, targets=[host_of(8)])(x)
    np.testing.assert_array_equal(got, want)


def test_sums_of_rounded_numbers_come_after_rounding() -> None:
    """Integers that wrap around: their summands would not."""
    dice, builder = np.random.default_rng(0), relax.BlockBuilder()
    conv = Integer("conv2d", Rounding("uint8", 3, 0, 255), (3,))
    x = relax.Var("x", relax.TensorType((1, 16, 4, 4), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: relax.Expr = x
            for _ in range(2):
                weight = dice.integers(-128, 128, (16, 16, 1, 1)).astype("int8")
                scale = np.full(16, 0.01, "float32")
                constants = map(relax.const, (weight, np.zeros(16, "int32"), scale))
                y = builder.emit(integer_call(builder, conv, y, *constants))
            out = builder.emit_output(relax.op.add(y, y))
        builder.emit_func_output(out)
    before = builder.get()
    operators = Operators(before["main"])
    whole = ChannelSplit(operators.params[0], operators.outputs[0], (1, 1))
    assert_equal(before, branch_segments(before, [whole])[0])


@pytest.mark.parametrize("first", [0, 1])
def test_a_branched_network_is_branched_again(first: int) -> None:
    """What leaves its sums already has no factor: sums of its summands are its sums."""
    layers = [("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 8), ("conv", (1, 1), 1, (0,) * 4, 1, 1, 8)]
    mod = network(layers, (1, 8, 5, 5))
    once = branched(mod, ChannelSplit(*ends(mod), (1, 1), 1))
    (end,) = [op.name for op in Operators(once["main"]) if op.name.endswith(f".c{first}")][1:]
    twice = branched(once, ChannelSplit(ends(mod)[0], end, (1, 1), 1))
    assert kinds(twice).count("integer.conv2d") == 6
    assert "add" in kinds(twice)
    assert_equal(mod, twice)
