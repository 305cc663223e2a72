"""Meeting points, blocks and stages: on every network of the zoo and on random graphs."""

from __future__ import annotations

from functools import cache

import pytest
from helpers.relax_helpers import module, random_const
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from tutorials import zoo
from tvm_stretch.base.errors import InputError
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.meeting_points import amortise, detect_meeting_points
from tvm_stretch.network.properties.repeated_blocks import detect_blocks, detect_stages
from tvm_stretch.passes.name_operators import NameOperators
from tvm_stretch.read import load_network

# Name: number of segments, blocks of each stage.
QUICK = {
    "resnet18": (12, [2, 2, 2, 2]),
    "regnetx_1_6gf": (21, [2, 4, 10, 2]),
    "mobilenet_v1": (29, [1, 2, 2, 6, 2]),
    "mobilenet_v3_small": (29, [1, 2, 3, 2, 3]),
    "squeezenet1_1": (22, [2, 2, 2, 2]),
    "inception_v3": (20, [1, 2, 5, 1, 2]),
    "lstm": (2, []),
    "shufflenet_v2": (21, [4, 8, 4]),
}
FULL = {
    "pnasnet_mobile": (4, [1, 1, 1, 3, 3, 3]),  # test_blocks_follow_each_other has it always
    "resnet50": (20, [3, 4, 6, 3]),
    "efficientnet_lite0": (33, [1, 2, 2, 3, 3, 4, 1]),
    "resnet56": (30, [9, 9, 9]),
    "mobilenet_v2": (34, [1, 2, 3, 4, 3, 3, 1]),
    "regnetx_4gf": (26, [2, 5, 14, 2]),
    "efficientnet_lite4": (47, [1, 4, 4, 6, 6, 8, 1]),
    "mobilenet_v3_large": (33, [1, 2, 3, 4, 2, 3]),
    "resnet34": (20, [3, 4, 6, 3]),
    "squeezenet1_0": (22, [2, 1, 1, 2, 1, 1]),
    "efficientnet_b5": (63, [3, 5, 5, 7, 7, 9, 3]),
    "vgg16": (21, [2, 2, 3, 3, 3]),
    "inception_v4": (24, [1, 1, 5, 8, 4]),
    "nasnet_large": (4, [1, 1, 1, 6, 1, 6, 1, 6]),  # the first cell in two, as of pnasnet
    "pnasnet_large": (4, [1, 1, 1, 4, 4, 4]),
    "yolov2": (20, [1, 1, 2, 1, 1]),
    "posenet": (28, [1, 2, 2, 6, 2, 1]),
    "fast_style_transfer": (37, [1, 1, 6, 1, 1]),
    "retinaface": (12, [1, 2, 2]),
}
SIZES = {"inception_v3": 107, "inception_v4": 107, "lstm": 3}


@cache
def network(name: str) -> Operators:
    return Operators(load_network(zoo.build(name, size=SIZES.get(name, 64)))["main"])


def check_network(name: str, segments: int, stages: list[int]) -> None:
    operators = network(name)
    found = detect_meeting_points(operators)
    assert len(found.segments) == segments
    assert found.points[0].tensor == operators.params[0]
    assert found.points[-1].tensor == operators.outputs[0]
    # Segments share out the operators, in order.
    names = [name for segment in found.segments for name in segment.operators]
    assert names == [operator.name for operator in operators]
    assert [len(stage.blocks) for stage in detect_stages(operators)] == stages


@pytest.mark.parametrize("name", sorted(QUICK))
def test_small_network(name: str):
    check_network(name, *QUICK[name])


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(FULL))
def test_large_network(name: str):
    check_network(name, *FULL[name])


def test_every_network_is_listed():
    assert {*QUICK, *FULL} == set(zoo.names())


def test_layers_of_blocks():
    assert {block.layers for block in detect_blocks(network("resnet50"))} == {"1x1 3x3 1x1"}
    assert {block.layers for block in detect_blocks(network("resnet18"))} == {"3x3 3x3"}
    first, *others = detect_blocks(network("regnetx_1_6gf"))
    assert {first.layers, *(block.layers for block in others)} == {"1x1 g3x3 1x1"}
    layers = [block.layers for block in detect_blocks(network("mobilenet_v3_small"))]
    assert layers == ["dw3x3 1x1"] + ["1x1 dw3x3 1x1"] * 2 + ["1x1 dw5x5 1x1"] * 8


def test_blocks_follow_each_other():
    for name in ("resnet50", "mobilenet_v2", "mobilenet_v3_large", "squeezenet1_1"):
        for stage in detect_stages(network(name)):
            assert len({block.shape for block in stage.blocks}) == 1
            for block in stage.blocks:
                assert len(block.inputs) == 1
    # A cell reads the two before it.
    cells = detect_blocks(network("pnasnet_mobile"))
    assert {len(cell.inputs) for cell in cells[2:]} == {2}


def test_readable():
    text = str(detect_meeting_points(network("resnet18")))
    assert "maxpool_0 -> relu_2: 7 operators, 18.9 M multiply-adds, 64 KiB at the end" in text
    assert str(detect_stages(network("resnet18"))[0]) == (
        "64x16x16: [3x3 3x3] maxpool_0 -> relu_2, [3x3 3x3] relu_2 -> relu_4"
    )


def test_hard_swish_belongs_to_its_layer():
    weight = random_const(4, 4, 3, 3)

    def body(x):
        for _ in range(2):
            x = relax.op.nn.conv2d(x, weight, padding=1)
            gate = relax.op.clip(relax.op.add(x, relax.const(3.0)), 0, 6)
            x = relax.op.multiply(x, relax.op.multiply(gate, relax.const(1 / 6)))
        return x

    found = detect_meeting_points(NameOperators()(module(body, (1, 4, 5, 5))))
    assert [point.tensor for point in found.points] == ["x0", "multiply1", "multiply3"]


def test_two_inputs_meet_later():
    weight = random_const(4, 4, 3, 3)

    def body(x, y):
        return relax.op.nn.conv2d(relax.op.nn.max_pool2d(relax.op.add(x, y)), weight)

    found = detect_meeting_points(NameOperators()(module(body, (1, 4, 5, 5), (1, 4, 5, 5))))
    assert [point.tensor for point in found.points] == ["add", "max_pool2d", "conv2d"]
    nowhere = module(lambda x, y: relax.Tuple([x, y]), (1,), (1,))
    assert detect_meeting_points(nowhere).points == ()


# A graph as a list: each node reads one or two earlier values; 0 is the input.
graphs = st.integers(1, 14).flatmap(
    lambda size: st.tuples(
        *(st.tuples(st.integers(0, i), st.none() | st.integers(0, i)) for i in range(size))
    )
)


def build_graph(nodes) -> Operators:
    def body(x):
        values = [x]
        for first, second in nodes:
            if second is None:
                values.append(relax.op.nn.max_pool2d(values[first]))
            else:
                values.append(relax.op.add(values[first], values[second]))
        used = {i for node in nodes for i in node}
        ends = [v for i, v in enumerate(values) if i and i not in used]
        result = ends[0]
        for end in ends[1:]:
            result = relax.op.add(result, end)
        return result

    from tvm_stretch.passes.canonicalise import Canonicalise

    return Operators(Canonicalise()(module(body, (1, 2, 2, 2)))["main"])


@given(graphs)
def test_random_graphs(nodes):
    """A point is what cannot be taken away without cutting the output off the input."""
    operators = build_graph(nodes)
    if operators.outputs == operators.params:
        return

    def reaches_without(removed: str) -> bool:
        reached = set(operators.params) - {removed}
        for operator in operators:
            if operator.name != removed and reached.intersection(operator.inputs):
                reached.add(operator.name)
        return operators.outputs[0] in reached

    names = [*operators.params, *(operator.name for operator in operators)]
    cuts = [name for name in names if not reaches_without(name)]
    order = {name: index for index, name in enumerate(names)}
    expected = []
    for name, following in zip(cuts, [*cuts[1:], None], strict=True):
        between = [
            o.kind
            for o in operators
            if following and order[name] < order[o.name] <= order[following]
        ]
        if name in operators.params or not between or set(between) != {"add"}:
            expected.append(name)
    found = [point.tensor for point in detect_meeting_points(operators).points]
    assert found == expected


class TestAmortise:
    """x -> a -> b -> c -> d, one operator each."""

    @pytest.fixture
    def chain(self):
        def body(x):
            for _ in range(4):
                x = relax.op.nn.max_pool2d(x)
            return x

        return detect_meeting_points(NameOperators()(module(body, (1, 4, 8, 8))))

    def chosen(self, chain, latencies, transfer, alpha=0.1) -> str:
        names = [segment.end.tensor for segment in chain.segments]
        times = dict(zip(names, latencies, strict=True))
        points = amortise(chain, times, transfer, alpha)
        letters = {chain.points[0].tensor: "x", **dict(zip(names, "abcd", strict=True))}
        return "".join(letters[point.tensor] for point in points)

    def test_cheap_communication_keeps_all(self, chain):
        assert self.chosen(chain, [100] * 4, lambda size: 10) == "xabcd"

    def test_dear_communication_joins_segments(self, chain):
        assert self.chosen(chain, [100] * 4, lambda size: 11) == "xbd"
        assert self.chosen(chain, [100] * 4, lambda size: 11, alpha=0.2) == "xabcd"

    def test_rest_belongs_to_the_last_segment(self, chain):
        assert self.chosen(chain, [200, 100, 100, 0], lambda size: 20) == "xad"

    def test_nothing_is_worth_it(self, chain):
        assert self.chosen(chain, [1] * 4, lambda size: 1000) == "xd"

    def test_cost_follows_size(self, chain):
        assert self.chosen(chain, [100] * 4, lambda size: size // 100) == "xabcd"
        assert chain.points[0].bytes == 4 * 4 * 8 * 8

    def test_refuses_alpha(self, chain):
        with pytest.raises(InputError, match="expected a positive number for alpha, got 0"):
            amortise(chain, {}, lambda size: 0, alpha=0)
