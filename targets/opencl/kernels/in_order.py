"""Kernels whose steps need each other, on a GPU: running sums, TopK, factors, scatters, LSTM.

for row in range(64):                  for row in parallel(64):        # work-items
  for step in range(100):       ->       kept = alloc(16)
    y[row, step] = ..                    for step in range(100):
                                           y[row, step] = ..

Iterations that are independent of each other become work-items, which take all other steps in
order. Each such kernel is right on every GPU, but slow where few iterations are independent. A
temporary that only one loop nest uses belongs to its work-item, so items cannot disturb each
other. Loop nests are launches of their own, so each sees what all items wrote before.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_stretch.network.attributes import WRITES_PLACES
from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite, without_scopes
from tvm_stretch.targets.kernels.loops import block, const, unravelled

from .groups import launch, when

_MOST_TURNS = 2**31
_MOST_OWN = 2**24
"""The most numbers in temporaries of all work-items."""


def is_in_order(func: tirx.PrimFunc) -> bool:
    """Whether a block has an opaque axis or loops inside, which TVM's rules would leave serial."""
    inner = [one for one in nodes_of(func.body, s_tir.SBlock) if one.name_hint != "root"]
    return any(
        any(axis.iter_type == tirx.IterVar.Opaque for axis in one.iter_vars)
        or any(loop.kind != tirx.ForKind.VECTORIZED for loop in nodes_of(one.body, tirx.For))
        for one in inner
    )


def write_in_order(func: tirx.PrimFunc, group: int) -> tirx.PrimFunc:
    """The kernel as launches, of groups of `group` work-items at most."""
    realized = without_scopes(func.body)
    root, places = realized.block, WRITES_PLACES in (func.attrs or {})
    nests = _parts(root.body)
    used = [[*map(_buffer, nodes_of(nest, tirx.BufferStore, TensorLoad))] for nest in nests]
    shared: list[tirx.Buffer] = []
    own: list[list[tirx.Buffer]] = [[] for _ in nests]
    for buffer in root.alloc_buffers:
        users = [place for place, some in enumerate(used) if any(map(buffer.same_as, some))]
        (own[users[0]] if len(users) == 1 else shared).append(buffer)
    launches = [
        loop
        for nest, temporaries in zip(nests, own, strict=True)
        for loop in _spread(nest, temporaries, places)
    ]
    body = block(*(_launched(loop, group) for loop in launches))
    changed = changed_block(root, body=body, alloc_buffers=shared)
    return func.with_body(s_tir.SBlockRealize(realized.iter_values, realized.predicate, changed))


def turns(func: tirx.PrimFunc) -> int:
    """The most stores that work-items make one after the other."""
    return min(_turns(write_in_order(func, 1).body, Analyzer()), _MOST_TURNS)


def _turns(body: tirx.Stmt, analyzer: Analyzer) -> int:
    if isinstance(body, s_tir.SBlockRealize):
        return _turns(body.block.body, analyzer)
    if isinstance(body, tirx.IfThenElse):
        cases = [body.then_case, *([] if body.else_case is None else [body.else_case])]
        return max(_turns(case, analyzer) for case in cases)
    if isinstance(body, tirx.For):
        analyzer.bind(body.loop_var, ir.Range.from_min_extent(body.min, body.extent))
        most = max(1, int(analyzer.const_int_bound(body.extent).max_value))
        inner = _turns(body.body, analyzer)
        return inner if body.thread_binding is not None else inner * min(most, _MOST_TURNS)
    if isinstance(body, tirx.SeqStmt):
        return sum(_turns(part, analyzer) for part in body.seq)
    return int(isinstance(body, tirx.BufferStore))


def _parts(body: tirx.Stmt) -> list[tirx.Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _buffer(access: tirx.BufferStore | TensorLoad) -> tirx.Buffer:
    return access.buffer if isinstance(access, tirx.BufferStore) else access.source


def _spread(nest: tirx.Stmt, own: list[tirx.Buffer], places: bool) -> list[tirx.For]:
    """A loop nest as parallel loops, whose iterations have temporaries of their own."""
    loops: list[tirx.For] = []
    body = nest
    while isinstance(body, tirx.For):
        loops.append(body)
        body = body.body
    temporaries = [tirx.AllocBuffer(buffer) for buffer in own]
    alone = [_parallel(1, lambda _: block(*temporaries, nest))]
    if not isinstance(body, s_tir.SBlockRealize):
        return alone
    hidden = any(one.alloc_buffers or one.match_buffers for one in nodes_of(body, s_tir.SBlock))
    if not loops and not body.block.iter_vars and not own and not hidden:
        parts = _parts(body.block.body)
        written = all(isinstance(part, tirx.For) for part in parts)
        return [_as_written(part, places) for part in parts] if written else alone
    free = [loop for loop in loops if _is_free(loop, body)]
    items = prod(int(loop.extent) for loop in free)
    numbers = sum(prod(map(int, buffer.shape)) for buffer in own)
    if hidden or items * numbers > _MOST_OWN:
        return alone

    def work(item: Expr) -> tirx.Stmt:
        at = unravelled(item, [int(loop.extent) for loop in free])
        values = {loop.loop_var: loop.min + i for loop, i in zip(free, at, strict=True)}
        inner: tirx.Stmt = body
        for loop in reversed([loop for loop in loops if loop.loop_var not in values]):
            inner = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, inner)
        inner = rewrite(inner, (tirx.Var, lambda var: values.get(var, var)))
        return block(*temporaries, inner)

    return [_parallel(items, work)]


def _parallel(items: int, work: Callable[[Expr], tirx.Stmt]) -> tirx.For:
    item = tirx.Var("item", "int64")
    return tirx.For(item, const(0), const(items), tirx.ForKind.PARALLEL, work(item))


def _launched(loop: tirx.For, group: int) -> tirx.Stmt:
    """A parallel loop as work-groups; items of the last one that are too many do nothing."""
    extent = int(loop.extent)
    items = min(group, extent)

    def work(first: Expr, item: Expr) -> tirx.Stmt:
        place = (first * items + item).astype(str(loop.loop_var.ty.dtype)) + loop.min
        body = rewrite(loop.body, (tirx.Var, lambda v: place if v.same_as(loop.loop_var) else v))
        return when(place < loop.min + extent if extent % items else None, body)

    return launch(-(-extent // items), items, work)


def _is_free(loop: tirx.For, realized: s_tir.SBlockRealize) -> bool:
    """Whether a loop is a spatial axis of the block, and nothing else."""
    axes = [
        axis.iter_type
        for axis, value in zip(realized.block.iter_vars, realized.iter_values, strict=True)
        if any(map(loop.loop_var.same_as, nodes_of(value, tirx.Var)))
    ]
    direct = any(map(loop.loop_var.same_as, realized.iter_values))
    return direct and axes == [tirx.IterVar.DataPar]


def _as_written(loop: tirx.For, places: bool) -> tirx.For:
    """A loop nest of TVM's own, whose parallel loops are marked.

    A copy can be, whatever the order. Rows that are written at places can be split between items:
    each takes a column of all rows, in order.
    """
    inner = loop.body
    if loop.kind == tirx.ForKind.PARALLEL:
        return loop
    if _is_copy(inner):
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.PARALLEL, inner)
    if places and isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.PARALLEL:
        rows = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inner.body)
        return tirx.For(inner.loop_var, inner.min, inner.extent, inner.kind, rows)
    return _parallel(1, lambda _: loop)


def _is_copy(body: tirx.Stmt) -> bool:
    """Whether a statement copies an element to its own place in another tensor."""
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, TensorLoad):
        return False
    return bool(tvm_ffi.structural_equal(body.indices, body.value.indices))
