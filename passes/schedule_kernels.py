"""Schedule every PrimFunc for one CPU, as a template's loop nest or by the generic schedule.

for n, o, y, x, lane, ic in T.grid(...): conv2d block, bias block, relu block
->  a register-tiled nest
"""

from __future__ import annotations

import tvm

from tvm_stretch.network.rewriting import rewrite_kernels
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel


@tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """See the module docstring."""

    def __init__(self, machine: VectorMachine) -> None:
        self.machine = machine
        self.cache_key = f"ScheduleKernels {machine}"

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, lambda func: schedule_kernel(func, self.machine))
