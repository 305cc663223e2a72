"""What NVIDIA's driver says of a program's kernels."""

from __future__ import annotations

from benchmarks.gpu_registers import Registers, programs_of, read_log

LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'conv2d' for 'sm_90'
ptxas info    : Function properties for conv2d
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 4096 bytes smem, 576 bytes cmem[0]
ptxas info    : Compiling entry function 'dense_1' for 'sm_90'
ptxas info    : Function properties for dense_1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, 540 bytes cmem[0]
"""


def test_registers_and_spills_are_read() -> None:
    assert read_log(LOG) == [Registers("conv2d", 168, 16, 8), Registers("dense_1", 40, 0, 0)]


def test_other_drivers_say_nothing() -> None:
    assert read_log("") == read_log("warning: argument unused") == []


def test_programs_hold_a_few_kernels_each() -> None:
    kernels = [f"// Function: k{i}\nvoid k{i}() {{}}\n" for i in range(10)]
    first, second = programs_of("typedef int t;\n" + "".join(kernels))
    assert first == "typedef int t;\n" + "".join(kernels[:8])
    assert second == "typedef int t;\n" + "".join(kernels[8:])
