"""Which elementwise steps of a fused kernel become part of the steps that read them.

a = x * w + b; y = a * sigmoid(a)          ->  one step, although it computes a twice
g = gelu(x); y = g * concat(i, c)          ->  two steps: g * joined in vectors, after joined
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.s_tir.schedule import ScheduleError

from tvm_stretch.network.expressions import nodes_of

_CHOICE = "prim.if_then_else"
FENCE = "tirx.call_llvm_pure_intrin"
"""Around a product that is rounded before a sum, LLVM makes no vectors."""
CHEAP = {_CHOICE, "prim.likely", FENCE}


def inline(sch: s_tir.Schedule) -> None:
    """Inline elementwise producers if that repeats no work and keeps vector loops."""
    for name in sorted(block_names(sch), key=lambda n: chooses(sch.get(sch.get_sblock(n)))):
        block = sch.get_sblock(name)
        producer = sch.get(block)
        consumers = [sch.get(c) for c in sch.get_consumers(block)]
        if consumers and is_spatial(producer) and _is_worth_inlining(producer, consumers):
            try:
                sch.compute_inline(block)
            except ScheduleError:
                continue


def _is_worth_inlining(producer: Any, consumers: Sequence[Any]) -> bool:
    size = points_of(producer)
    calls = intrinsics_of(producer.body)
    costly = bool(calls - CHEAP)
    again = len(consumers) > 1 or any(points_of(c) > size for c in consumers)
    if costly and again:
        return False
    if chooses(producer) and any(intrinsics_of(c.body) - CHEAP for c in consumers):
        return False  # TVM makes no vectors of chosen values
    into_reduction = [c for c in consumers if not is_spatial(c)]
    return not (into_reduction and (again or calls))


def block_names(sch: s_tir.Schedule) -> list[str]:
    """The names of the steps, in order."""
    return [sch.get(b).name_hint for b in sch.get_child_blocks(sch.get_sblock("root"))]


def chooses(block: Any) -> bool:
    """Whether places decide what a block reads, as in a concatenation."""
    return _CHOICE in intrinsics_of(block.body)


def is_spatial(block: Any) -> bool:
    """Whether a block reduces no axis."""
    return all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)


def points_of(block: Any) -> int:
    """How many times the block runs."""
    return prod(int(axis.dom.extent) for axis in block.iter_vars)


def intrinsics_of(node: Any) -> set[str]:
    """Names of the intrinsics that ``node`` calls; ``let`` for those that were expanded."""
    return {
        "let" if isinstance(inner, tirx.Let) else getattr(inner.op, "name", "?")
        for inner in nodes_of(node, Call, tirx.Let)
    }
