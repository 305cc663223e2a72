"""What LLVM makes of the tiles that six networks need, on machines that need not be here."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import tvm
from helpers.lowered import heap_buffers
from helpers.relax_helpers import module
from tvm import relax, tirx
from tvm.target import Target

from benchmarks.kernel_code import SIX, HotLoop, build, forms, hot_loops, layers
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import vector_machine
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.conv_tiles import blocking
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.phases import kernel_phases

TARGETS = {
    "avx2": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"},
    "avx512": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"},
    "neon": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"},
}
Form = tuple[Any, ...]
LEAST_SHARE = 0.44  # multiply-adds among instructions; four start in a cycle, two of them these
MOST_BYTES = 2048  # of a loop that decoded instructions and the first-level cache hold easily


def loop_bytes(loops: Sequence[HotLoop], triple: str) -> list[int]:
    """The size of each loop's code; empty where nothing here can assemble it."""
    if triple.startswith("aarch64"):
        return [4 * len(loop.body) for loop in loops]
    assembler, size = shutil.which("as"), shutil.which("size")
    if not assembler or not size:
        return []
    parts = (f'.section .text.{i},"ax"\n{loop.text}' for i, loop in enumerate(loops))
    # labels are local to a section here
    text = "\n".join(p.replace(".Lbegin", f".Lbegin{i}") for i, p in enumerate(parts))
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        command = [assembler, "--64", "-o", file.name, "-"]
        done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
        if done.returncode:
            return []
        listed = subprocess.run(
            [size, "-A", file.name], text=True, capture_output=True, check=True
        ).stdout
    found = dict(re.findall(r"^\.text\.(\d+)\s+(\d+)", listed, re.MULTILINE))
    return [int(found[str(i)]) for i in range(len(loops))]


def takes_heap(config: Template, machine: VectorMachine) -> bool:
    """Planes of a band of tiles and sums of a long reduction are too large for a stack."""
    if isinstance(config, ConvConfig):
        return blocking(config, machine).chunks > 1
    return isinstance(config, WinogradConfig)


def complaints(loop: HotLoop, depthwise: bool, registers: int) -> list[str]:
    """What is wrong with a loop."""
    # The sum of a depthwise layer is as short as its window, so results are many among the stores.
    # On AVX2 tiles of 7, 6 and 5 pixels spill less or nothing, and take up to a tenth longer.
    stores, spills = (1 / 5 if depthwise else 0.0, 1 / 4 if depthwise and registers < 32 else 0.0)
    found = {
        "spills": loop.spills > spills * loop.multiply_adds,
        "sums in memory": loop.stores > stores * loop.multiply_adds,
        "share of multiply-adds": not depthwise and loop.share < LEAST_SHARE,
    }
    return [what for what, is_so in found.items() if is_so]


def hardest(found: Mapping[Form, Template]) -> dict[Form, Template]:
    """Of tiles that differ in their size alone, the one with the most sums in registers."""
    windows = {form: config for form, config in found.items() if form[0] == "depthwise"}
    tiles = sorted(found.keys() - windows.keys(), key=lambda form: form[-2] * form[-1])
    largest = {form[:-2]: form for form in tiles}
    return {**windows, **{form: found[form] for form in largest.values()}}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full) if n != "neon" else n for n in TARGETS]
)
def test_hot_loops_of_six_networks(name: str, every: bool) -> None:
    """The forms of tile that templates pick for their layers; of two of them, the largest."""
    target = TARGETS[name]
    machine = vector_machine(Target(target), 1)
    networks = SIX if every else ("resnet18", "efficientnet_lite4")
    found = forms({s for network in networks for s in layers(network)}, machine)
    wrong = []
    for form, config in (found if every else hardest(found)).items():
        text = str(build(config, machine, target).inspect_source("asm"))
        loops = hot_loops(text)
        depthwise, registers = isinstance(config, WindowConfig), machine.registers
        faults = [c for loop in loops for c in complaints(loop, depthwise, registers)]
        if not loops:
            faults.append("no loop that multiplies")
        if "BackendAllocWorkspace" in text and not takes_heap(config, machine):
            faults.append("memory from the heap")
        if max(loop_bytes(loops, target["mtriple"]), default=0) > MOST_BYTES:
            faults.append("bytes")
        wrong += [f"{form}: {what}" for what in faults]
    assert wrong == []


ROWS = {
    "softmax": lambda x: relax.op.nn.softmax(x, 2),
    "softmax of columns": lambda x: relax.op.nn.softmax(x, 1),
    "softmax of planes": lambda x: relax.op.nn.softmax(x, 0),
    "running sums": lambda x: relax.op.cumsum(x, 2),
    "running sums, backwards": lambda x: relax.op.flip(relax.op.cumsum(relax.op.flip(x, 2), 2), 2),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("what", ROWS)
def test_what_goes_along_an_axis_needs_no_heap(what: str, name: str) -> None:
    """Its rows, or what it remembers of them, fit the stack."""
    machine = vector_machine(Target(TARGETS[name]), 1)
    phases = [BlockChannels({"cpu": machine}), *kernel_phases(expand_math=True)]
    mod = tvm.transform.Sequential(phases)(load_network(module(ROWS[what], (30, 40, 197))))
    kernels = ScheduleKernels(machine)(mod).functions.values()
    counts = [heap_buffers(f) for f in kernels if isinstance(f, tirx.PrimFunc)]
    assert counts and not any(counts)
