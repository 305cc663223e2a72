"""Plans that do what a schedule says: places, order, shares of layers, bands of chains."""

from __future__ import annotations

from fractions import Fraction

import pytest
from helpers.search_helpers import costs, emit

from benchmarks.baselines import schedule_codl, schedule_heft, schedule_mulayer
from benchmarks.commands import line
from benchmarks.two_processors import Carrier, cells
from tvm_stretch.make.branching import branch
from tvm_stretch.passes.tag import check_plan
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling.result import Result
from tvm_stretch.plan.splits import RowSplit

MEETING = 2_000


def carried(carrier: Carrier, result: Result) -> Plan:
    plan = carrier.plan(result)
    mod = branch(carrier.network.mod, plan.shares, plan.splits).mod
    check_plan(plan, mod["main"])
    return plan


def test_whole_kernels_run_where_and_in_the_order_in_which_the_schedule_wants_them():
    carrier = Carrier(emit(["fork", "fork"], size=56), costs(1.0, 1.0, meeting=MEETING))
    result = schedule_heft(carrier.problem)
    plan = carried(carrier, result)
    assert set(result.placement) == {0, 1}
    placed = plan.processor_of()
    groups = {group.name: group for group in carrier.network.graph.groups}
    jobs = zip(result.problem.operators, result.placement, strict=True)
    for job, place in jobs:
        if job.name in groups:
            operators = groups[job.name].operators
            assert {placed[op.name] for op in operators} == {plan.processors[place]}
    names = [carrier.network.group_of[op] for r in plan.regions for op in r.operators]
    for place, queue in enumerate(result.order):
        wanted = [result.problem.operators[i].name for i in queue]
        wanted = [name for name in wanted if name in groups]
        own = [name for name in dict.fromkeys(names) if name in wanted]
        assert own == wanted, place


def test_layers_of_mulayer_become_shares_of_output_channels():
    carrier = Carrier(emit(["conv", "conv"], size=56), costs(1.0, 1.0, meeting=MEETING))
    plan = carried(carrier, schedule_mulayer(carrier.problem))
    assert list(plan.shares.values()) == [(16, 16), (16, 16)]
    assert plan.splits == ()


def test_chains_of_codl_become_bands_of_rows():
    carrier = Carrier(emit(["conv"] * 3, size=56), costs(1.0, 1.0, meeting=40_000))
    result = schedule_codl(carrier.problem)
    assert {part.share for part in result.problem.operators if part.whole} == {Fraction(1, 2)}
    plan = carried(carrier, result)
    (rows,) = plan.splits
    assert isinstance(rows, RowSplit)
    assert (rows.start, rows.ratios) == ("x", (0.5, 0.5))
    assert not plan.shares


def test_a_row_has_the_prediction_and_how_wrong_it_is():
    row = {"network": "n", "plan": "ours", "predicted_ms": 2.0, "measured_ms": 4.0, "spread": 0.1}
    row |= {"quickest_ms": 2.5, "ratio": 0.61, "errors": [-0.5, 0.02, -0.2]}
    assert line(cells(row)) == (
        "| n | ours | 2.00 | 4.00 ± 10% | 2.50 | 0.61 | -50.0% | +2.0% | -20.0% |"
    )


@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 0.5)])
def test_what_every_scheduler_answers_can_be_carried_out(speeds):
    carrier = Carrier(emit(["conv", "depthwise", "residual", "fork"]), costs(*speeds))
    for result in carrier.results():
        carried(carrier, result)
