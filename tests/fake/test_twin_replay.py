"""Plans for a phone's twin on processors that take as long as predicted: does the clock agree?"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from helpers.cpu_targets import host_of
from helpers.fake_targets import replay
from helpers.search_helpers import emit

from tvm_stretch.plan.cost.profile import ProcessorProfile, Profile, Transfer
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.search.twin import twin_costs, twin_processors

ATTEMPTS = 5  # the machine may be busy with other work


def slow(processor: ProcessorProfile, times: float) -> ProcessorProfile:
    """One of a phone long ago: its kernels take longer than ours here, handing over does not."""
    speeds = {f: v / times for f, v in processor.multiply_adds_per_ns.items()}
    return replace(processor, multiply_adds_per_ns=MappingProxyType(speeds))


@pytest.fixture(scope="module")
def planned() -> tuple[Candidate, object]:
    known = load_profile("snapdragon-855")
    processors = {name: slow(found, 1000.0) for name, found in known.processors.items()}
    transfers = tuple(Transfer(t.sender, t.receiver, 5e3, t.bytes_per_ns) for t in known.transfers)
    profile = Profile("old", "scripted", MappingProxyType(processors), transfers)
    team, _ = twin_processors(profile, ["cpu", "hexagon"])
    mod = emit(["conv", "conv"], size=28, channels=32)
    found = search(mod, twin_costs(profile, team))
    return min((*found.singles, *found.rivals), key=lambda one: one.cost.ns), mod


def test_the_timeline_of_a_replay_agrees_with_the_prediction(planned) -> None:
    candidate, mod = planned
    plan = candidate.plan
    used = {region.processor for region in plan.regions}
    assert used == {"cpu", "hexagon"}, candidate.what
    assert candidate.cost.ns > 30e6
    model = replay(mod, plan, host_of(4))
    off = []
    for _ in range(ATTEMPTS):
        timeline = model.timeline()
        off.append(timeline.duration / candidate.cost.ns - 1)
        assert off[-1] > -0.02, "nothing is done before it is predicted"
        if off[-1] < 0.1:
            assert timeline.overlap > 0.2
            return
    pytest.fail(f"it took {min(off):.0%} longer than predicted")
