"""Whatever has no template on a GPU: TVM's own rules, and the plain one where these do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir import dlight
from tvm.s_tir.dlight import adreno
from tvm.target import Target

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.kernels.flat import is_one

from .in_order import is_in_order, write_in_order
from .machine import GpuMachine

_REDUCE = 2  # the kind of an axis that is summed over


def schedule_items(func: tirx.PrimFunc, gpu: GpuMachine) -> tirx.PrimFunc:
    """Anything else: TVM's rules, Adreno's own among them; the plain one where others do not fit.

    To be called within the target that the kernel is for.
    """
    if is_in_order(func):
        return write_in_order(func, min(gpu.wave, gpu.max_group_items))
    current = Target.current(allow_none=True)
    on_adreno = current is not None and "adreno" in current.keys
    threads = min(gpu.plain_items, gpu.max_group_items)
    target = Target(
        {
            "kind": "opencl",
            "max_num_threads": threads,
            "max_threads_per_block": threads,
            "max_shared_memory_per_block": gpu.local_bytes,
            **({"device": "adreno"} if on_adreno else {}),
        }
    )
    plain = dlight.gpu.Fallback()
    rules = [dlight.gpu.Reduction(), dlight.gpu.GeneralReduction(), plain]
    if on_adreno:
        rules = [adreno.Conv2d(), adreno.LayoutTransform(), adreno.Pool2D(), *rules]
    func = func.with_body(rewrite(func.body, (s_tir.SBlock, _without_sum_of_one)))
    with target:
        scheduled = _by_rules(func, rules)
        if scheduled is None or not _fits(scheduled, gpu):
            scheduled = dlight.ApplyDefaultSchedule(plain)(tvm.IRModule({"main": func}))["main"]
    if _has_groups_inside(scheduled):
        return scheduled.with_body(rewrite(scheduled.body, (tirx.For, _without_one_item)))
    return scheduled


def _without_one_item(loop: tirx.For) -> tirx.Stmt:
    """What a loop of one item does: code outside of work-items runs in one of them."""
    return loop.body if loop.thread_binding is not None and is_one(loop.extent) else loop


def _has_groups_inside(func: tirx.PrimFunc) -> bool:
    """Whether a serial loop runs work-groups, as the plain rule writes sums of whole tensors."""
    serial = [loop for loop in nodes_of(func.body, tirx.For) if loop.thread_binding is None]
    inner = [loop.body.thread_binding for loop in serial if isinstance(loop.body, tirx.For)]
    return any(bound is not None and bound.thread_tag.startswith("blockIdx") for bound in inner)


def _without_sum_of_one(where: s_tir.SBlock) -> s_tir.SBlock:
    """A reduction over one element is none.

    TVM inlines what follows into it, and then applies that twice: to the start and to the result.
    """
    reduced = [axis for axis in where.iter_vars if axis.iter_type == _REDUCE]
    body, start = where.body, where.init
    if start is None or not isinstance(body, tirx.BufferStore) or len(where.writes) != 1:
        return where
    if not all(is_one(axis.dom.extent) for axis in reduced):
        return where

    def first(load: TensorLoad) -> Expr:
        return start.value if load.source.same_as(body.buffer) else load

    value = rewrite(body.value, (TensorLoad, first))
    return s_tir.SBlock(
        [tirx.IterVar(axis.dom, axis.var, 0, axis.thread_tag) for axis in where.iter_vars],
        where.reads,
        where.writes,
        where.name_hint,
        tirx.BufferStore(body.buffer, value, body.indices),
        None,
        where.alloc_buffers,
        where.match_buffers,
        where.annotations,
    )


def _by_rules(func: tirx.PrimFunc, rules: Sequence[Any]) -> tirx.PrimFunc | None:
    """What the rules make of a kernel; None if TVM cannot add up what a group's items found.

    So it is for a maximum that lets infinities through; some rules do not ask before. Sums of a
    whole tensor, whose result has no axes, break a rule of TVM's.
    """
    t = s_tir.transform
    try:
        scheduled = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": func}))
        bound = tirx.transform.BindTarget(Target.current())(scheduled)
        t.LowerCrossThreadReduction()(t.CanonicalizeLoop()(bound))
    except (ValueError, tvm.error.InternalError):
        return None
    return scheduled["main"]


def _fits(func: tirx.PrimFunc, gpu: GpuMachine) -> bool:
    """Whether groups and their shared memory stay within what the device has."""
    items: dict[str, int] = {}
    for loop in nodes_of(func.body, tirx.For):
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if tag.startswith("threadIdx"):
            items[tag] = max(items.get(tag, 1), int(loop.extent))
    shared = [
        prod(map(int, buffer.shape)) * tvm.DataType(str(buffer.dtype)).itemsize
        for block in nodes_of(func.body, s_tir.SBlock)
        for buffer in block.alloc_buffers
        if buffer.scope() == "shared"
    ]
    group = prod(items.values())
    exchanged = group * 8 if group > 1 else 0  # what items of a group add up together
    return group <= gpu.max_group_items and sum(shared) + exchanged <= gpu.local_bytes
