"""Kernels that compute areas of their output beside the CPU, for streams of frames.

    conv2d(data, weight, out, [top, ..])  ->  conv2d(data, weight, out, [next, count, top, ..]):
                                                for worker in parallel(4):
                                                  for _ in range(AREAS):
                                                    area = next++    # atomically
                                                    if area < count: conv2d of the area

The CPU takes areas from the same list (native/shared_areas.h), so both are busy until none is left,
however fast they are. The loop nest of an area is the CPU's, so numbers are equal bit by bit. A
worker computes whole areas: the nest has no parallel loops of its own.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import tirx

from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.network.rewriting import rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.loops import PARALLEL, SERIAL, block, load, loop, scratch, store
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel

TAKE = "tvm_stretch_take"
"""Function of the OpenCL code that returns an integer and increments it."""

TAKE_PRELUDE = f"""\
static long {TAKE}(__global long* next) {{
  return atomic_inc((volatile __global int*)next);
}}
"""

_HEAD = 2
"""Numbers before the first area."""


@tvm.transform.module_pass(opt_level=0, name="ScheduleAreas")
class ScheduleAreas:
    """See the module docstring."""

    def __init__(self, machine: VectorMachine) -> None:
        self.workers = machine.threads
        self.machine = replace(machine, threads=1)
        self.cache_key = f"ScheduleAreas {machine}"

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, self._scheduled)

    def _scheduled(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        nest = schedule_kernel(func, self.machine)
        if RECTANGLE not in (func.attrs or {}):
            return nest
        areas, own = nest.params[-1], scratch("area", 4, dtype="int64")
        count = (int(areas.shape[0]) - _HEAD) // 4
        body = rewrite(nest.body, (tirx.Var, lambda var: own if var.same_as(areas) else var))
        body = rewrite(body, (tirx.For, _in_order))

        def worker() -> tirx.Stmt:
            area = tirx.Var("number", "int64")
            first = tirx.address_of(load(areas, 0))
            corners = [store(own, load(areas, _HEAD + 4 * area + i), i) for i in range(4)]
            taken = tirx.Bind(area, tirx.call_extern("int64", TAKE, first))
            work = tirx.IfThenElse(area < load(areas, 1), block(*corners, body), None)
            return block(taken, work)

        def work(_worker: object) -> tirx.Stmt:
            return block(tirx.AllocBuffer(own), loop(count, lambda _: worker(), "turn"))

        return nest.with_body(loop(self.workers, work, "worker", PARALLEL))


def _in_order(nested: tirx.For) -> tirx.For:
    if nested.kind != PARALLEL:
        return nested
    return tirx.For(nested.loop_var, nested.min, nested.extent, SERIAL, nested.body)
