"""NN-Stretch's rules: what they keep a search from."""

from __future__ import annotations

import pytest
from helpers.cpu_targets import ALL_LANES
from helpers.relax_helpers import random_const
from helpers.search_helpers import costs, emit
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tvm_stretch.plan.scheduling.clock import Clock, Step, Written
from tvm_stretch.plan.search.chain import ChainSearch
from tvm_stretch.plan.search.limits import ALPHAS, apportion
from tvm_stretch.plan.search.options import Options
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.splitting import Splitting
from tvm_stretch.read import load_network


@given(st.integers(8, 500), st.dictionaries(st.integers(0, 5), st.floats(0.5, 2.0), min_size=2))
def test_equation_6(total: int, speeds: dict[int, float]) -> None:
    """Every branch gets what its processor's speed says, up to rounding."""
    found = apportion(total, speeds)
    assert sum(found.values()) == total and min(found.values()) >= 1
    for place, number in found.items():
        exact = total * speeds[place] / sum(speeds.values())
        assert number <= max(1, exact + 1)
        assert number > exact - 1 or len(speeds) > 2


def network(meeting: int, *speeds: float, lanes: int = 8) -> tuple[Network, Splitting, Options]:
    given_costs = costs(*speeds, meeting=meeting, lanes=lanes)
    found = Network(emit(["conv", "residual", "conv"], size=28, channels=64), given_costs.kernels)
    return found, Splitting(found, given_costs), Options(found, given_costs)


def test_a_meeting_of_three_is_what_the_clock_makes_of_it() -> None:
    """Each receives from both others; measured on scripted processors it took 1.7 of two."""
    known = costs(1.0, 1.0, 1.0, meeting=5_000)
    for places in ((0, 1), (0, 1, 2)):
        size = 120_000 // len(places)
        clock = Clock([0, 0, 0], known.hand_over, {})
        clock.run([Step("whole", place, 0, (), size, place) for place in places])
        clock.run([Step("reader", places[-1], 0, (("whole", None),), 0)])
        assert known.meeting(places, 120_000) == clock.when(["reader"])
    assert known.meeting((0, 1, 2), 0) == 2 * known.meeting((0, 1), 0)


def test_a_meeting_that_is_not_amortised_makes_no_option() -> None:
    for meeting, worth in ((1_000, True), (10**7, False)):
        found, splitting, options = network(meeting, 1.0, 1.0)
        piece = next(piece for piece in found.pieces if piece.start)
        assert any(True for _ in splitting.rows([piece])) is worth
        assert any(options.worthwhile_shares(p, ALPHAS[0]) for p in found.pieces) is worth


def test_the_papers_alpha_shares_fewer_layers() -> None:
    found, _, options = network(60_000, 1.0, 1.0)
    loose, strict = (
        sum(len(options.worthwhile_shares(piece, alpha)) for piece in found.pieces)
        for alpha in ALPHAS
    )
    assert strict < loose


@pytest.mark.parametrize("lanes", ALL_LANES)
def test_no_straggler_among_the_options(lanes: int) -> None:
    """No branch takes longer than the best processor takes for the whole segment."""
    found, splitting, _ = network(1_000, 1.0, 0.5, lanes=lanes)
    options = [o for p in found.pieces for o in (*splitting.rows([p]), *splitting.channels(p))]
    assert options
    for option in options:
        inside = {s.tensor if isinstance(s.tensor, str) else s.tensor[1] for s in option.steps}
        groups = [group for group in found.graph.groups if group.name in inside]
        alone = sum(splitting.costs.whole(group, 0) for group in groups)
        for place in (0, 1):
            assert sum(s.ns for s in option.steps if s.place == place) <= 1.01 * alone


@pytest.mark.parametrize("lanes", ALL_LANES)
def test_ratios_follow_the_speeds(lanes: int) -> None:
    found, splitting, _ = network(1_000, 1.0, 3.0, lanes=lanes)
    for piece in found.pieces:
        for option in splitting.rows([piece]):
            (split,) = option.splits
            assert 0.15 < split.ratios[0] / sum(split.ratios) < 0.4


def test_dear_meetings_make_longer_segments() -> None:
    """Rows are split between the meeting points that equation 4 leaves of the network's."""
    mod = emit(["conv"] * 20, size=28, channels=64)
    lengths = []
    for meeting in (1_000, 3_000_000):
        given_costs = costs(1.0, 1.0, meeting=meeting)
        chains = ChainSearch(Network(mod, given_costs.kernels), given_costs)
        lengths.append(max(max(spans, default=0) for spans in chains._spans))
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize("layers", [1, 3])
def test_a_dense_block_behind_a_stem_is_searched(layers: int) -> None:
    """Its concat holds what the segment begins with, which no kernel of the segment makes."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 64, 64), "float32"))

    def conv(value: relax.Expr, outputs: int, kernel: int, stride: int = 1) -> relax.Expr:
        weight = random_const(outputs, int(value.ty.shape.values[1]), kernel, kernel)
        return bb.emit(relax.op.nn.conv2d(value, weight, strides=stride, padding=kernel // 2))

    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.relu(conv(x, 64, 3, 2)))
            for _ in range(layers):
                inner = bb.emit(relax.op.nn.relu(conv(bb.emit(relax.op.nn.relu(y)), 128, 1)))
                y = bb.emit(relax.op.concat([y, conv(inner, 32, 3)], axis=1))
            out = bb.emit_output(relax.op.nn.avg_pool2d(conv(y, 48, 1), [2, 2], [2, 2]))
        bb.emit_func_output(out)
    given_costs = costs(1.0, 1.0)
    found = Network(load_network(bb.get()), given_costs.kernels)
    splitting = Splitting(found, given_costs)
    blocks = [piece for piece in found.pieces if piece.end.startswith("concat")]
    assert len(blocks) == layers
    for block in blocks:
        (option,) = splitting.rows([block])
        written = {tensor: [Written(0, 0, 0)] for tensor in block.entries}
        clock = Clock([0, 0], given_costs.hand_over, written)
        clock.run(option.steps)
        assert set(block.exits) <= set(clock.tensors)
