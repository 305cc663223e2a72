"""Kernels for GPUs: every work-item computes one small tile, alone.

    for item in work-items:                          # neighbours in a row are neighbours here
      acc[pixels][lanes] = 0                         # pixels of one row, one block of channels
      for ic_block, ky, kx:
        d[pixels][lanes] = data, or 0 outside the image
        acc += d * weight                            # all items of a group read the same weights
      out = epilogue(acc)

The configurations, packed weights and epilogues are those of the CPU's templates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.s_tir import dlight
from tvm.s_tir.dlight import adreno
from tvm.target import Target

from tvm_stretch.rewriting import rewrite

from .accumulators import Accumulators
from .conv import ConvConfig
from .fused import Epilogue
from .loops import UNROLLED, as_type, block, const, lanes, load, loop, scratch, store, within
from .machine import VectorMachine
from .nan import maximum
from .window import WindowConfig, least, window_count

_THREAD_BINDING = tirx.ForKind.THREAD_BINDING
_REDUCE = 2  # the kind of an axis that is summed over


def spread(
    extents: Sequence[int], group: int, body: Callable[[Sequence[Expr]], tirx.Stmt]
) -> tirx.Stmt:
    """``body(indices)`` for every point of ``extents``, one work-item each, last index fastest."""
    total = prod(extents)
    group = min(group, total)
    groups = -(-total // group)
    number, item = tirx.Var("group", "int64"), tirx.Var("item", "int64")
    place: Expr = number * group + item
    flat, indices = place, []
    for extent in reversed(extents):
        indices.append(place % extent)
        place = place // extent
    statement = body(indices[::-1])
    if total % group:
        statement = tirx.IfThenElse(flat < total, statement, None)
    inner = _bound(item, group, "threadIdx.x", statement)
    return _bound(number, groups, "blockIdx.x", inner)


def _bound(var: tirx.Var, extent: int, tag: str, body: tirx.Stmt) -> tirx.Stmt:
    domain = tvm.ir.Range(const(0), const(extent))
    axis = tirx.IterVar(domain, tirx.Var(var.name, "int64"), 1, tag)
    return tirx.For(var, const(0), const(extent), _THREAD_BINDING, body, axis)


def write_conv_items(
    cfg: ConvConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """A direct convolution."""
    data, weight = operands[:2]
    height, width = cfg.out_size
    tiles = -(-width // cfg.pixels)

    def item(indices: Sequence[Expr]) -> tirx.Stmt:
        n, g, y, tile = indices
        first_column = tile * cfg.pixels
        sums = str(epilogue.anchor.dtype)
        acc = Accumulators(cfg.pixels, cfg.oc_blocks, cfg.lanes, scope="local", dtype=sums)
        values = scratch("d", cfg.pixels * cfg.data_block, scope="local", dtype=sums)
        first_block = const(cfg.first_block(g * cfg.oc_blocks))

        def reduce(ic: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
            # A last merged group that is partly empty meets zero weights; it must not read past.
            channel = first_block + ic
            if cfg.groups > cfg.merged_groups and cfg.in_blocks % cfg.reduce_blocks:
                channel = tirx.min(channel, const(cfg.in_blocks - 1))
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]

            def read(p: int) -> tirx.Stmt:
                column = (first_column + p) * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
                inside = _inside(cfg, row, column, width % cfg.pixels != 0)

                def value(v: Expr) -> Expr:
                    place = (n, channel, row, column)
                    pixel = load(data, *place, v) if cfg.data_block > 1 else load(data, *place)
                    pixel = as_type(pixel, sums)
                    zero = tirx.const(0, sums)
                    return pixel if inside is None else tirx.if_then_else(inside, pixel, zero)

                return lanes(
                    cfg.data_block, lambda v: store(values, value(v), v + p * cfg.data_block)
                )

            def multiply(ii: Expr) -> tirx.Stmt:
                return block(
                    acc.add(
                        lambda p, o, v: (
                            load(values, ii + p * cfg.data_block)
                            * as_type(load(weight, g, ic, ky, kx, ii, v + o * cfg.lanes), sums)
                        )
                    )
                )

            return block(
                [
                    *(read(p) for p in range(cfg.pixels)),
                    loop(cfg.data_block, multiply, "ii", UNROLLED),
                ]
            )

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            place = (n, g * cfg.oc_blocks + o, y, first_column + p, v)
            return epilogue.store(place, value)

        def finish_pixel(p: int) -> tirx.Stmt:
            stores = block(acc.each(finish, [p]))
            if width % cfg.pixels == 0:
                return stores
            return tirx.IfThenElse(first_column + p < width, stores, None)

        nest = loop(
            cfg.reduce_blocks,
            lambda ic: loop(
                cfg.kernel[0],
                lambda ky: loop(cfg.kernel[1], lambda kx: reduce(ic, ky, kx), "kx"),
                "ky",
            ),
            "ic",
        )
        return within(
            [*acc.buffers, values],
            [
                *acc.start(),
                nest,
                *(finish_pixel(p) for p in range(cfg.pixels)),
            ],
        )

    extents = (cfg.batch, cfg.out_groups, height, tiles)
    return spread(extents, machine.group_items, item)


def _inside(
    cfg: ConvConfig | WindowConfig, row: Expr, column: Expr, may_overhang: bool = False
) -> Expr | None:
    """Whether a pixel lies in the image; None where every pixel does."""
    top, left, bottom, right = cfg.padding
    tests = []
    if top or bottom or _reaches_past(cfg, 0):
        tests += [row >= 0, row < cfg.in_size[0]]
    if left or right or may_overhang or _reaches_past(cfg, 1):
        tests += [column >= 0, column < cfg.in_size[1]]
    return tirx.all(*tests) if tests else None


def _reaches_past(cfg: ConvConfig | WindowConfig, axis: int) -> bool:
    """Whether the last window ends beyond the image (pooling that rounds its size up)."""
    span = (cfg.kernel[axis] - 1) * cfg.dilation[axis] + 1
    last = (cfg.out_size[axis] - 1) * cfg.stride[axis] - cfg.padding[axis] + span
    return last > cfg.in_size[axis]


def write_window_items(
    cfg: WindowConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """A depthwise convolution or pooling; one pixel of one channel block for each item."""
    data, dtype = operands[0], str(operands[0].dtype)
    height, width = cfg.out_size

    def item(indices: Sequence[Expr]) -> tirx.Stmt:
        n, b, y, x = indices
        acc = scratch("acc", cfg.lanes, scope="local", dtype=dtype)

        def tap(ky: Expr, kx: Expr) -> tirx.Stmt:
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            column = x * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]

            def add(v: Expr) -> tirx.Stmt:
                pixel = load(data, n, b, row, column, v)
                if cfg.kind == "max":
                    return store(acc, maximum(load(acc, v), pixel), v)
                if cfg.kind == "depthwise":
                    pixel = pixel * load(operands[1], b, ky, kx, v)
                return store(acc, load(acc, v) + pixel, v)

            statement = lanes(cfg.lanes, add)
            inside = _inside(cfg, row, column)
            return statement if inside is None else tirx.IfThenElse(inside, statement, None)

        def result(v: Expr) -> Expr:
            total = load(acc, v)
            return total / window_count(cfg, y, x, dtype) if cfg.kind == "avg" else total

        start = least(dtype) if cfg.kind == "max" else tirx.const(0, dtype)
        return within(
            [acc],
            [
                lanes(cfg.lanes, lambda v: store(acc, start, v)),
                loop(
                    cfg.kernel[0],
                    lambda ky: loop(cfg.kernel[1], lambda kx: tap(ky, kx), "kx"),
                    "ky",
                ),
                lanes(cfg.lanes, lambda v: epilogue.store((n, b, y, x, v), result(v))),
            ],
        )

    return spread((cfg.batch, cfg.blocks, height, width), machine.group_items, item)


def schedule_items(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.PrimFunc:
    """Anything else: TVM's rules, Adreno's own among them; the plain one where others do not fit.

    To be called within the target that the kernel is for.
    """
    current = Target.current(allow_none=True)
    on_adreno = current is not None and "adreno" in current.keys
    threads = machine.group_items
    target = Target(
        {
            "kind": "opencl",
            "max_num_threads": threads,
            "max_threads_per_block": threads,
            "max_shared_memory_per_block": machine.local_bytes,
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
        if scheduled is None or not _fits(scheduled, machine):
            scheduled = dlight.ApplyDefaultSchedule(plain)(tvm.IRModule({"main": func}))["main"]
    return scheduled


def _without_sum_of_one(where: s_tir.SBlock) -> s_tir.SBlock:
    """A reduction over one element is none.

    TVM inlines what follows into it, and then applies that twice: to the start and to the result.
    """
    reduced = [axis for axis in where.iter_vars if axis.iter_type == _REDUCE]
    body, start = where.body, where.init
    if start is None or not isinstance(body, tirx.BufferStore) or len(where.writes) != 1:
        return where
    if any(int(axis.dom.extent) != 1 for axis in reduced):
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


def _fits(func: tirx.PrimFunc, machine: VectorMachine) -> bool:
    """Whether groups and their shared memory stay within what the device has."""
    items: dict[str, int] = {}
    shared: list[int] = []

    def bound(loop: tirx.For) -> None:
        tag = str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""
        if tag.startswith("threadIdx"):
            items[tag] = max(items.get(tag, 1), int(loop.extent))

    def allocated(where: s_tir.SBlock) -> None:
        for buffer in where.alloc_buffers:
            if buffer.scope() == "shared":
                size = tvm.DataType(str(buffer.dtype)).itemsize
                shared.append(prod(int(extent) for extent in buffer.shape) * size)

    tvm_ffi.structural_walk(func.body, [(tirx.For, bound), (s_tir.SBlock, allocated)])
    group = prod(items.values())
    exchanged = group * 8 if group > 1 else 0  # what items of a group add up together
    return group <= machine.max_group_items and sum(shared) + exchanged <= machine.local_bytes
