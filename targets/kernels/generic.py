"""A schedule for every PrimFunc without a template: vectorised where lanes divide, parallel outside.

    T_relu: for i, j: B[i, j] = max(A[i, j], 0)     ->     for i (parallel), j_outer, T.vectorized(8)
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import Schedule

from .machine import VectorMachine


def schedule_generic(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """Schedule ``func``; what no step fits stays as it is."""
    sch = Schedule(tvm.IRModule({"main": func}))
    for block in sch.get_child_blocks(sch.get_sblock("root"))[:-1]:
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            continue
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        try:
            _vectorise(sch, block, machine)
        except s_tir.ScheduleError:
            continue
    return sch.mod["main"]


def _vectorise(sch: Schedule, block: s_tir.schedule.SBlockRV, machine: VectorMachine) -> None:
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    spatial = [
        loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar
    ]
    if not spatial or len(loops) != len(kinds):
        return
    last = spatial[-1]
    if int(sch.get(last).extent) % machine.lanes:
        return
    outer, lane = sch.split(last, [None, machine.lanes])
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    sch.reorder(*spatial[:-1], outer, *reduced, lane)
    if reduced:
        start = sch.decompose_reduction(block, reduced[0])
        sch.vectorize(sch.get_loops(start)[-1])
    sch.vectorize(lane)
    if machine.threads > 1:
        sch.parallel(sch.fuse(*spatial[:-1], outer))
