"""Stores of 8-bit results on HVX: four vectors of int32 become one of bytes.

    for lane in vectorized(32): out[.., x, lane] = uint8(e0)        packed0[lane] = e0  ..
    for lane in vectorized(32): out[.., x + 1, lane] = uint8(e1) -> out[.., x, 0:128] = pack(
    ..                                                                 packed0, .., packed3)

LLVM stores a vector of 32 bytes one byte at a time. What four neighbouring pixels become fills a
vector; of fewer, a vector is made too and written in words of four bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.sym import Analyzer

from tvm_stretch.rewriting import rewrite

from .loops import block, const, load, store, vectors, within

_LANES = 32
_PIXELS = 4
_KIND = f"int32x{_LANES}"


def pack_stores(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with such stores packed; itself if it has none."""
    body = rewrite(func.body, (tirx.SeqStmt, _packed))
    return func if body.same_as(func.body) else func.with_body(body)


@dataclass(frozen=True)
class _Store:
    """A vectorized loop that stores bytes: of 32 lanes, next to each other."""

    loop: tirx.For
    where: Expr

    @property
    def into(self) -> tirx.BufferStore:
        return self.loop.body


def _store_of(statement: tirx.Stmt) -> _Store | None:
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.VECTORIZED:
        return None
    into = statement.body
    if int(statement.extent) != _LANES or not isinstance(into, tirx.BufferStore):
        return None
    is_byte = str(into.buffer.dtype) in ("uint8", "int8") and isinstance(into.value, tirx.Cast)
    if not is_byte or not into.indices[-1].same_as(statement.loop_var):
        return None
    if str(into.value.value.ty.dtype) != "int32" or int(into.buffer.shape[-1]) != _LANES:
        return None
    place: Expr = const(0)
    for index, extent in zip(into.indices[:-1], into.buffer.shape[:-1], strict=True):
        place = place * extent + index
    return _Store(statement, place)


def _packed(sequence: tirx.SeqStmt) -> tirx.Stmt:
    """The statements with runs of such stores replaced; each run is one after the other anyway."""
    done: list[tirx.Stmt] = []
    run: list[_Store] = []
    for statement in sequence.seq:
        found = _store_of(statement)
        if found is not None and (not run or found.into.buffer.same_as(run[0].into.buffer)):
            run.append(found)
            continue
        done += _pack_run(run)
        run = [] if found is None else [found]
        if found is None:
            done.append(statement)
    done += _pack_run(run)
    return block(done) if any(_store_of(s) is not None for s in sequence.seq) else sequence


def _pack_run(run: Sequence[_Store]) -> list[tirx.Stmt]:
    analyzer = Analyzer()
    left, made = list(run), []
    while left:
        group = [left.pop(0)]
        while len(group) < _PIXELS:
            step = [analyzer.simplify(s.where - group[-1].where) for s in left]
            after = [i for i, d in enumerate(step) if isinstance(d, tirx.IntImm) and int(d) == 1]
            if not after:
                break
            group.append(left.pop(after[0]))
        made.append(_pack(group))
    return made


def _pack(group: Sequence[_Store]) -> tirx.Stmt:
    """One to four neighbouring pixels."""
    sums = vectors("packed", len(group), _LANES, "global", "int32")
    ramp = tirx.Ramp(const(0), const(1), _LANES)
    kept = [
        tirx.For(
            one.loop.loop_var,
            one.loop.min,
            one.loop.extent,
            one.loop.kind,
            store(buffer, one.into.value.value, one.loop.loop_var),
        )
        for one, buffer in zip(group, sums, strict=True)
    ]
    values = [load(buffer, ramp) for buffer in sums]
    values += [values[-1]] * (_PIXELS - len(values))
    low, high = (_even("h", values[i + 1], values[i]) for i in (0, 2))
    whole = _even("b", high, low)
    first = group[0].into
    *place, _ = first.indices
    dtype = str(first.buffer.dtype)
    if len(group) == _PIXELS:
        lanes = tirx.Ramp(const(0), const(1), _PIXELS * _LANES)
        value = tirx.reinterpret(f"{dtype}x{_PIXELS * _LANES}", whole)
        return within(sums, [*kept, store(first.buffer, value, *place, lanes)])
    (words,) = vectors("bytes", 1, _LANES, "global", "int32")
    parts = [
        store(
            first.buffer,
            tirx.reinterpret(f"{dtype}x4", load(words, number)),
            *place,
            tirx.Ramp(const(4 * number), const(1), 4),
        )
        for number in range(len(group) * _LANES // 4)
    ]
    return within([*sums, words], [*kept, store(words, whole, ramp), *parts])


def _even(size: str, high: Expr, low: Expr) -> Expr:
    """The lower halves of the elements of two vectors, `low`'s first."""
    return tirx.call_llvm_pure_intrin(_KIND, f"llvm.hexagon.V6.vpacke{size}.128B", high, low)
