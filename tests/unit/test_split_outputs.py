"""SplitOutputs: structure, no-op, refusals, and the same numbers on the stock VM."""

from __future__ import annotations

import pytest
from helpers.relax_helpers import (
    assert_same_numerics,
    assert_unchanged,
    binding_names,
    module,
    op_names,
    random_const,
)
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.passes.split_outputs import SplitOutputs, split_outputs

nn, op = relax.op.nn, relax.op


def conv(
    x: relax.Expr, channels: int, outputs: int, kernel: int = 1, groups: int = 1
) -> relax.Expr:
    """A convolution with random weights."""
    weight = random_const(outputs, channels // groups, kernel, kernel)
    return nn.conv2d(x, weight, padding=kernel // 2, groups=groups)


def inverted_bottleneck(x: relax.Expr) -> relax.Expr:
    """Expand, depthwise, squeeze-and-excite, project, residual."""
    y = nn.relu(op.add(conv(x, 16, 48), random_const(1, 48, 1, 1)))
    y = nn.relu(op.add(conv(y, 48, 48, 3, 48), random_const(1, 48, 1, 1)))
    gate = op.sigmoid(conv(nn.relu(conv(op.mean(y, [2, 3], keepdims=True), 48, 8)), 8, 48))
    return op.add(conv(op.multiply(y, gate), 48, 16), x)


def named(build: object, shape: tuple[int, ...]) -> object:
    """The module with unique names."""
    return NameOperators()(module(build, shape))


def test_what_works_by_channel_stays_in_parts() -> None:
    before = named(inverted_bottleneck, (1, 16, 6, 6))
    after = SplitOutputs({"conv2d": (32, 16), "conv2d4": (8, 8)})(before)
    found = binding_names(after)
    assert {"conv2d.p0", "conv2d.p1", "conv2d1.p0", "relu1.p1", "mean.p0"} <= set(found)
    assert op_names(after).count("relax.concat") == 3  # for squeeze, project, and the result
    assert_same_numerics(before, after)


def test_nothing_to_cut_changes_nothing() -> None:
    assert_unchanged(SplitOutputs({}), named(inverted_bottleneck, (1, 16, 6, 6)))


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(InputError, match="expected operators of the network"):
        split_outputs(named(inverted_bottleneck, (1, 16, 6, 6)), {"nothing": (8, 8)})


@pytest.mark.parametrize("widths", [(32, 8), (48, 0), (64, -16)])
def test_shares_must_cover_the_channels(widths: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="expected 48 output channels"):
        split_outputs(named(inverted_bottleneck, (1, 16, 6, 6)), {"conv2d": widths})


@given(
    groups=st.sampled_from([1, 2, 4, 8]),
    first=st.integers(1, 7),
    pooled=st.booleans(),
    three=st.booleans(),
)
def test_grouped_bottlenecks_keep_their_numbers(
    groups: int, first: int, pooled: bool, three: bool
) -> None:
    def build(x: relax.Expr) -> relax.Expr:
        y = nn.relu(conv(x, 8, 32))
        y = nn.relu(op.add(conv(y, 32, 32, 3, groups), random_const(1, 32, 1, 1)))
        if pooled:
            y = nn.max_pool2d(y, (3, 3), (2, 2), (1, 1, 1, 1))
        flat = op.reshape(op.mean(y, [2, 3], keepdims=True), (1, 32))
        return op.add(op.matmul(flat, random_const(32, 10)), random_const(10))

    before = named(build, (1, 8, 7, 5))
    cut = first * 4
    widths = (cut, 32 - cut) if not three else (cut // 2, cut - cut // 2, 32 - cut)
    after = SplitOutputs({"conv2d": widths, "matmul": (4, 6)})(before)
    assert_same_numerics(before, after)


def test_a_result_that_is_returned_twice() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 7, 5), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(conv(x, 8, 32))
        bb.emit_func_output(relax.Tuple([out, out]))
    before = NameOperators()(bb.get())
    after = split_outputs(before, {"conv2d": (24, 8)})
    names = binding_names(after)
    assert len(names) == len(set(names))
    assert_same_numerics(before, after)
