"""Addresses for a CPU's OpenCL driver: opaque bases, and constants that its loads take beside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T

from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.opencl.code.folded_addresses import fold_addresses
from tvm_stretch.targets.opencl.code.opencl_code import compile_opencl
from tvm_stretch.targets.opencl.opencl import local_device


def folded(offsets: tuple[int, ...], scale: int) -> str:
    """A loop that reads ``x[4 * i + scale * j + offset]``, as OpenCL's kernels are lowered."""

    @T.prim_func(s_tir=True)
    def kernel(x_ptr: T.handle("float32"), y_ptr: T.handle("float32"), i: T.int64):
        x = T.decl_buffer((100_000,), "float32", data=x_ptr)
        y = T.decl_buffer((100_000,), "float32", data=y_ptr)
        for j in T.serial(T.int64(0), T.int64(9)):
            y[j] = x[i]

    loop = next(_loops(kernel.body))
    x = next(_loads(loop)).source
    j, i = loop.loop_var, kernel.params[2]
    sums = [
        tirx.BufferStore(
            loop.body.buffer,
            tirx.BufferLoad(x, [i * tirx.const(4, "int64") + j * scale + offset]),
            [j],
        )
        for offset in offsets
    ]
    changed = tirx.For(j, loop.min, loop.extent, loop.kind, tirx.SeqStmt(sums))
    body = tirx.SeqStmt([*kernel.body.seq[:-1], changed])
    return fold_addresses(body, list(kernel.params[:2])).script()


def _loops(body: tirx.Stmt):
    return (statement for statement in body.seq if isinstance(statement, tirx.For))


def _loads(loop: tirx.For):
    yield loop.body.value


def test_constants_stay_beside_one_base():
    text = folded((0, 1, 2, 3), 8)
    assert text.count("tvm_stretch_opaque") == 1
    assert [re.search(r"x\[base0(?: \+ T.int64\((\d)\))?\]", line) is not None
            for line in text.splitlines() if "x[" in line] == [True] * 4  # fmt: skip


def test_the_least_offset_is_part_of_the_base():
    """Rows above the image: 8 * j + 4 * i - 16 and what follows it."""
    text = folded((-16, -15, -14, -13), 8)
    assert "T.int64(-16)" in text or "- T.int64(16)" in text
    assert all(f"x[base0 + T.int64({offset})]" in text for offset in (1, 2, 3))


@pytest.mark.parametrize(
    ("offsets", "scale"),
    [
        ((0, 1, 2), 8),  # too few accesses to be worth a register
        ((0, 8, 16, 24), 8),  # no offset fits into bits that are zero: these stay additions
    ],
)
def test_what_is_folded_anyway_stays(offsets: tuple[int, ...], scale: int):
    assert "opaque" not in folded(offsets, scale)


def test_vectors_stay_vectors():
    """TVM sees that their index is a multiple of their lanes; else it would gather the elements."""
    machine = VectorMachine(8, 16, False, 512 * 1024, 1)
    config = choose(ConvShape(1, 64, (14, 14), 48, (1, 1)), machine, 8)
    data = te.placeholder((1, 8, 14, 14, 8), name="data")
    weight = te.placeholder(config.weight_shape, name="weight")
    out = config.meaning(data, weight)
    kernel = schedule_kernel(te.create_prim_func([data, weight, out]), machine)
    text = compile_opencl({"conv": kernel}, tvm.target.Target("opencl"), on_cpu=True)
    assert text.count("tvm_stretch_opaque(") > 2 and "vload8(0, " in text
    assert ".s7]" not in text


_LAYER = """
import numpy as np
import tvm_stretch as ts
from helpers.onnx_models import Net
net = Net()
x = net.input("x", (1, 64, 14, 14))
model = ts.compile(net.model(net.op("Relu", net.conv(x, 48, (1, 1)))), ["opencl"])
model(np.zeros((1, 64, 14, 14), "float32"))
"""


@pytest.mark.skipif(
    (device := local_device()) is None or device.type != "cpu" or "x86_64" not in os.uname(),
    reason="no OpenCL driver for this x86 CPU",
)
@pytest.mark.full
def test_the_drivers_code_has_no_addresses_of_its_own_in_the_loop(tmp_path: Path):
    """Per multiply-add, an operand or two; sums stay in registers, and nothing is an OR."""
    environment = {**os.environ, "POCL_CACHE_DIR": str(tmp_path), "TVM_STRETCH_CACHE_DIR": ""}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    subprocess.run([sys.executable, "-c", _LAYER], check=True, env=environment, timeout=300)
    libraries = list(tmp_path.rglob("*conv2d*.so"))
    if not libraries:
        pytest.skip("this driver keeps its code elsewhere")
    command = ["objdump", "-d", "--no-show-raw-insn", str(libraries[0])]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loop = max(inner_loops(code.splitlines()), key=lambda body: sum("vfmadd" in x for x in body))
    products = sum("vfmadd" in line for line in loop)
    assert products >= 16
    assert len(loop) <= 2 * products and not any("(%rsp)" in line for line in loop)
    assert sum("\tor " in line for line in loop) <= 2


def inner_loops(lines: list[str]) -> list[list[str]]:
    """What lies between a backward jump and its target, where no other loop lies inside."""
    places = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r" *([0-9a-f]+):\t", line))}
    loops = [
        (places[m[1]], i)
        for i, line in enumerate(lines)
        if (m := re.search(r"\tj\w+ +([0-9a-f]+) ", line)) and places.get(m[1], i) < i
    ]
    return [lines[a:b] for a, b in loops if not any(a < c and d < b for c, d in loops)]
