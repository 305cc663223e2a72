"""Registers and spills of our kernels, from the build log of NVIDIA's driver.

    python -m benchmarks.kernels registers resnet18 deit_tiny [--json registers.json]

    ptxas info : Compiling entry function 'conv2d_3' for 'sm_90'
        16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
    ptxas info : Used 168 registers, used 1 barriers         ->  conv2d_3: 168 registers, 16 bytes

Printed are kernels that keep numbers in memory, and how many registers the others have. The driver
writes this only when it compiles, so its own cache of programs is switched off.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import re
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

_LOG, _OPTIONS = 0x1183, b"-cl-nv-verbose"
_GPU = 1 << 2
_KERNEL, _IN_A_LOG = "// Function: ", 8
"""TVM writes it before each kernel; how many kernels are built at a time."""


class Registers(NamedTuple):
    """What a kernel needs of a work-item's registers, and bytes that it keeps in memory instead."""

    kernel: str
    registers: int
    stack_bytes: int
    spilled_bytes: int


def read_log(log: str) -> list[Registers]:
    """The kernels in a build log."""
    found = []
    for part in log.split("Compiling entry function '")[1:]:
        used = re.search(r"Used (\d+) registers", part)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", part)
        if used is not None:
            frame, spilled = map(int, stack.groups()) if stack else (0, 0)
            found.append(Registers(part[: part.index("'")], int(used[1]), frame, spilled))
    return found


def build_log(source: str) -> str:
    """What the driver says when it compiles a program for the first GPU."""
    cl = ctypes.CDLL(ctypes.util.find_library("OpenCL") or "libOpenCL.so.1")
    for name in ("clCreateContext", "clCreateProgramWithSource"):
        getattr(cl, name).restype = ctypes.c_void_p
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    device, code, bytes_ = _first_gpu(cl), ctypes.c_int(), size()
    context = pointer(
        cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(code))
    )
    _check(code.value)
    text = ctypes.c_char_p(source.encode())
    program = pointer(
        cl.clCreateProgramWithSource(context, 1, ctypes.byref(text), None, ctypes.byref(code))
    )
    _check(code.value)
    _check(cl.clBuildProgram(program, 1, ctypes.byref(device), _OPTIONS, None, None))
    _check(cl.clGetProgramBuildInfo(program, device, _LOG, size(0), None, ctypes.byref(bytes_)))
    log = ctypes.create_string_buffer(bytes_.value + 1)
    _check(cl.clGetProgramBuildInfo(program, device, _LOG, bytes_, log, None))
    return log.value.decode()


def _first_gpu(cl: ctypes.CDLL) -> ctypes.c_void_p:
    """The first GPU of all platforms, of which PoCL's may be the first."""
    platforms, count = (ctypes.c_void_p * 16)(), ctypes.c_uint()
    _check(cl.clGetPlatformIDs(16, platforms, ctypes.byref(count)))
    device, kind = ctypes.c_void_p(), ctypes.c_uint64(_GPU)
    for platform in platforms[: count.value]:
        found = ctypes.c_void_p(platform), kind, 1, ctypes.byref(device), None
        if cl.clGetDeviceIDs(*found) == 0:
            return device
    raise RuntimeError("expected a GPU with an OpenCL driver, got none; install NVIDIA's")


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"expected success of OpenCL, got error {code}")


def sources_of(name: str) -> list[str]:
    """The OpenCL programs of a network."""
    import tvm_stretch as ts
    from benchmarks.gpu_models import write_onnx

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        write_onnx(name, path, 1)
        model = ts.compile(str(path), targets=["opencl"])
    sources = (str(code.inspect_source()) for code in model.module.imports)
    return [program for source in sources for program in programs_of(source)]


def programs_of(source: str) -> list[str]:
    """A program for every few kernels: the driver's log ends after eleven."""
    prelude, *kernels = source.split(_KERNEL)
    few = (kernels[i : i + _IN_A_LOG] for i in range(0, len(kernels), _IN_A_LOG))
    return [_KERNEL.join([prelude, *part]) for part in few]


def show(args: Namespace) -> None:
    """Print the kernels that spill."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    every = {}
    for name in args.names:
        kernels = [k for source in sources_of(name) for k in read_log(build_log(source))]
        every[name] = kernels
        spilling = [kernel for kernel in kernels if kernel.stack_bytes or kernel.spilled_bytes]
        most = max((kernel.registers for kernel in kernels), default=0)
        print(f"{name}: {len(kernels)} kernels, at most {most} registers, {len(spilling)} spill")
        for kernel in spilling:
            print(f"    {kernel}")
        if args.json:
            args.json.write_text(json.dumps(every))
