"""Measured costs at the pace of a disturbed machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tvm
from helpers.search_helpers import costs, emit
from tvm import relax

from tvm_stretch.plan.search.contest import Outcome
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.present_pace import at_present_pace
from tvm_stretch.plan.search.realise import Candidate


def taking(*ratios: float) -> object:
    """Plans that take so many times what is predicted of them."""

    def measure(_mod: tvm.IRModule, plans: Sequence[Candidate]) -> list[Outcome]:
        assert len(plans) == len(ratios)
        pairs = zip(plans, ratios, strict=True)
        return [Outcome(p.cost.ns * r / 1e9, 1.0, 1.0, 1.0) for p, r in pairs]

    return measure


def test_kernels_and_parts_at_the_present_pace() -> None:
    quiet = costs(1.0, 1.0)
    # found.singles are sorted by predicted time, and equal here: the CPU is first
    now = at_present_pace(quiet, taking(1.25, 2.0, 2.4))
    assert now.factors == pytest.approx((1.25, 2.0), rel=1e-3)
    assert now.together == pytest.approx((1.2, 1.2), rel=1e-3)
    (group,) = Network(emit(["conv"], size=56, channels=64), now.kernels).graph.groups
    assert now.whole(group, 1) == pytest.approx(2.0 * quiet.whole(group, 1), rel=1e-3)
    assert "corrected by a run" in now.source


def test_meetings_never_make_kernels_faster() -> None:
    assert at_present_pace(costs(1.0, 1.0), taking(1.0, 1.0, 0.8)).together == (1.0, 1.0)


def test_processors_without_convolutions_have_no_pace() -> None:
    def no(call: relax.Call) -> str | None:
        return "no" if call.op.name in ("relax.nn.conv2d", "relax.call_tir") else None

    quiet = costs(1.0, 1.0, refuse={1: no})
    assert at_present_pace(quiet, taking(1.0)) is quiet


def test_without_floats_integers_tell_the_pace() -> None:
    """An emulated DSP, of which a model says what the chip takes."""

    def no(call: relax.Call) -> str | None:
        return "no" if call.op.name == "relax.nn.conv2d" else None

    now = at_present_pace(costs(1.0, 1.0, refuse={1: no}), taking(1.0, 400.0, 400.0))
    assert now.factors == pytest.approx((1.0, 400.0), rel=1e-3)
