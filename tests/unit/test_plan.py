"""Plans as files: round trips, one operator per line, clear refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_stretch.base.errors import PlanError
from tvm_stretch.plan.plan import Execution, Plan, PlannedRegion, Refusal
from tvm_stretch.plan.splits import ChannelSplit, RowSplit

PLAN = Plan(
    ("cpu", "opencl"),
    (
        PlannedRegion("r0", "cpu", ("conv2d", "add")),
        PlannedRegion("r1", "opencl", ("conv2d1",), (500, 2_000)),
    ),
    (Refusal("opencl", "add", "add runs in float32, not int64"),),
    shares={"conv2d2": (40, 24)},
    splits=(
        RowSplit("relu", "relu3", (3, 2.5)),
        ChannelSplit("relu3", "add4", (1, 1), block=16, first="split"),
    ),
    costs="measured",
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = draw(st.lists(st.text(min_size=1), unique=True, max_size=8))
    regions = []
    while names:
        size = draw(st.integers(1, len(names)))
        processor = draw(st.sampled_from(["cpu", "opencl"]))
        regions.append(PlannedRegion(f"r{len(regions)}", processor, tuple(names[:size])))
        names = names[size:]
    return Plan(("cpu", "opencl"), tuple(regions))


@given(plans())
def test_json_holds_everything(plan: Plan) -> None:
    assert Plan.read(json.loads(plan.to_json())) == plan
    assert Plan.read(json.loads(plan.to_json())).to_json() == plan.to_json()


def test_files_and_plans_can_be_read(tmp_path: Path) -> None:
    PLAN.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == PLAN == Plan.read(str(tmp_path / "plan.json"))
    assert Plan.read(PLAN) is PLAN
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_moving_an_operator_moves_one_line() -> None:
    moved = Plan(
        PLAN.processors,
        (
            PlannedRegion("r0", "cpu", ("conv2d",)),
            PlannedRegion("r1", "opencl", ("add", "conv2d1"), (500, 2_000)),
        ),
        PLAN.refusals,
        PLAN.shares,
        PLAN.splits,
        costs=PLAN.costs,
    )
    before, after = (set(p.to_json().replace(",", "").split("\n")) for p in (PLAN, moved))
    assert before == after


def test_explain_shows_regions_and_refusals() -> None:
    text = PLAN.explain()
    assert "r0      cpu        2                        conv2d, add" in text
    assert "r1      opencl     1          0.002         conv2d1" in text
    assert "opencl  add  add runs in float32, not int64" in text
    many = Plan(("cpu",), (PlannedRegion("r0", "cpu", tuple(f"op{i}" for i in range(99))),))
    assert "op0, op1, op2, op3, ..., op98" in many.explain()
    assert "refused" not in many.explain(), "nobody was asked"
    compiled = replace(many, execution=Execution(99, (), ()))
    assert "no operator was refused by any processor\n0 of 99 operators" in compiled.explain()


def test_explain_tells_each_reason_once() -> None:
    """Fifteen refused operators are one line, whatever their kinds are."""
    kinds = ("relax.nn.conv2d", "relax.nn.relu", "relax.add")
    refusals = tuple(Refusal("dsp", f"op{i}", f"{kinds[i % 3]}: no floats") for i in range(15))
    other = Refusal("dsp", "op15", "op15 runs in float32: not int64")
    lines = replace(PLAN, refusals=(*refusals, other)).explain().splitlines()
    assert lines[lines.index("refused:") + 1 :] == [
        "dsp  15 operators (op0, op1, op2, op3, ..., op14)  no floats",
        "dsp  op15                                          op15 runs in float32: not int64",
    ]


def test_explain_shows_choices_and_what_they_are_worth() -> None:
    region = PlannedRegion("r0", "cpu", ("conv2d.p0",), (0, 3_250_000), "40 of 64 channels")
    text = replace(PLAN, regions=(region,), refusals=(), reason="faster than cpu alone").explain()
    assert "r0      cpu        1          3.250         40 of 64 channels  conv2d.p0" in text
    assert "computed in shares of their channels: 1 layer" in text
    assert "split by rows: relu -> relu3 as 3 : 2.5" in text
    assert "predicted: 3.250 ms\ncosts: measured\nfaster than cpu alone" in text


def test_a_plan_without_regions_is_one() -> None:
    data = {key: value for key, value in changed().items() if key != "regions"}
    assert Plan.read(data).regions == ()


def changed(**fields: object) -> dict:
    return {**json.loads(PLAN.to_json()), **fields}


SPLIT = {"by": "rows", "start": "relu", "end": "relu3", "ratios": [1, 1]}
REGION = {"name": "r0", "processor": "cpu", "operators": ["a"]}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "format and version"),
        (changed(version=2), "format and version"),
        (changed(colour="red"), "'colour'"),
        (changed(processors="cpu"), "a list for processors"),
        (changed(processors=[]), "at least one processor"),
        (changed(processors=["cpu", "cpu", "opencl"]), "cpu more than once"),
        (changed(regions={"r0": REGION}), "a list for regions"),
        (changed(regions=[{"name": "r0"}]), "fields name, processor and operators"),
        (changed(regions=[{**REGION, "name": 3}]), "a string for name"),
        (changed(regions=[{**REGION, "name": "r-0"}]), "letters, digits and underscores"),
        (changed(regions=[{**REGION, "name": "main"}]), "other than main"),
        (changed(regions=[{**REGION, "operators": []}]), "at least one operator"),
        (changed(regions=[{**REGION, "operators": "a"}]), "a list for operators"),
        (changed(regions=[{**REGION, "operators": ["a", "a"]}]), "operators once, got a"),
        (changed(regions=[REGION, REGION]), "names of regions once, got r0"),
        (changed(regions=[{**REGION, "processor": "npu"}]), "got 'npu'"),
        (changed(regions=[{**REGION, "predicted_ns": [3, 1]}]), "start and end for predicted_ns"),
        (changed(refusals=[{"who": "me"}]), "refusals"),
        (changed(shares=[8, 8]), "an object for shares"),
        (changed(shares={"conv2d2": [8.5, 8]}), "a whole number for 'conv2d2' in shares[0]"),
        (changed(shares={"conv2d2": [64]}), "expected 2 numbers"),
        (changed(shares={"conv2d2": [64, 0]}), "or more above 0"),
        (changed(shares={"conv2d2": [72, -8]}), "at least 0"),
        (changed(splits={}), "a list for splits"),
        (
            changed(splits=[{"by": "rows", "start": "a", "end": "b"}]),
            "fields start, end and ratios for splits[0]",
        ),
        (changed(splits=[SPLIT | {"ratios": [1, 1, 1]}]), "for the ratios of splits[0]"),
        (changed(splits=[SPLIT | {"ratios": [1, float("nan")]}]), "a number for ratios[1]"),
        (changed(splits=[SPLIT | {"ratios": [0, 1]}]), "or more above 0"),
        (changed(splits=[SPLIT | {"by": "columns"}]), "by = rows or channels"),
        (changed(splits=[SPLIT | {"end": 4}]), "a string for end of splits[0]"),
        (
            changed(splits=[SPLIT | {"block": 8}]),
            "the fields start, end and ratios for splits[0]",
        ),
        (changed(splits=[SPLIT | {"by": "channels", "block": 0}]), "a positive number for block"),
        (
            changed(splits=[SPLIT | {"by": "channels", "first": "half"}]),
            "repeat or split for first",
        ),
    ],
)
def test_malformed_plans_are_refused(data: dict, says: str) -> None:
    with pytest.raises(PlanError, match=r"^expected .*, got .*; ") as caught:
        Plan.read(data)
    assert says in str(caught.value)


@pytest.mark.parametrize("field", ["format", "version", "processors"])
def test_fields_that_must_not_be_missing(field: str) -> None:
    data = {key: value for key, value in changed().items() if key != field}
    with pytest.raises(PlanError, match=rf"^expected .*{field}.*, got .*; "):
        Plan.read(data)


@pytest.mark.parametrize("source", [[1], 3, b"{}", None])
def test_what_cannot_be_a_plan(source: object) -> None:
    with pytest.raises(PlanError, match=r"^expected a Plan, the path .*, got .*; give one"):
        Plan.read(source)  # type: ignore[arg-type]


@given(share=st.floats(0, 0.999))
def test_truncated_files_are_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    path = tmp_path_factory.mktemp("truncated") / "plan.json"
    text = PLAN.to_json().rstrip()
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(PlanError, match=r"^expected JSON for .*plan.json, got .*; correct the"):
        Plan.read(path)


def test_files_that_are_no_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="readable file for the plan"):
        Plan.read(tmp_path / "missing.json")
    (tmp_path / "half.json").write_text('{"format": ')
    with pytest.raises(PlanError, match="expected JSON"):
        Plan.read(tmp_path / "half.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="expected JSON"):
        Plan.read(tmp_path / "binary.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(PlanError, match="expected an object"):
        Plan.read(tmp_path / "list.json")
    with pytest.raises(PlanError, match="place to write"):
        PLAN.write(tmp_path / "no" / "plan.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("reason", "\ud800"), ("predicted_ns", 10**400)],
)
def test_values_that_no_artifact_could_hold(field: str, value: object) -> None:
    data = {"format": "tvm_stretch.plan", "version": 1, "processors": ["cpu"], field: value}
    with pytest.raises(PlanError, match=r"^expected .*, got .*; "):
        Plan.read(data)
