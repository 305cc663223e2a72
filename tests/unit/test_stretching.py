"""`ts.stretch`: designs that the rules leave, their figures, and what cannot be stretched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
import tvm
from helpers.described_phone import described
from helpers.search_helpers import costs
from helpers.stretch_networks import BLOCKS, basic, mb_conv, network, regnet
from onnx import helper
from tvm import rpc

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.base.errors import InputError, ModelError, PlanError, UnsupportedError
from tvm_stretch.lab.stretching.block_layers import count
from tvm_stretch.lab.stretching.design_rules import Rules, judge, space_of_table_2
from tvm_stretch.lab.stretching.front import Front, _thinned, find_candidates
from tvm_stretch.lab.stretching.judge import Candidate, judge_design
from tvm_stretch.lab.stretching.predict import Chain
from tvm_stretch.lab.stretching.segments import cut_runs, find_runs
from tvm_stretch.lab.stretching.stretching import Stretching, stretch_network
from tvm_stretch.lab.stretching.tables import gain_of_width
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.repeated_blocks import detect_blocks
from tvm_stretch.passes.canonicalise import CanonicaliseTrainable
from tvm_stretch.passes.duplicate_and_scale import branch_operators
from tvm_stretch.plan.design import Branch, Design, StretchedSegment
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.candidates import as_designed
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.read import load_network, load_trainable
from tvm_stretch.targets.registry import registered, used_unasked

STAGES = ((64, 2), (128, 4))
WEAK = Rules(capacity=0.5, tolerance=0.5, least_ratio=0.1)


def stretched(
    mod: tvm.IRModule, *speeds: float, rules: Rules | None = None, meeting: int = 200
) -> Stretching:
    known = costs(*speeds, meeting=meeting)
    return stretch_network(mod, known, range(len(speeds)), rules or Rules())


def counted(mod: tvm.IRModule) -> tuple[int, int]:
    """Multiply-adds and parameters of a module as it stands: weights, biases, scales, offsets."""
    operators = Operators(mod["main"])
    learned = {"nn.conv2d": (1,), "matmul": (1,), "nn.batch_norm": (1, 2)}
    size = 0
    for op in operators:
        positions = learned.get(op.kind, ())
        if op.kind == "add" and len(op.inputs) == 1 and max(op.arg_shapes[1], default=1) > 1:
            positions = (1,)
        size += sum(int(np.prod(shape_of(op.call.args[i]))) for i in positions)
    return sum(op.multiply_adds for op in operators), size


QUICK = ("regnet", "plain", "shuffle_unit")


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.full) for k in BLOCKS]
)
def test_figures_are_those_of_the_module(kind: str):
    """Counted without building: the same as counted of what is built, whatever is merged how."""
    mod = network(BLOCKS[kind])
    for merge in ("concat", "restore", "project"):
        for speeds in ((1, 1), (1, 1, 1)):
            known = costs(*speeds)
            st = stretch_network(mod, known, range(len(speeds)), WEAK, merge)
            assert st.original == counted(mod)
            for candidate in (st.candidates[0], st.candidates[-1]):
                module = st.module(candidate.design)
                assert counted(module) == (candidate.multiply_adds, candidate.parameters)


def test_candidates_keep_the_rules():
    rules = Rules(capacity=0.9, tolerance=0.2, least_ratio=0.3)
    st = stretched(network(basic, STAGES, stem=32), 1, 1, rules=rules)
    kept = [candidate for candidate in st.candidates if candidate.kept]
    assert 5 < len([candidate for candidate in kept if not candidate.what]) <= 20
    assert [c.ns for c in kept] == sorted(c.ns for c in kept)
    for candidate in kept:
        assert st.judge(candidate.design).kept
        assert candidate.multiply_adds > 0.85 * st.original[0]
        assert {b.processor for s in candidate.design.segments for b in s.branches} == {"cpu", "p1"}
    assert st.best is kept[0]
    assert st.best.ns < min(st.alone_ns.values())
    counts = list(st.space.values())
    assert counts == sorted(counts, reverse=True)


def test_latency_over_capacity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Larger designs are slower; each is one that the search finds for some capacity."""
    monkeypatch.setattr("tvm_stretch.lab.stretching.front.CAPACITIES", (0.6, 0.9, 1.2))
    every = []

    def find(*given):
        found, space = find_candidates(*given)
        every.extend(candidate for candidate in found if candidate.kept)
        return found, space

    monkeypatch.setattr("tvm_stretch.lab.stretching.front.find_candidates", find)
    st = stretched(network(basic, STAGES, stem=32), 1, 1)
    front = st.front()
    for point in front.points:
        assert not [c for c in every if c.ns < point.ns and front.share(c) > front.share(point)]
    shares = [front.share(point) for point in front.points]
    assert len(shares) > 2 and min(shares) < 0.7 and max(shares) > 1.1
    assert shares == sorted(shares)
    assert [p.ns for p in front.points] == sorted(p.ns for p in front.points)
    assert all(st.judge(p.design).ns == p.ns for p in front.points[:2])
    front.draw(tmp_path / "front.svg")
    picture = ElementTree.parse(tmp_path / "front.svg").getroot()
    assert len(picture.findall("{*}circle")) == len(shares)
    assert len(str(front).splitlines()) == len(shares) + 3


def test_of_designs_nearly_as_large_the_fastest_stays():
    designs = [(1.0, 20), (0.98, 10), (0.95, 15), (0.9, 9), (0.88, 8)]
    every = [Candidate(Design(()), ns, int(100 * share), 0) for share, ns in designs]
    points = _thinned(every, lambda candidate: candidate.multiply_adds / 100)
    assert [(p.multiply_adds, p.ns) for p in points] == [(88, 8), (98, 10)]


def test_names_in_a_picture_are_text():
    segment = StretchedSegment("a", "b", (Branch("c<d", 1, 8), Branch("e&f", 1, 8)))
    point = Candidate(Design((segment,)), 10, 1, 1)
    picture = ElementTree.fromstring(Front((point,), (1, 1), 20).svg())
    assert str(point.design) in "".join(picture.itertext())


def test_unequal_processors_get_unequal_branches():
    st = stretched(network(basic, ((64, 4), (128, 4)), stem=32), 1, 3, rules=Rules(tolerance=0.1))
    for segment in st.best.design.segments:
        work = {b.processor: b.depth * b.width**2 for b in segment.branches}
        assert 1.5 < work["p1"] / work["cpu"] < 6


def test_three_processors():
    st = stretched(network(basic, STAGES, stem=32), 1, 1, 1, rules=WEAK)
    branches = {len(s.branches) for c in st.candidates for s in c.design.segments}
    assert branches == {2, 3}


def test_the_simple_designs_and_why_they_are_pruned():
    st = stretched(network(basic, STAGES, stem=32), 1, 1)
    simple = {candidate.what: candidate for candidate in st.candidates if candidate.what}
    whole = simple["branches as deep and wide as it is"]
    assert whole.multiply_adds > 1.9 * st.original[0] * 0.8
    narrow = simple["branches of half the width"]
    assert narrow.rule.startswith("segment 1: capacity (at least 90% of the segment)")
    assert "pruned: segment 1: capacity" in str(st)
    assert "10^" in str(st)


@pytest.mark.parametrize(
    ("branches", "rule"),
    [
        ([(1, 64), (1, 64)], "bounds"),
        ([(4, 128), (4, 128)], "equation 5"),
        ([(4, 104), (2, 48)], "equation 6"),
        ([(4, 64), (4, 64)], "capacity"),
        ([(4, 96), (4, 96)], ""),
    ],
)
def test_which_rule_prunes(branches: list[tuple[int, int]], rule: str):
    st = stretched(network(basic, STAGES, stem=32), 1, 1, rules=Rules(beta=0.95))
    run = st.task.chain.runs[1]
    segment = StretchedSegment(
        run.start,
        run.end,
        tuple(Branch(p, *size) for p, size in zip(("cpu", "p1"), branches, strict=True)),
    )
    judged = st.judge(Design((segment,)))
    assert judged.rule.removeprefix("segment 1: ").startswith(rule) and judged.kept == (not rule)


@pytest.mark.parametrize("merge", ["concat", "restore", "project"])
@pytest.mark.parametrize("kind", ["basic", "regnet", "mb_conv"])
def test_segments_may_join_stages(kind: str, merge: str):
    """Counted without building: the same as counted of what is built, and structure forbids it."""
    mod = network(BLOCKS[kind], ((24, 2), (32, 3), (64, 2)))
    st = stretch_network(mod, costs(1, 1), (0, 1), replace(WEAK, meetings=1), merge)
    joined = [c for c in st.candidates if not c.what and len(c.design.segments) < 3]
    counts = {st.task.meetings(c.design)[0] for c in joined}
    assert {1, 2} <= counts
    for candidate in joined[:3]:
        module = st.module(candidate.design)
        assert counted(module) == (candidate.multiply_adds, candidate.parameters)
        assert counted(load_network(module))[0] == candidate.multiply_adds
    one = next(c for c in joined if st.task.meetings(c.design)[0] == 1)
    (ended,) = one.design.segments
    assert ended.end == st.task.chain.runs[-1].end and ended.branches[0].depth >= 3
    for rules, rule in ((WEAK, "structure"), (replace(WEAK, meetings=2), "meeting points (at")):
        judged = judge_design(st.task, rules, one.design)
        assert judged.rule.startswith(rule)
    with pytest.raises(PlanError, match="a depth from 3 to 7 blocks"):
        st.judge(Design((replace(ended, branches=(Branch("cpu", 2, 64),)),)))


def test_who_needs_width_gets_the_wider_branch():
    """Depth by width of branches; the second processor loses a tenth more by narrow layers."""
    whole, slim = np.array([10.0, 8, 8]), np.array([0.5, 1.0, 2.0])
    branch = [np.full(3, 5.0), np.full(3, 4.0), np.full(3, 4.0)]
    shapes = [(1.0, np.ones(3)), (1.1, slim)]
    judged = judge([branch, branch], [whole, whole], Rules(capacity=0.9), 0.0, shapes)
    assert judged.kept.tolist() == [True, True, False]
    (rule,) = (rule for rule in judged.keeps if rule.startswith("shape"))
    assert "5% more" in rule
    free = judge([branch, branch], [whole, whole], Rules(shape=0.2), 0.0, shapes)
    assert free.kept.all() and len(free.keeps) == len(judged.keeps) - 1


def test_what_width_gains_is_measured():
    """A multiply-add of a narrow branch takes longer where every layer has a fixed cost."""
    run = find_runs(Operators(network(basic, STAGES, stem=32)["main"]))[1]
    cheap, dear = (stretched(run_mod(), 1, speed).task.pricing for speed in (1, 8))
    assert gain_of_width(run, cheap, 0) == pytest.approx(gain_of_width(run, dear, 0))
    assert gain_of_width(run, cheap, 0) > 1.0


def run_mod() -> tvm.IRModule:
    return network(basic, STAGES, stem=32)


def test_one_design_for_several_devices():
    st = ts.stretch(zoo.build("resnet18"), ["cpu", "hexagon"], device="snapdragon-855")
    devices = ["snapdragon-855", "snapdragon-8-gen-1"]
    table = ts.stretching.judge_on(st, devices)
    assert table.devices == ("snapdragon-855", "snapdragon-8-gen-1")
    assert table.seconds["design 1"][0] == st.best.ns / 1e9
    assert table.seconds["as it is"][0] == st.task.fastest_alone_ns / 1e9
    assert table.plans["design 1"] == st.best.design and None not in table.seconds["design 1"]
    assert any("on snapdragon-8-gen-1: segment 1: equation 5" in line for line in table.refusals)
    npu = ts.stretch(st.mod, ["cpu", "npu"], device="snapdragon-8-gen-1")
    again = ts.stretching.judge_on(npu, [devices[1]], [st.best.design.to_data()])
    assert again.seconds["design 1"][0] == table.seconds["design 1"][1]
    lost = Design((replace(st.best.design.segments[0], branches=(Branch("dla", 1, 64),)),))
    assert ts.stretching.judge_on(st, devices, [lost]).seconds["design 1"] == (None, None)
    for wrong in ("snapdragon-855", [], 5):
        with pytest.raises(InputError, match="a list of devices for devices"):
            ts.stretching.judge_on(st, wrong)


def test_equation_4_cuts_stages():
    operators = Operators(network(basic, STAGES, stem=32)["main"])
    runs = find_runs(operators)
    assert [run.depth for run in runs] == [2, 4]
    latency = {block.end: 1000 for run in runs for block in run.blocks}
    depths = {
        alpha: [run.depth for run in cut_runs(runs, latency, lambda _size: 200, alpha)]
        for alpha in (0.05, 0.1, 0.2)
    }
    assert depths == {0.05: [2, 4], 0.1: [2, 2, 2], 0.2: [1, 1, 1, 1, 1, 1]}


def test_a_meeting_within_a_stage_has_to_be_worth_it():
    mod = network(basic, STAGES, stem=32)
    second = detect_blocks(mod)[-2:]
    branches = (Branch("cpu", 2, 96), Branch("p1", 2, 96))
    design = Design((StretchedSegment(second[0].inputs[0], second[1].output, branches),))
    assert stretched(mod, 1, 1).judge(design).kept
    dear = stretched(mod, 1, 1, meeting=10_000_000).judge(design)
    assert dear.rule.startswith("segment 1: equation 4")


def test_equation_4_may_hold_for_ends_of_stages_too():
    mod = network(basic, STAGES, stem=32)
    task = stretched(mod, 1, 1).task
    alone = [task.pricing.nanoseconds(r.original(), 0, together=False) for r in task.chain.runs]
    assert 1.2 * alone[0] < alone[1]
    meeting = round(0.1 * sum(alone) / 2)  # a tenth of something between the two stages
    usual = stretched(mod, 1, 1, meeting=meeting).best.design
    assert [segment.start for segment in usual.segments] == [r.start for r in task.chain.runs]
    strict = stretched(mod, 1, 1, meeting=meeting, rules=Rules(stage_alpha=0.1))
    (left,) = strict.best.design.segments
    assert left.start == task.chain.runs[1].start
    rule = "equation 4 (a meeting costs at most 0.1 of its stage)"
    assert strict.judge(usual).rule == f"segment 1: {rule}" and rule in strict.space
    assert not any("of its stage" in known for known in stretched(mod, 1, 1).space)


def test_the_papers_own_stage():
    """NN-Stretch, figure 8: seven blocks of 176 channels become 6 of 136 and 4 of 160.

    The figure's processors are a CPU and a DSP, whose speeds it does not tell; these two are
    equally fast, as its branches are equally large. Numbers of the rules are the figure's.
    """
    rules = Rules(alpha=0.1, beta=1.0, least_ratio=0.5)
    st = stretched(network(mb_conv, ((128, 2), (176, 7)), stem=32), 1, 1, rules=rules)
    run = st.task.chain.runs[-1]
    assert run.depth == 7
    branches = (Branch("cpu", 6, 136), Branch("p1", 4, 160))
    design = Design((StretchedSegment(run.start, run.end, branches, run.merge),))
    judged = st.judge(design)
    assert judged.kept, judged.rule
    assert st.best.ns <= judged.ns < st.task.fastest_alone_ns
    operators = Operators(st.module(design)["main"])
    weights = [op.arg_shapes[1] for op in operators if op.kind == "nn.conv2d"]
    assert weights.count((3 * 136, 1, 3, 3)) == 5 and weights.count((3 * 160, 1, 3, 3)) == 3
    assert weights.count((88, 136, 1, 1)) == weights.count((88, 160, 1, 1)) == 1
    (joined,) = (op for op in operators if op.kind == "concat")
    assert shape_of(joined.binding.value) == [1, 176, 3, 3]


def test_how_blocks_are_merged():
    expected = {"basic": "concat", "regnet": "concat", "mb_conv": "project"}
    expected |= {"separable": "concat", "shuffle_unit": "restore"}
    for kind, merge in expected.items():
        runs = find_runs(Operators(network(BLOCKS[kind])["main"]))
        assert {run.merge for run in runs[-2:]} == {merge}, kind


def test_widths_are_whole_groups():
    st = stretched(network(regnet, ((48, 2), (96, 3)), stem=24), 1, 1, rules=WEAK)
    for candidate in st.candidates:
        assert all(b.width % 4 == 0 for s in candidate.design.segments for b in s.branches)


def test_branches_run_where_they_were_designed_for():
    st = stretched(network(basic, STAGES, stem=32), 1, 1)
    mod = load_network(st.module())
    known = costs(1, 1)
    candidate = as_designed(Network(mod, known.kernels), known)
    placed = candidate.plan.processor_of()
    recorded = branch_operators(mod)
    for processor in ("cpu", "p1"):
        own = [name for name in recorded[processor] if name in placed]
        assert own and {placed[name] for name in own} == {processor}
    assert search(mod, known).rivals[0].what == "branches as designed"
    others = costs(1)
    assert as_designed(Network(mod, others.kernels), others) is None


def test_what_has_no_branches_is_shared():
    """The stem before branches that were designed, by output channels, where meetings are cheap."""
    st = stretched(network(basic, STAGES, stem=64), 1, 1)
    mod = load_network(st.module())
    known = costs(1, 1, meeting=0)
    candidate = as_designed(Network(mod, known.kernels), known)
    first = next(op.name for op in Operators(mod["main"]) if op.kind == "nn.conv2d")
    assert set(candidate.plan.shares) == {first}
    assert candidate.what == "branches as designed, 1 layer in shares"
    for processor, names in branch_operators(mod).items():
        placed = candidate.plan.processor_of()
        assert {placed[name] for name in names if name in placed} == {processor}


def test_prediction_of_layers_is_near_that_of_kernels():
    """Stretching reckons with layers that are not built; the compiler tells what really runs."""
    st = stretched(network(basic, STAGES, stem=32), 1, 1)
    known = costs(1, 1)
    mod = load_network(st.module())
    built = as_designed(Network(mod, known.kernels), known)
    assert 0.7 < st.best.ns / built.cost.ns < 1.4


def test_all_designs_are_counted():
    assert space_of_table_2(1, 1) == 2.0  # one block, one branch: ten depths, ten widths
    assert round(10 ** space_of_table_2(2, 1)) == 100 + 100**2
    assert space_of_table_2(16, 2) > 50  # ResNet-50: "exceeds 10^50"


def test_what_cannot_be_stretched():
    known = costs(1, 1)
    lstm = load_trainable(zoo.build("lstm", size=3))
    with pytest.raises(UnsupportedError, match="blocks between meeting points in the network"):
        stretch_network(lstm, known, (0, 1), Rules())
    mod = network(mb_conv)
    with pytest.raises(UnsupportedError, match="two or three processors that run the network"):
        stretch_network(mod, costs(1), (0,), Rules())
    strict = stretch_network(mod, known, (0, 1), Rules(capacity=9))
    with pytest.raises(UnsupportedError, match="a design that the rules leave"):
        strict.module()
    with pytest.raises(PlanError, match=r"one of the processors"):
        st = stretched(mod, 1, 1)
        run = st.task.chain.runs[0]
        st.judge(Design((StretchedSegment(run.start, run.end, (Branch("npu", 1, 8),)),)))
    with pytest.raises(PlanError, match="segments that share no block"):
        st.judge(Design((StretchedSegment(run.start, run.end, (Branch("cpu", 1, 8),)),) * 2))
    with pytest.raises(InputError, match="a number from 0 to 1 for tolerance"):
        Rules(tolerance=2)
    with pytest.raises(InputError, match="a positive number for alpha"):
        Rules(alpha=0)
    for wrong in (0, 1.5, True, "2"):
        with pytest.raises(InputError, match="a whole number from 1 for meetings"):
            Rules(meetings=wrong)  # type: ignore[arg-type]


def test_shared_weights_are_refused():
    def twice(b, x, width, stride, seed):
        return basic(b, x, width, stride, seed % 10 if stride == 1 else seed)

    shared = CanonicaliseTrainable()(network(lambda *a: twice(*a[:4], 0), ((16, 3), (16, 3))))
    with pytest.raises(UnsupportedError, match="weights of their own for all blocks"):
        stretched(shared, 1, 1)


def test_shared_weights_across_stages_are_refused():
    """Two stages of one width, the second of which repeats the first one's layers."""

    def same(b, x, width, stride, _seed):
        return basic(b, x, width, stride, 0)

    shared = CanonicaliseTrainable()(network(same, ((16, 1), (16, 1)), stem=16))
    with pytest.raises(UnsupportedError, match="weights of their own for all blocks"):
        stretched(shared, 1, 1)


def onnx_of(*nodes: onnx.NodeProto, size: int | str = 8) -> onnx.ModelProto:
    """A network that reads an image and a condition."""
    x, c = (
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("x", 1, [1, 3, size, size]), ("c", 9, []))
    )
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(list(nodes), "graph", [x, c], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_control_flow_and_open_shapes():
    y = helper.make_tensor_value_info("b", 1, None)
    then, other = (
        helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], [y])
        for op in ("Relu", "Neg")
    )
    branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    with pytest.raises(UnsupportedError, match="blocks between meeting points"):
        ts.stretch(onnx_of(branch), device="snapdragon-855")
    is_open = onnx_of(helper.make_node("Relu", ["x"], ["y"]), size="n")
    with pytest.raises(ModelError, match="shapes="):
        ts.stretch(is_open, device="snapdragon-855")
    with pytest.raises(UnsupportedError, match="blocks between meeting points"):
        ts.stretch(is_open, device="snapdragon-855", shapes={"x": (1, 3, 8, 8)})


def test_one_stage():
    st = stretched(network(basic, ((64, 4),), stem=32), 1, 1)
    assert len(st.best.design.segments) <= 4
    assert counted(st.module()) == (st.best.multiply_adds, st.best.parameters)


def test_original_is_counted_as_the_zoo_counts():
    for name in ("resnet56", "shufflenet_v2", "mobilenet_v3_small"):
        model = zoo.build(name, size=64)
        operators = Operators(load_trainable(model)["main"])
        chain = Chain.cut(operators, find_runs(operators))
        assert count(chain.layers()) == tuple(reversed(zoo.count(model)))


def test_refused_operators_leave_one_processor():
    known = costs(1, 1, refuse={1: lambda _call: "it is broken"})
    with pytest.raises(UnsupportedError, match=r"name another target \(p1: .*: it is broken\)"):
        stretch_network(network(basic), known, (0, 1), Rules())


def test_who_gets_no_branches_is_said():
    known = costs(1, 1, 1, refuse={1: lambda _call: "it is broken"})
    st = stretch_network(network(basic, STAGES, stem=32), known, (0, 1, 2), WEAK)
    assert "p1 gets no branches: " in str(st) and "it is broken" in str(st)


def test_designs_for_others_are_refused():
    st = stretched(network(basic, STAGES, stem=32), 1, 1, rules=WEAK)
    data = st.best.design.to_data()
    data["segments"][0]["branches"][0]["processor"] = "npu"
    for use in (st.module, st.judge):
        with pytest.raises(PlanError, match=r"one of the processors .*got 'npu'"):
            use(data)


def test_no_rule_is_to_blame_where_one_processor_is_faster():
    st = stretch_network(network(basic), costs(1, 1, meeting=10**8), (0, 1), WEAK)
    with pytest.raises(UnsupportedError, match=r"slower than one .*is faster on one"):
        assert st.best


def test_for_a_phone_that_is_not_here():
    st = ts.stretch(network(basic, ((64, 2), (128, 2)), stem=32), device="snapdragon-855")
    assert set(st.alone_ns) == {"cpu", "opencl", "hexagon"}
    assert len(st.candidates) > 3  # a dozen pixels are not worth a meeting there
    assert not any(c.kept for c in st.candidates if len(c.design.segments) > 1)


def test_for_a_phone_that_is_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default for all its processors, little cores left out; nothing is measured or compiled."""
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    phone = ts.connect(rpc.LocalSession(), "pixel")
    monkeypatch.setattr(phone, "describe", described)
    st = ts.stretch(network(basic, ((64, 2), (128, 2)), stem=32), device=phone)
    assert set(st.alone_ns) == {"cpu", "opencl"}
    three = ts.stretch(
        network(basic, ((64, 2),), stem=32), ["llvm", "opencl", "little-cores"], device=phone
    )
    assert set(three.alone_ns) == {"cpu", "opencl", "little"}
    assert "little-cores" in registered() and "little-cores" not in used_unasked()


def test_a_segment_that_multiplies_nothing_is_judged() -> None:
    """Its branches have no work to divide."""
    whole = np.array([10.0, 0, 0])
    branch = [np.array([5.0]), np.zeros(1), np.zeros(1)]
    judged = judge([branch, branch], [whole, whole], Rules(), 0.0)
    assert all(kept.all() for kept in judged.keeps.values())
