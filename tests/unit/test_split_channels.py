"""Channels: partial sums, bias counted once, groups kept whole, clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.branch_networks import ROW_LAYERS, build
from helpers.relax_helpers import (
    answers,
    assert_rewrites,
    assert_same_numerics,
    assert_unchanged,
    module,
    random_const,
    random_inputs,
)
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tvm import relax

from tutorials import zoo
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.channel_plan import Form, plan_channel_split
from tvm_stretch.network.properties.meeting_points import detect_meeting_points
from tvm_stretch.passes.branch_segments import BranchSegments, branch_segments
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.plan.splits import ChannelSplit
from tvm_stretch.read import load_network

relu, add = relax.op.nn.relu, relax.op.add
BIAS = random_const(1, 16, 1, 1)


def weight(filters, channels, kernel=3, seed=1):
    return random_const(filters, channels, kernel, kernel, seed=seed)


FIRST, SECOND, POINT = weight(16, 16), weight(16, 16, seed=2), weight(16, 16, 1, seed=3)
DEPTH, GROUPS = weight(16, 1), weight(16, 4)


def conv(x, filters, groups=1, stride=1):
    kernel = int(filters.ty.shape.values[2])
    return relax.op.nn.conv2d(x, filters, stride, kernel // 2, groups=groups)


def part(constant, *where):
    return relax.const(np.ascontiguousarray(constant.value.numpy()[where]))


def channels(x, begin, end):
    return relax.op.strided_slice(x, [1], [begin], [end])


def named(body, *shapes):
    return NameOperators()(module(body, *(shapes or [(1, 16, 6, 5)])))


def whole(mod, ratios=(1.0, 1.0), **options) -> ChannelSplit:
    operators = Operators(mod["main"])
    return ChannelSplit(operators.params[0], operators.outputs[0], ratios, **options)


def check(before, expected, ratios=(1.0, 1.0), **options):
    mod = named(before)
    split = BranchSegments(whole(mod, ratios, **options))
    assert_rewrites(split, mod, module(expected, (1, 16, 6, 5)))


LOW, HIGH, ALL = slice(0, 8), slice(8, 16), slice(None)


class TestRewrite:
    def test_basic_block(self):
        """Residual and bias go to the first branch; the activation waits for the sum."""

        def before(x):
            y = relu(add(conv(x, FIRST), BIAS))
            return relu(add(add(conv(y, SECOND), BIAS), x))

        def expected(x):
            low = relu(add(conv(x, part(FIRST, LOW)), part(BIAS, ALL, LOW)))
            low = add(add(conv(low, part(SECOND, ALL, LOW)), BIAS), x)
            high = relu(add(conv(x, part(FIRST, HIGH)), part(BIAS, ALL, HIGH)))
            high = conv(high, part(SECOND, ALL, HIGH))
            return relu(add(low, high))

        check(before, expected)

    def test_projected_shortcut(self):
        """The shortcut makes summands too: each branch reads some channels of the input."""

        def before(x):
            y = conv(relu(conv(x, FIRST, stride=2)), SECOND)
            return add(y, add(conv(x, POINT, stride=2), BIAS))

        def expected(x):
            sums = []
            for cut, bounds in ((LOW, (0, 8)), (HIGH, (8, 16))):
                y = relu(conv(x, part(FIRST, cut), stride=2))
                y = conv(y, part(SECOND, ALL, cut))
                shortcut = conv(channels(x, *bounds), part(POINT, ALL, cut), stride=2)
                sums.append(add(y, add(shortcut, BIAS) if cut is LOW else shortcut))
            return add(*sums)

        check(before, expected)

    def test_grouped_bottleneck(self):
        """Four groups of four channels, shared out 3:1."""

        def before(x):
            return conv(conv(conv(x, FIRST), GROUPS, groups=4), POINT)

        def expected(x):
            sums = []
            for cut, groups in ((slice(0, 12), 3), (slice(12, 16), 1)):
                y = conv(conv(x, part(FIRST, cut)), part(GROUPS, cut), groups=groups)
                sums.append(conv(y, part(POINT, ALL, cut)))
            return add(*sums)

        check(before, expected, ratios=(3, 1), block=1)

    def test_depthwise_and_pointwise(self):
        def before(x):
            return relu(conv(relu(conv(x, DEPTH, groups=16)), POINT))

        def expected(x):
            sums = []
            for cut, bounds in ((LOW, (0, 8)), (HIGH, (8, 16))):
                y = relu(conv(channels(x, *bounds), part(DEPTH, cut), groups=8))
                sums.append(conv(y, part(POINT, ALL, cut)))
            return relu(add(*sums))

        check(before, expected)

    def test_segments_that_read_the_same_channels(self):
        mod = named(lambda x: add(*(conv(conv(x, DEPTH, groups=16), POINT) for _ in range(2))))
        ends = ("conv2d1", "conv2d3")
        after, _ = branch_segments(mod, [ChannelSplit("x0", end, (1, 1)) for end in ends])
        Operators(after["main"])  # every name once
        assert_same_numerics(mod, after)

    def test_one_convolution(self):
        """Nothing to add: the shares of channels are put together."""

        def before(x):
            return relax.op.nn.max_pool2d(relu(add(conv(x, FIRST), BIAS)), 2)

        def expected(x):
            parts = []
            for cut in (LOW, HIGH):
                y = relu(add(conv(x, part(FIRST, cut)), part(BIAS, ALL, cut)))
                parts.append(relax.op.nn.max_pool2d(y, 2))
            return relax.op.concat(parts, axis=1)

        check(before, expected)

    def test_bottleneck_repeats_its_first_convolution(self):
        def before(x):
            return add(conv(relu(conv(relu(conv(x, POINT)), FIRST)), SECOND), x)

        def expected(x):
            sums = []
            for cut in (LOW, HIGH):
                y = relu(conv(x, POINT))
                sums.append(conv(relu(conv(y, part(FIRST, cut))), part(SECOND, ALL, cut)))
            return add(add(sums[0], x), sums[1])

        check(before, expected)
        mod = named(before)
        _, (result,) = branch_segments(mod, [whole(mod)])
        first, second = result.branches
        assert first == ("conv2d.c0", "relu.c0", "conv2d1.c0", "relu1.c0", "conv2d2.c0", "add.c0")
        assert second == ("conv2d.c1", "relu.c1", "conv2d1.c1", "relu1.c1", "conv2d2.c1")

    def test_bottleneck_splits_its_first_convolution(self):
        def before(x):
            return conv(relu(conv(relu(conv(x, POINT)), FIRST)), SECOND)

        def expected(x):
            parts = [relu(conv(x, part(POINT, cut))) for cut in (LOW, HIGH)]
            h = relax.op.concat(parts, axis=1)
            sums = []
            for cut in (LOW, HIGH):
                sums.append(conv(relu(conv(h, part(FIRST, cut))), part(SECOND, ALL, cut)))
            return add(*sums)

        check(before, expected, first="split")

    def test_three_branches(self):
        def before(x):
            return relu(add(conv(conv(x, FIRST), SECOND), BIAS))

        mod = named(before)
        after, (result,) = branch_segments(mod, [whole(mod, (2, 1, 1), block=4)])
        assert result.branches == (
            ("conv2d.c0", "conv2d1.c0", "add.c0"),
            ("conv2d.c1", "conv2d1.c1"),
            ("conv2d.c2", "conv2d1.c2"),
        )
        assert result.joins == ("add.sum1", "add", "relu")
        assert_same_numerics(mod, after)

    def test_squeeze_excite_meets_twice(self):
        """The gate needs all channels: summands of a few numbers are exchanged on the way."""
        squeeze, excite = weight(4, 16, 1), weight(16, 4, 1)

        def body(x):
            y = relax.op.nn.silu(conv(relu(conv(x, FIRST)), DEPTH, groups=16))
            gate = relax.op.mean(y, [2, 3], keepdims=True)
            gate = conv(relax.op.nn.silu(conv(gate, squeeze)), excite)
            return add(conv(relax.op.multiply(y, relax.op.sigmoid(gate)), POINT), x)

        mod = named(body)
        steps = plan_channel_split(Operators(mod["main"]), whole(mod))
        met = [(tensor, held.form) for step in steps for tensor, held in step.joins]
        assert met == [("conv2d2", Form.SUM)]
        assert steps[-1].result.form is Form.SUM
        assert_same_numerics(mod, BranchSegments(whole(mod))(mod))

    def test_no_split(self):
        assert_unchanged(BranchSegments(), named(lambda x: conv(x, FIRST)))

    def test_rest_of_the_network_stays(self):
        def body(x, y):
            first = relu(conv(x, FIRST))
            second = relu(conv(conv(add(first, y), SECOND), POINT))
            return relax.Tuple([relax.op.mean(second, [2, 3]), first])

        mod = named(body, (1, 16, 6, 6), (1, 16, 6, 6))
        assert_same_numerics(mod, BranchSegments(ChannelSplit("add", "relu1", (1, 1)))(mod))


class TestPlan:
    def plan(self, body, *shape, **options):
        mod = named(body, *([shape] if shape else []))
        return plan_channel_split(Operators(mod["main"]), whole(mod, **options))

    def test_basic_block(self):
        """The residual is read once, by the first branch, so what is added is the sum."""
        first, second, last = self.plan(lambda x: add(conv(conv(x, FIRST), SECOND), x))
        assert [step.result.form for step in (first, second, last)] == [
            Form.PART,
            Form.SUM,
            Form.SUM,
        ]
        assert second.channels == ((0, 8), (8, 16))

    def test_repeated_or_split(self):
        def body(x):
            return conv(conv(conv(x, POINT), FIRST), SECOND)

        repeated, *_ = self.plan(body)
        assert repeated.result.form is Form.COPY
        first, second, _ = self.plan(body, first="split")
        assert first.result.form is Form.PART
        assert [held.form for _, held in second.joins] == [Form.PART]

    def test_groups_stay_whole(self):
        plan = self.plan(
            lambda x: conv(conv(conv(x, FIRST), GROUPS, groups=4), POINT), ratios=(3, 2), block=1
        )
        assert plan[0].result.spans == ((0, 8), (8, 16))


class TestRefused:
    def refuse(self, mod, message: str, **options) -> None:
        with pytest.raises((UnsupportedError, InputError)) as raised:
            branch_segments(mod, [whole(mod, **options)])
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        "body",
        [
            relu,
            lambda x: relax.op.nn.max_pool2d(x, 2),
            lambda x: relax.op.mean(x, [2, 3]),
            lambda x: relax.op.matmul(x, random_const(5, 5)),
            lambda x: relax.op.image.resize2d(x, (12, 12)),
        ],
    )
    def test_nothing_to_split(self, body):
        message = "expected convolutions whose channels can be shared out for segment 'x0' -> "
        self.refuse(named(body), message)

    def test_too_few_channels(self):
        mod = named(lambda x: conv(x, FIRST))
        message = "expected at least 8 of 16 for each of the ratios (1, 1, 1), got [8, 0, 8]"
        self.refuse(mod, message, ratios=(1, 1, 1))

    def test_options(self):
        mod = named(lambda x: conv(x, FIRST))
        self.refuse(mod, "expected two or more positive numbers for ratios", ratios=(1,))
        self.refuse(mod, "expected a positive number for block", block=0)
        self.refuse(mod, "'repeat' or 'split' for first, got 8 and 'drop'", first="drop")

    def test_open_segment(self):
        mod = named(lambda x: add(relu(conv(x, FIRST)), conv(x, SECOND)))
        with pytest.raises(UnsupportedError, match="'add' reads 'conv2d1' from outside"):
            branch_segments(mod, [ChannelSplit("conv2d", "add", (1, 1))])


@given(
    ROW_LAYERS,
    st.lists(st.integers(1, 9), min_size=2, max_size=3),
    st.sampled_from(["repeat", "split"]),
    st.sampled_from([1, 2]),
)
@example([("residual", 3, True), ("fork",), ("residual", 1, False)], [2, 1], "split", 2)
@example([("fork",), ("conv", (3, 3), 2, (1, 1, 1, 1), 1, 0, 8), ("fork",)], [2, 1], "repeat", 1)
def test_random_networks(layers, ratios, first, block):
    mod = build(layers, (1, 8, 12, 6))
    assume(mod is not None)
    try:
        split = whole(mod, tuple(ratios), block=block, first=first)
        after, (result,) = branch_segments(mod, [split])
    except UnsupportedError:
        assume(False)
    relax.analysis.well_formed(after)
    names = [operator.name for operator in Operators(after["main"])]
    assert sorted(names) == sorted([n for b in result.branches for n in b] + list(result.joins))
    inputs = random_inputs(mod)
    (want,), (got,) = answers(mod, *inputs), answers(after, *inputs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "name, count, first",
    [
        ("resnet18", 9, "repeat"),
        pytest.param("resnet50", 17, "split", marks=pytest.mark.full),
        pytest.param("regnetx_1_6gf", 19, "repeat", marks=pytest.mark.full),
        pytest.param("mobilenet_v3_small", 25, "repeat", marks=pytest.mark.full),
    ],
)
def test_networks(name: str, count: int, first):
    """Every segment but pools and the classifier in two shares."""
    mod = load_network(zoo.build(name, size=32))
    operators, splits = Operators(mod["main"]), []
    for segment in detect_meeting_points(operators).segments:
        ends = segment.start.tensor, segment.end.tensor
        split = ChannelSplit(*ends, (3, 2), first=first)
        try:
            plan_channel_split(operators, split)
        except UnsupportedError:
            continue
        splits.append(split)
    assert len(splits) == count
    assert_same_numerics(mod, BranchSegments(*splits)(mod), rtol=1e-3)
