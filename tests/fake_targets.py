"""Processors without a device: the CPU's compiler phases, the executor's fake processor."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import tvm
from cpu_targets import TARGET
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.processor import Check, Kernels, Processor

from tvm_stretch.runtime.native_processor import build_processor, load_processor

ROOT = Path(__file__).resolve().parents[1]


def fake_code(**script: object) -> tvm.runtime.Module:
    """What compiling makes for the fake processor; see native/fake_processor.cc."""
    load_processor(build_processor(ROOT / "tests/native/fake_processor.cc", ROOT / "build/fake"))
    return tvm.get_global_func("tvm_stretch.create_fake_code")(json.dumps(script))


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
        script: what it does; see native/fake_processor.cc. `mirrored` by default.
    """

    def build(_kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        return fake_code(**{"mirrored": True, **script})

    host = cpu_processor(target, 1)
    return dataclasses.replace(
        host,
        name=name,
        kind="fake",
        refuse=refuse or host.refuse,
        build=build,
        runs_host_code=True,
    )
