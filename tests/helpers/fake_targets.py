"""Processors without a device: the CPU's compiler phases, the executor's fake processor."""

from __future__ import annotations

from pathlib import Path

import tvm
from helpers.cpu_targets import TARGET

import tvm_stretch as ts
from benchmarks.replayed import device_of, lasting, moved
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run import testing
from tvm_stretch.targets.processor import Check, Processor

ROOT = Path(__file__).resolve().parents[2]


FOLDER = ROOT / "build/fake"


def fake_code(**script: object) -> tvm.runtime.Module:
    """What compiling makes for the fake processor; see run/testing/fake_processor.cc."""
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
    fakes = [
        fake_processor(device_of(name), target=host.target, regions=lasting(plan))
        for name in plan.processors
    ]
    return ts.compile(mod, [host, *fakes], plan=moved(mod, plan, host))
