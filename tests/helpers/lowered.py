"""What TVM makes of a scheduled kernel just before LLVM, which takes no LLVM to tell."""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.target import Target

from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine


def heap_buffers(func: tirx.PrimFunc) -> int:
    """How many buffers a kernel takes from the heap, where LLVM makes no registers of them."""
    module = tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")})
    lower, finish_host, _ = default_s_tir_pipeline()
    bound = tirx.transform.BindTarget(Target("llvm", host="llvm"))(module)
    return int(finish_host()(lower(bound)).script().count("TVMBackendAllocWorkspace("))


def winograd_of_tile(shape: ConvShape, machine: VectorMachine, tile: int) -> WinogradConfig:
    """The best Winograd configuration with this tile."""
    every = WinogradConfig.configure(shape, machine, machine.lanes)
    fits = [config for config in every if config.tile == tile]
    return min(fits, key=lambda config: config.cycles(machine))
