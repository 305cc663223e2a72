"""Processors without a device: the CPU's compiler phases, the executor's fake processor."""

from __future__ import annotations

import dataclasses
import json

import tvm
from cpu_targets import TARGET
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.processor import Check, Kernels, Processor

from tvm_stretch.runtime.autoload import load_native_library


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
    text = json.dumps({"mirrored": True, **script})

    def build(_kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        return tvm.get_global_func("tvm_stretch.create_fake_code")(text)

    host = cpu_processor(target, 1)
    return dataclasses.replace(
        host,
        name=name,
        kind="fake",
        refuse=refuse or host.refuse,
        build=build,
        runs_host_code=True,
    )
