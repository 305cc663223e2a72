"""Wherever the operators run, the answer is the one of a single processor."""

from __future__ import annotations

import numpy as np
from helpers.fake_targets import TARGET, fake_processor
from helpers.random_networks import networks, plans
from helpers.relax_helpers import random_inputs
from helpers.rounding import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import tvm_stretch as ts
from tvm_stretch.read import load_network

PROCESSORS = ("cpu", "a", "b")


def outputs(model: ts.Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    result = model(*inputs)
    return list(result) if isinstance(result, tuple) else [result]


@settings(max_examples=settings().max_examples // 3)
@given(data=st.data())
def test_random_placements(data: st.DataObject) -> None:
    """`a` has memory of its own, `b` shares the host's; scripted latencies shuffle the run."""
    mod = load_network(data.draw(networks(most_steps=7)))
    plan = data.draw(plans(mod, PROCESSORS))
    latencies = {
        region.name: {"latency_us": data.draw(st.sampled_from([0, 0, 200]))}
        for region in plan.regions
    }
    fakes = [
        fake_processor("a", regions=latencies, mirrored=True),
        fake_processor("b", regions=latencies, mirrored=False),
    ]
    single = ts.compile(mod, TARGET, cpu_threads=1)
    several = ts.compile(mod, [TARGET, *fakes], plan=plan, cpu_threads=1)
    for seed in range(3):
        inputs = random_inputs(mod, seed)
        assert_rounded(mod, inputs, outputs(several, inputs), outputs(single, inputs))
