"""The least time of any plan."""

from __future__ import annotations

import json

import pytest
from helpers.relax_helpers import module, random_const
from hypothesis import given
from hypothesis import strategies as st
from tvm.relax import op

import tvm_stretch as ts
from tvm_stretch.base.words import counted
from tvm_stretch.plan.considered import Considered, considered_lines
from tvm_stretch.plan.plan import Plan, Refusal, refusal_rows
from tvm_stretch.plan.search.candidates import least_ns

MS = 1_000_000


@pytest.mark.parametrize(
    ("times", "least"),
    [
        ([], 0),
        ([[0, 0]], 0),
        ([[4 * MS, 2 * MS], [1 * MS, 2 * MS]], 5 * MS / 3),
        ([[None, 3 * MS], [2 * MS, None]], 3 * MS),
        ([[MS, MS, MS]] * 7, 7 * MS / 3),
        ([[5 * MS]] * 2, 10 * MS),
    ],
)
def test_bounds_of_small_networks(times: list[list[int | None]], least: float) -> None:
    assert 0.99 * least <= least_ns(times) <= least


@given(st.lists(st.tuples(st.integers(1, 9 * MS), st.integers(1, 9 * MS)), min_size=1, max_size=9))
def test_two_processors_share_one_kernel(times: list[tuple[int, int]]) -> None:
    """The best way gives the first processor the kernels at which it is relatively good."""
    order = sorted(times, key=lambda pair: pair[0] / pair[1])
    best = float("inf")
    for place in range(len(order)):
        first, second = (
            sum(row[i] for row in rows)
            for i, rows in enumerate((order[:place], order[place + 1 :]))
        )
        one, other = order[place]
        share = min(1.0, max(0.0, (second + other - first) / (one + other)))
        best = min(best, max(first + share * one, second + (1 - share) * other))
    assert 0.97 * best - 1 <= least_ns(times) <= best + 1


def test_a_predicted_plan_and_its_rivals_are_judged_by_it() -> None:
    mod = module(lambda x: op.nn.conv2d(x, random_const(8, 8, 3, 3), padding=1), (1, 8, 16, 16))
    plan = ts.plan_for(mod, ["llvm", "opencl"], device="snapdragon-855")
    assert "with all processors always busy it would take 0.0" in plan.reason
    least = plan.considered[0].least_ns
    assert least and f"it would take {least / 1e6:.3f} ms" in plan.reason
    assert {one.least_ns for one in plan.considered} == {least}
    gaps = [one.gap for one in plan.considered]
    assert gaps[0] == pytest.approx(plan.considered[0].predicted_ns / least - 1)
    assert min(gaps) > -0.01 and plan.considered[0].verdict == "chosen"
    row = next(line for line in plan.explain().splitlines() if "  chosen" in line)
    assert f"{100 * gaps[0]:.0f} %" in row and "above least" in plan.explain()
    assert Plan.read(json.loads(plan.to_json())).considered == plan.considered


def test_a_candidate_without_bound_has_no_gap() -> None:
    assert Considered("cpu alone", 5).gap is None
    assert Considered("impossible", least_ns=5).gap is None
    assert "above least" not in "\n".join(considered_lines([Considered("cpu alone", 5)]))


def test_candidates_are_told_once() -> None:
    """A repeated search considers each processor again; what was measured is always told."""
    again = "not built: the search was repeated"
    candidates = (
        Considered("cpu alone", 7, "corrected", 8, "chosen"),
        Considered("1 segment in rows", 8, "typical", 9, "not faster"),
        Considered("1 segment in rows", 5, "corrected", 6, "not faster"),
        Considered("cpu alone", 11, "typical", None, again),
        Considered("opencl alone", 14, "typical", None, again),
        Considered("opencl alone", 9, "corrected", None, "not built"),
    )
    told = [line.split("  ")[0] for line in considered_lines(candidates)][1:5]
    assert told == ["cpu alone", "1 segment in rows", "1 segment in rows", "opencl alone"]


def test_counts_have_their_number() -> None:
    assert [counted(n, "layer", " in shares") for n in (1, 2)] == [
        "1 layer in shares",
        "2 layers in shares",
    ]


def test_a_reason_is_told_once_for_operators_of_all_kinds() -> None:
    steps = "its steps need each other, which no kernel of a DSP computes"
    refusals = [
        Refusal("hexagon", "sum", f"running.sum: {steps}"),
        Refusal("hexagon", "top_k", f"ordering.top_k: {steps}"),
        Refusal("hexagon", "take", "take: gathers are wrong there"),
    ]
    assert refusal_rows(refusals) == [
        ("hexagon", "2 operators (sum, top_k)", steps),
        ("hexagon", "take", "take: gathers are wrong there"),
    ]
