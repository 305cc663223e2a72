"""Processors without a device: the CPU's compiler phases, the executor's fake processor."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tvm
from cpu_targets import TARGET

import tvm_stretch as ts
from tvm_stretch import testing
from tvm_stretch.build.branching import branch
from tvm_stretch.plan.plan import Plan
from tvm_stretch.targets.processor import Check, Processor

ROOT = Path(__file__).resolve().parents[1]


FOLDER = ROOT / "build/fake"


def fake_code(**script: object) -> tvm.runtime.Module:
    """What compiling makes for the fake processor; see tvm_stretch/testing/fake_processor.cc."""
    return testing.fake_code(FOLDER, **script)


def fake_processor(
    name: str = "fake",
    *,
    refuse: Check | None = None,
    target: tvm.target.Target = TARGET,
    **script: object,
) -> Processor:
    """A processor that runs kernels of the CPU on a thread of its own.

    Args:
        name: its name in plans.
        refuse: which operators it does not support.
        target: the CPU whose kernels it runs.
        script: what it does; see fake_processor.cc. `mirrored` by default.
    """
    return testing.fake_processor(name, target=target, refuse=refuse, folder=FOLDER, **script)


def replay(mod: tvm.IRModule, plan: Plan, host: Processor) -> ts.Model:
    """A model that does what the plan says, its regions on fakes that take what it predicts.

    The CPU of the plan is a fake too: kernels of this machine's have another pace. They really run
    meanwhile, so predictions have to be longer than what they take here.
    """
    lasting = {
        region.name: {"latency_us": (region.predicted_ns[1] - region.predicted_ns[0]) // 1000}
        for region in plan.regions
        if region.predicted_ns is not None
    }
    names = [f"twin_{name}" for name in plan.processors]
    fakes = [fake_processor(name, target=host.target, regions=lasting) for name in names]
    assert not (plan.shares and plan.splits), "parts of shares are named after places, which move"
    shares = {name: (0, *widths) for name, widths in plan.shares.items()}
    splits = (dataclasses.replace(split, ratios=(0, *split.ratios)) for split in plan.splits)
    count = len(names)
    parts = (
        branch(mod, own, (), [host] * number).parts
        for own, number in ((plan.shares, count), (shares, count + 1))
    )
    renamed = dict(zip(*parts, strict=True))
    regions = (
        dataclasses.replace(
            region,
            processor=f"twin_{region.processor}",
            operators=tuple(renamed.get(name, name) for name in region.operators),
        )
        for region in plan.regions
    )
    moved = Plan((host.name, *names), tuple(regions), shares=shares, splits=tuple(splits))
    return ts.compile(mod, [host, *fakes], plan=moved)
