"""Rows: the same result from every branch, exactly the rows that are needed, clear refusals."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers.branch_networks import ROW_LAYERS, build
from helpers.relax_helpers import (
    answers,
    assert_rewrites,
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
    random_inputs,
)
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tvm import relax

from tutorials import zoo
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.network.emitting.row_branches import plan_row_split
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.meeting_points import detect_meeting_points
from tvm_stretch.passes.branch_segments import BranchSegments, branch_segments
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network

EVEN = (1.0, 1.0)
WEIGHT = random_const(4, 4, 3, 3)


def named(body, *shapes):
    return NameOperators()(module(body, *shapes))


def conv(x, weight=WEIGHT, padding=1, strides=1):
    return relax.op.nn.conv2d(x, weight, padding=padding, strides=strides)


def rows(x, begin, end):
    return relax.op.strided_slice(x, [2], [begin], [end])


def whole(mod, ratios=EVEN) -> RowSplit:
    operators = Operators(mod["main"])
    return RowSplit(operators.params[0], operators.outputs[0], ratios)


class TestRewrite:
    def test_two_convolutions(self):
        """The first branch computes one row of the first convolution beyond its own."""

        def before(x):
            return conv(relax.op.nn.relu(conv(x)))

        def expected(x):
            top = conv(rows(x, 0, 8), padding=[1, 1, 0, 1])
            top = conv(relax.op.nn.relu(top), padding=[1, 1, 0, 1])
            bottom = conv(rows(x, 4, 10), padding=[0, 1, 1, 1])
            bottom = conv(relax.op.nn.relu(bottom), padding=[0, 1, 1, 1])
            return relax.op.concat([top, bottom], axis=2)

        mod = named(before, (1, 4, 10, 5))
        split = BranchSegments(whole(mod, (6, 4)))
        assert_rewrites(split, mod, module(expected, (1, 4, 10, 5)))

    def test_residual_reads_fewer_rows(self):
        def before(x):
            return relax.op.add(conv(x), x)

        def expected(x):
            top = relax.op.add(conv(rows(x, 0, 5), padding=[1, 1, 0, 1]), rows(x, 0, 4))
            bottom = relax.op.add(conv(rows(x, 3, 8), padding=[0, 1, 1, 1]), rows(x, 4, 8))
            return relax.op.concat([top, bottom], axis=2)

        mod = named(before, (1, 4, 8, 5))
        assert_rewrites(BranchSegments(whole(mod)), mod, module(expected, (1, 4, 8, 5)))

    def test_strides_and_pooling(self):
        def before(x):
            return relax.op.nn.max_pool2d(conv(x, strides=2), 3, 2, 1)

        def expected(x):
            top = conv(rows(x, 0, 8), padding=[1, 1, 0, 1], strides=2)
            top = relax.op.nn.max_pool2d(top, 3, 2, [1, 1, 0, 1])
            bottom = conv(rows(x, 5, 16), padding=[0, 1, 0, 1], strides=2)
            bottom = relax.op.nn.max_pool2d(bottom, 3, 2, [0, 1, 0, 1])
            return relax.op.concat([top, bottom], axis=2)

        mod = named(before, (1, 4, 16, 6))
        assert_rewrites(BranchSegments(whole(mod)), mod, module(expected, (1, 4, 16, 6)))

    def test_constant_of_rows_is_cut(self):
        constant = random_const(1, 1, 6, 1)

        def expected(x):
            value = constant.value.numpy()
            top = relax.op.add(rows(x, 0, 3), relax.const(value[:, :, :3]))
            bottom = relax.op.add(rows(x, 3, 6), relax.const(value[:, :, 3:]))
            return relax.op.concat([top, bottom], axis=2)

        mod = named(lambda x: relax.op.add(x, constant), (1, 4, 6, 2))
        assert_rewrites(BranchSegments(whole(mod)), mod, module(expected, (1, 4, 6, 2)))

    def test_no_split(self):
        assert_unchanged(BranchSegments(), named(conv, (1, 4, 8, 5)))

    def test_rest_of_the_network_stays(self):
        def body(x, y):
            first = relax.op.nn.relu(conv(x))
            second = relax.op.exp(y)
            last = relax.op.nn.relu(conv(relax.op.add(first, second)))
            return relax.Tuple([relax.op.mean(last, [2, 3]), first])

        mod = named(body, (1, 4, 6, 6), (1, 4, 6, 6))
        after = BranchSegments(RowSplit("x0", "relu", EVEN))(mod)
        assert op_names(after)[-6:] == ["relax.concat", *op_names(mod)[2:]]
        assert_same_numerics(mod, after)

    def test_segments_one_after_the_other(self):
        mod = named(lambda x: conv(relax.op.nn.relu(conv(x))), (1, 4, 9, 5))
        splits = BranchSegments(RowSplit("x0", "relu", (1, 2)), RowSplit("relu", "conv2d1", (2, 1)))
        after = splits(mod)
        assert op_names(after).count("relax.concat") == 2
        assert_same_numerics(mod, after)

    def test_segments_that_read_the_same_rows(self):
        mod = named(lambda x: relax.op.add(conv(x), conv(x)), (1, 4, 9, 5))
        splits = [RowSplit("x0", "conv2d", (1, 1)), RowSplit("x0", "conv2d1", (1, 1))]
        after, _ = branch_segments(mod, splits)
        Operators(after["main"])  # every name once
        assert_same_numerics(mod, after)

    def test_names(self):
        mod = named(lambda x: relax.op.add(conv(x), x), (1, 4, 9, 5))
        after, (result,) = branch_segments(mod, [RowSplit("x0", "add", (1, 1, 1))])
        assert result.branches == (
            ("add.r0.x0.0to4", "conv2d.r0", "add.r0.x0.0to3", "add.r0"),
            ("add.r1.x0.2to7", "conv2d.r1", "add.r1.x0.3to6", "add.r1"),
            ("add.r2.x0.5to9", "conv2d.r2", "add.r2.x0.6to9", "add.r2"),
        )
        assert result.joins == ("add",)
        names = [operator.name for operator in Operators(after["main"])]
        assert names == [n for branch in result.branches for n in branch] + ["add"]


class TestPlan:
    def test_halo(self):
        """Two 3x3 convolutions: one row more of the first one on each side of the cut."""
        mod = named(lambda x: conv(conv(x)), (1, 4, 10, 5))
        plan = plan_row_split(Operators(mod["main"]), whole(mod, (6, 4)))
        assert plan.rows[0] == {"conv2d1": (0, 6), "conv2d": (0, 7), "x0": (0, 8)}
        assert plan.rows[1] == {"conv2d1": (6, 10), "conv2d": (5, 10), "x0": (4, 10)}
        assert plan.bytes_read == (8 * 80, 6 * 80)

    def test_pointwise_layers_need_no_halo(self):
        weight = random_const(8, 4, 1, 1)
        mod = named(lambda x: relax.op.nn.relu(conv(x, weight, 0)), (1, 4, 10, 5))
        plan = plan_row_split(Operators(mod["main"]), whole(mod, (1, 2, 1)))
        assert [needed["x0"] for needed in plan.rows] == [(0, 3), (3, 8), (8, 10)]

    @given(ROW_LAYERS, st.integers(6, 40), st.lists(st.integers(1, 9), min_size=2, max_size=3))
    def test_no_row_too_many(self, layers, height, ratios):
        """Rows of the result are shared out; the branches' halos are as small as can be."""
        mod = build(layers, (1, 4, height, 6))
        assume(mod is not None)
        operators = Operators(mod["main"])
        try:
            plan = plan_row_split(operators, whole(mod, tuple(ratios)))
        except UnsupportedError:
            assume(False)
        end = operators.outputs[0]
        spans = [needed[end] for needed in plan.rows]
        assert spans[0][0] == 0 and spans[-1][1] == operators.shape(end)[2]
        assert all(left[1] == right[0] for left, right in pairwise(spans))
        # Without windows there is no halo.
        if all(layer[0] in ("relu", "bias", "scale", "rows", "swish") for layer in layers):
            assert [needed["x0"] for needed in plan.rows] == spans


class TestRefused:
    def refuse(self, mod, split, message: str) -> None:
        with pytest.raises((UnsupportedError, InputError)) as raised:
            branch_segments(mod, [split])
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        "body, reason",
        [
            (lambda x: relax.op.mean(x, [2, 3], keepdims=True), "mean 'mean': each of its results"),
            (lambda x: relax.op.nn.softmax(x, 2), "softmax 'softmax': each of its results"),
            (lambda x: relax.op.reshape(x, (1, 8, 3, 4)), "reshape 'reshape': each of its"),
            (lambda x: relax.op.permute_dims(x, [0, 1, 3, 2]), "permute_dims 'permute_dims'"),
            (lambda x: relax.op.image.resize2d(x, (12, 12)), "resize2d 'resize2d'"),
            (lambda x: relax.op.matmul(x, random_const(4, 5)), "matmul 'matmul': each"),
            (lambda x: relax.op.concat([x, x], axis=2), "concat 'concat': it puts rows below"),
            (
                lambda x: relax.op.nn.conv2d(
                    x, random_const(3, 3, 3, 4), data_layout="NHWC", kernel_layout="OHWI"
                ),
                "its layout is NHWC, not NCHW",
            ),
        ],
    )
    def test_operators(self, body, reason):
        mod = named(body, (1, 4, 6, 4))
        self.refuse(mod, whole(mod), reason)

    def test_gate(self):
        def body(x):
            return relax.op.multiply(conv(x), relax.op.mean(x, [2, 3], keepdims=True))

        mod = named(body, (1, 4, 6, 4))
        self.refuse(mod, whole(mod), "mean 'mean': each of its results may need all rows")

    def test_broadcast_operand(self):
        """One row, taken apart and spread again."""

        def body(x):
            return relax.op.add(conv(x), conv(x, random_const(4, 4, 6, 3), [0, 1, 0, 1]))

        mod = named(body, (1, 4, 6, 4))
        self.refuse(mod, whole(mod), "add 'add': an operand has one row for all rows")

    def test_more_branches_than_rows(self):
        mod = named(conv, (1, 4, 2, 4))
        self.refuse(mod, whole(mod, (1, 1, 1)), "expected at least 1 of 2 for each of the ratios")

    def test_branch_of_padding(self):
        mod = named(lambda x: conv(x, padding=[3, 1, 0, 1]), (1, 4, 4, 4))
        self.refuse(mod, whole(mod, (1, 4)), "each branch of 'conv2d', got only padding")

    @pytest.mark.parametrize("ratios", [(), (1.0,), (0.0, 1.0), (-1.0, 2.0), (float("nan"), 1.0)])
    def test_ratios(self, ratios):
        mod = named(conv, (1, 4, 6, 4))
        self.refuse(mod, whole(mod, ratios), "expected two or more positive numbers for ratios")

    def test_unknown_tensor(self):
        mod = named(conv, (1, 4, 6, 4))
        self.refuse(mod, RowSplit("x0", "no", EVEN), "the name of a tensor for end, got 'no'")
        self.refuse(mod, RowSplit("no", "conv2d", EVEN), "name of a tensor for start, got 'no'")

    def test_open_segments(self):
        mod = named(lambda x: relax.op.add(relax.op.nn.relu(conv(x)), conv(x)), (1, 4, 6, 4))
        self.refuse(mod, RowSplit("conv2d", "add", EVEN), "'add' reads 'conv2d1' from outside")
        mod = named(lambda x: relax.op.add(conv(x), relax.op.nn.relu(conv(x))), (1, 4, 6, 4))
        self.refuse(mod, RowSplit("relu", "x0", EVEN), "computed from 'relu' for end, got 'x0'")

        def two_ends(x):
            y = conv(x)
            return relax.Tuple([y, relax.op.nn.relu(y)])

        mod = named(lambda x: two_ends(x), (1, 4, 6, 4))
        self.refuse(mod, RowSplit("x0", "relu", EVEN), "'tuple' outside reads 'conv2d'")


@given(
    ROW_LAYERS,
    st.sampled_from([(1, 4, 13, 7), (2, 4, 24, 6), (1, 8, 31, 5)]),
    st.lists(st.integers(1, 9), min_size=2, max_size=3),
)
@example([("conv", (3, 3), 2, (0, 1, 2, 1), 1, 1, 8), ("residual", 3, True)], (1, 4, 15, 7), [5, 2])
@example([("avg_pool2d", 2, 2, (0, 0, 0, 0), True, True)], (1, 4, 13, 7), [1, 1])
def test_random_networks(layers, shape, ratios):
    mod = build(layers, shape)
    assume(mod is not None)
    try:
        after, _ = branch_segments(mod, [whole(mod, tuple(ratios))])
    except UnsupportedError:
        assume(False)
    relax.analysis.well_formed(after)
    inputs = random_inputs(mod)
    (want,), (got,) = answers(mod, *inputs), answers(after, *inputs)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def splittable(mod, ratios) -> list[RowSplit]:
    """One split of each segment, where it can be split."""
    operators, splits = Operators(mod["main"]), []
    for segment in detect_meeting_points(operators).segments:
        split = RowSplit(segment.start.tensor, segment.end.tensor, ratios)
        try:
            plan_row_split(operators, split)
        except UnsupportedError:
            continue
        splits.append(split)
    return splits


@pytest.mark.parametrize(
    "name, size, count",
    [
        pytest.param("resnet18", 64, 10, marks=pytest.mark.full),
        ("squeezenet1_1", 67, 21),
        pytest.param("mobilenet_v2", 96, 32, marks=pytest.mark.full),
    ],
)
def test_networks(name: str, size: int, count: int):
    """Every segment but the classifier (and maps of a few rows) in two uneven bands."""
    mod = load_network(zoo.build(name, size=size))
    splits = splittable(mod, (3, 2))
    assert len(splits) == count
    assert_same_numerics(mod, BranchSegments(*splits)(mod), rtol=1e-3)


def test_a_stage_at_once():
    """From the stem's pool to the end of the second stage, three bands."""
    mod = load_network(zoo.build("resnet18", size=64))
    split = BranchSegments(RowSplit("maxpool_0", "relu_8", (3, 2, 2)))
    assert_same_numerics(mod, split(mod), 1e-3)


def test_segments_that_overlap():
    mod = named(lambda x: conv(relax.op.nn.relu(conv(x))), (1, 4, 9, 5))
    splits = [RowSplit("x0", "relu", EVEN), RowSplit("conv2d", "conv2d1", EVEN)]
    with pytest.raises(InputError, match="segments that share no operator, got 'relu' in two"):
        branch_segments(mod, splits)
