"""Words for kernels of work-groups: who computes what, barriers, vectors of four numbers.

    launch(groups=6, items=64, lambda group, item: ...)     # one kernel in the driver's queue
    quads("acc", 8, "float32")                              # 8 x float4, in registers

A *quad* is four neighbouring channels: what an OpenCL vector holds and a GPU loads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import Epilogue
from tvm_stretch.targets.kernels.loops import Index, const, lanes, load, scratch, store

QUAD = 4


_THREAD_BINDING = tirx.ForKind.THREAD_BINDING


def launch(groups: int, items: int, body: Callable[[Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
    """``body(group, item)`` on ``groups`` work-groups of ``items`` work-items."""
    group, item = tirx.Var("group", "int64"), tirx.Var("item", "int64")
    inner = _bound(item, items, "threadIdx.x", body(group, item))
    return _bound(group, groups, "blockIdx.x", inner)


def _bound(var: tirx.Var, extent: int, tag: str, body: tirx.Stmt) -> tirx.Stmt:
    domain = tvm.ir.Range(const(0), const(extent))
    axis = tirx.IterVar(domain, tirx.Var(var.name, "int64"), 1, tag)
    return tirx.For(var, const(0), const(extent), _THREAD_BINDING, body, axis)


def barrier() -> tirx.Stmt:
    """All work-items of a group have come so far, and see what the others stored."""
    call = tirx.call_intrin("void", "tirx.tvm_storage_sync", tvm.ir.StringImm("shared"))
    return tirx.Evaluate(call)


def quads(name: str, *shape: int, dtype: str = "float32", scope: str = "local") -> tirx.Buffer:
    """Vectors of four numbers: in registers, or in what a group shares (``scope="shared"``)."""
    return scratch(name, *shape, scope=scope, dtype=f"{dtype}x{QUAD}")


def load_quad(buffer: tirx.Buffer, *indices: Index) -> Expr:
    """Four neighbours, from ``indices`` on."""
    *outer, first = indices
    return load(buffer, *outer, tirx.Ramp(const(first), const(1), QUAD))


def load_words(buffer: tirx.Buffer, *indices: Index) -> Expr:
    """16 bytes from ``indices`` on, as four numbers of 32 bits; they start where a quad may."""
    address = tirx.address_of(tirx.BufferLoad(buffer, [const(index) for index in indices]))
    return tirx.call_pure_extern(f"int32x{QUAD}", f"*(__global const int{QUAD}*)", address)


def store_quad(buffer: tirx.Buffer, value: Expr, *indices: Index) -> tirx.Stmt:
    """Four numbers as neighbours, from ``indices`` on."""
    *outer, first = indices
    return store(buffer, value, *outer, tirx.Ramp(const(first), const(1), QUAD))


def splat(value: Expr) -> Expr:
    """The same number four times."""
    return tirx.Broadcast(value, QUAD)


def element(quad: Expr, number: int) -> Expr:
    """One of four numbers."""
    return tirx.Shuffle([quad], [number])


def zeros(dtype: str) -> Expr:
    """Four zeros."""
    return splat(tirx.const(0, dtype))


def made_of(values: Sequence[Expr], dtype: str) -> Expr:
    """Four numbers as a vector."""
    name = {"float32": "float", "float16": "half"}[dtype]
    return tirx.call_pure_extern(f"{dtype}x{QUAD}", f"({name}{QUAD})", *values)


def when(condition: Expr | None, body: tirx.Stmt) -> tirx.Stmt:
    """``body`` where ``condition`` holds, everywhere if there is none."""
    return body if condition is None else tirx.IfThenElse(condition, body, None)


def chosen(condition: Expr | None, value: Expr, other: Expr) -> Expr:
    """``value`` is not evaluated where ``condition`` does not hold."""
    return value if condition is None else tirx.if_then_else(condition, value, other)


def every(*conditions: Expr | None) -> Expr | None:
    """All conditions that there are."""
    real = [condition for condition in conditions if condition is not None]
    return tirx.all(*real) if real else None


def shares(
    total: int, items: int, item: Expr, body: Callable[[int, Expr], tirx.Stmt]
) -> list[tirx.Stmt]:
    """``body(turn, number)`` for ``total`` numbers, which the items of a group take in turns."""
    parts = []
    for turn in range(-(-total // items)):
        number = item + turn * items
        fits = (turn + 1) * items <= total
        parts.append(when(None if fits else number < total, body(turn, number)))
    return parts


def join_items(
    number: tirx.Buffer,  # each item's own number, then that of all
    shared: tirx.Buffer,  # local memory of one number for each item; their count is a power of two
    item: Expr,
    join: Callable[[Expr, Expr], Expr],
) -> list[tirx.Stmt]:
    """All items get what ``join`` makes of their numbers: halved again and again."""
    steps, half = [store(shared, load(number, 0), item), barrier()], int(shared.shape[0]) // 2
    while half:
        both = join(load(shared, item), load(shared, item + half))
        steps += [when(item < half, store(shared, both, item)), barrier()]
        half //= 2
    return [*steps, store(number, load(shared, 0), 0), barrier()]


def finish_quad(
    epilogue: Epilogue, place: Sequence[Expr], quad: Expr, name: str
) -> list[tirx.Stmt]:
    """Apply the epilogue to four neighbours in the last axis, and store them."""
    dtype = str(epilogue.anchor.dtype)
    four = scratch(name, QUAD, scope="local", dtype=dtype)
    *outer, first = place
    return [
        tirx.AllocBuffer(four),
        tirx.BufferStore(four, quad, [tirx.Ramp(const(0), const(1), QUAD)]),
        lanes(QUAD, lambda v: epilogue.store((*outer, first + v), load(four, v))),
    ]
