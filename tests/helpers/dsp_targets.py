"""DSPs without an emulator: the server and the kernels as a program of this machine."""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tvm
from helpers.cpu_targets import TARGET
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.autoload import load_native_library
from tvm_stretch.targets.cpu.code.object_code import compile_kernels
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.hexagon.code.dsp_code import Launch, Linker, dsp_code
from tvm_stretch.targets.processor import Check, Kernels, Operators, Processor

HOST_LINKER = Linker(("cc", "-w"), "host")


def dsp_processor(
    *,
    refuse: Check | None = None,
    command: tuple[str, ...] = (),
    deadline_ms: int = 20_000,
    spin_us: int = Launch.spin_us,
) -> Processor:
    """A DSP whose program is one of this machine, started by `command`."""
    launch = Launch("a DSP for tests", command, deadline_ms=deadline_ms, spin_us=spin_us)
    host = cpu_processor(TARGET, 1)

    def build(kernels: Kernels, schedule: tvm.transform.Pass) -> tvm.runtime.Module:
        load_native_library()
        return dsp_code(compile_kernels(kernels, schedule, TARGET), HOST_LINKER, launch)

    code = dataclasses.replace(host.code, build=build)
    operators = Operators(refuse=refuse or host.operators.refuse)
    return dataclasses.replace(host, name="dsp", kind="dsp", code=code, operators=operators)


@functools.cache
def network() -> tvm.IRModule:
    """Two integer branches of one input, and their sum."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 6, 16), "int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            left = builder.emit(
                relax.op.multiply(x, relax.const(np.full((1, 8, 1, 1), 3, "int32")))
            )
            left = builder.emit(relax.op.nn.relu(left))
            right = builder.emit(relax.op.nn.max_pool2d(x, (3, 3), padding=1))
            right = builder.emit(relax.op.add(right, relax.const(np.arange(16, dtype="int32"))))
            out = builder.emit_output(relax.op.maximum(left, right))
        builder.emit_func_output(out)
    return builder.get()


def answer(x: np.ndarray) -> np.ndarray:
    """What the network computes."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=np.iinfo("int32").min)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    right = windows.max(axis=(4, 5)) + np.arange(16, dtype="int32")
    return np.maximum(np.maximum(3 * x, 0), right)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, (1, 8, 6, 16)).astype("int32")


def compiled(
    *,
    spare: bool = False,
    command: tuple[str, ...] = (),
    deadline_ms: int = 20_000,
    spin_us: int = Launch.spin_us,
    more: tuple[Processor, ...] = (),
) -> ts.Model:
    """The right branch on the DSP, everything else on the first of `more`, or on the CPU."""
    dsp = dsp_processor(
        refuse=lambda call: None if call.op.name in ON_DSP else "for the test",
        command=command,
        deadline_ms=deadline_ms,
        spin_us=spin_us,
    )
    # each operator to the first that takes it
    plan = Plan(("dsp", *(processor.name for processor in more), "cpu"), ())
    return ts.compile(network(), [dsp, *more, TARGET], plan=plan, cpu_threads=1, spare=spare)


ON_DSP = ("relax.nn.max_pool2d", "relax.add")


@contextmanager
def control_file() -> Iterator[mmap.mmap]:
    """The newest mailbox of this process, as the session maps it.

    Raises:
        LookupError: no DSP runs at present.
    """
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "tvm_stretch_dsp_control" in str(entry.readlink()):
                found.append(int(entry.name))
        except OSError:
            continue
    if not found:
        raise LookupError("no mailbox: the DSP has ended, and is started again after a pause")
    fd = max(found)
    assert stat.S_ISREG(os.fstat(fd).st_mode)
    with mmap.mmap(fd, 0) as memory:
        yield memory
