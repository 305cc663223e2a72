"""A second processor on any machine: it runs the CPU's kernels on a thread of its own.

    from tvm_stretch.run.testing import fake_processor

    model = ts.compile("net.onnx", ["llvm", fake_processor("second")])

Plans, transfers, timelines and failures look as they would with a device. It needs a C++ compiler
(``c++`` or ``$CXX``): `fake_processor.cc` is also the example of a processor in a library of its
own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path

import tvm

from tvm_stretch.base.files import cache_folder
from tvm_stretch.run.native_processor import build_processor, load_processor
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Check, Kernels, Operators, Processor

SOURCE = Path(__file__).with_name("fake_processor.cc")


def fake_processor(
    name: str = "fake",  # its name in plans
    *,
    # the CPU whose kernels it runs; by default this machine's
    target: tvm.target.Target | None = None,
    # gives the reason where it does not support an operator; by default it supports what the CPU
    # does
    refuse: Check | None = None,
    folder: Path | None = None,  # where its driver is built; by default in the user's cache
    # what it does, as `fake_processor.cc` says; by default it has memory of its own
    **script: object,
) -> Processor:
    """The processor."""

    def build(_kernels: Kernels, _schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        return fake_code(folder, **{"mirrored": True, **script})

    host = cpu_processor(target or tvm.target.Target("llvm"), 1)
    return dataclasses.replace(
        host,
        name=name,
        kind="fake",
        operators=Operators(refuse=refuse or host.operators.refuse),
        code=dataclasses.replace(host.code, build=build, runs_host_code=True),
    )


def fake_code(folder: Path | None = None, **script: object) -> tvm.runtime.Module:
    """What compiling makes for it: the script, and the driver that follows it."""
    create = "tvm_stretch.create_fake_code"
    if tvm.get_global_func(create, allow_missing=True) is None:  # one library in a process
        load_processor(build_processor(SOURCE, folder or _usual_folder()))
    return tvm.get_global_func(create)(json.dumps(script))


@functools.cache
def _usual_folder() -> Path:
    return cache_folder("processors") or Path(tempfile.mkdtemp(prefix="tvm_stretch_processors_"))
