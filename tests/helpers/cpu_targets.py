"""The CPUs that tests compile for, by float lanes of a vector: NEON, AVX2, AVX-512.

Nothing here is optimised by LLVM: its time is most of a compile, and few tests are about speed.
"""

from __future__ import annotations

import platform

import pytest
import tvm
from another_machine import CPUS, WIDE
from tvm import tirx

from tvm_stretch.targets.cpu.code.object_code import llvm_module
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor

QUICK = {"kind": "llvm", "opt-level": 0}
"""This machine's CPU."""

TARGET = tvm.target.Target(QUICK)

_X86 = {**QUICK, "mtriple": "x86_64-linux-gnu"}
_CPUS = {
    4: {**QUICK, "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"},
    8: {**_X86, "mcpu": "haswell"},
    16: {**_X86, "mcpu": "skylake-avx512"},
}
_SSE = {**_X86, "mcpu": "x86-64"}
_WIDE = {**_X86, "mcpu": CPUS[WIDE]}
ALL_LANES = tuple(_CPUS)
QUICK_LANES = tuple(
    lanes if lanes == 8 else pytest.param(lanes, marks=pytest.mark.full) for lanes in ALL_LANES
)
"""For tests of what hardly depends on them."""

HERE = cpu_processor(TARGET, 1).machine.lanes
"""What this machine has."""
_IS_X86 = platform.machine() == "x86_64"


def built(
    kernel: tirx.PrimFunc, target: tvm.target.Target = TARGET, name: str = "kernel"
) -> tvm.runtime.Module:
    """Machine code of a scheduled kernel, as artifacts have it."""
    return llvm_module(tvm.IRModule({name: kernel.with_attr("global_symbol", name)}), target)


def cpu_of(lanes: int) -> tvm.target.Target:
    """A CPU with vectors of so many float32, for plans and code: it need not be this machine's."""
    return tvm.target.Target(_CPUS[lanes])


def host_of(lanes: int) -> Processor:
    """Such a CPU whose kernels run here; the test is skipped where that cannot be."""
    if lanes == HERE:
        return cpu_processor(TARGET, 1)
    if not _IS_X86 or HERE < 8:
        pytest.skip(f"this machine has no vectors of {lanes} float32")
    runs_here = {4: _SSE, 8: _CPUS[8], 16: _CPUS[16] if HERE == 16 else _WIDE}
    return cpu_processor(tvm.target.Target(runs_here[lanes]), 1)
