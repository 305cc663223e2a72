"""Kernels that compute areas of their output beside the CPU, for streams of frames.

    conv2d(data, weight, out, [top, ..])
->  conv2d(data, weight, out, [taken, last, count, top, ..]):
      for worker in parallel(4):
        for _ in range(AREAS):
          if taken++ < count: conv2d of area `last--`

The CPU takes areas from the other end of the list (native/shared_areas.h), so both are busy until
none is left, however fast they are. The loop nest of an area is the CPU's, so numbers are equal bit
by bit. A worker computes whole areas: the nest has no parallel loops of its own.
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
"""Function of the OpenCL code that changes an integer by a step and returns what it was."""

TAKE_PRELUDE = f"""\
static long {TAKE}(__global long* number, int step) {{
  return atomic_add((volatile __global int*)number, step);
}}
"""

_HEAD = 3
"""Numbers before the first area."""


@tvm.transform.module_pass(opt_level=0, name="ScheduleAreas")
class ScheduleAreas:
    """See the module docstring."""

    def __init__(self, machine: VectorMachine) -> None:
        self.workers = machine.threads
        self.machine = replace(machine, threads=1)
        self.cache_key = f"ScheduleAreas {machine}"

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Each kernel with its loop nest; those with areas take them."""
        return rewrite_kernels(mod, self._scheduled)

    def _scheduled(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        nest = schedule_kernel(func, self.machine)
        if RECTANGLE not in (func.attrs or {}):
            return nest
        areas, own = nest.params[-1], scratch("corners", 4, dtype="int64")
        count = (int(areas.shape[0]) - _HEAD) // 4
        body = rewrite(nest.body, (tirx.Var, lambda var: own if var.same_as(areas) else var))
        body = rewrite(body, (tirx.For, _in_order))

        def worker() -> tirx.Stmt:
            before, area = tirx.Var("before", "int64"), tirx.Var("area", "int64")
            corners = [store(own, load(areas, _HEAD + 4 * area + i), i) for i in range(4)]
            work = block(tirx.Bind(area, taken(1, -1)), *corners, body)
            is_left = before < load(areas, 2)
            return block(tirx.Bind(before, taken(0, 1)), tirx.IfThenElse(is_left, work, None))

        def taken(place: int, change: int) -> tirx.Expr:
            number = tirx.address_of(load(areas, place))
            return tirx.call_extern("int64", TAKE, number, tirx.const(change, "int32"))

        def work(_worker: object) -> tirx.Stmt:
            return block(tirx.AllocBuffer(own), loop(count, lambda _: worker(), "turn"))

        return nest.with_body(loop(self.workers, work, "worker", PARALLEL))


def _in_order(nested: tirx.For) -> tirx.For:
    if nested.kind != PARALLEL:
        return nested
    return tirx.For(nested.loop_var, nested.min, nested.extent, SERIAL, nested.body)
