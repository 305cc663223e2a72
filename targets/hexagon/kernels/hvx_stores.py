"""Pack stores of 8-bit results on HVX: four vectors of int32 become one of bytes.

    for lane in vectorized(32): out[.., x, lane] = uint8(e0)        packed0[lane] = e0  ..
    for lane in vectorized(32): out[.., x + 1, lane] = uint8(e1) -> out[.., x, 0:128] = pack(
    ..                                                                 packed0, .., packed3)

LLVM stores a vector of 32 bytes one byte at a time. The results of four neighbouring pixels fill a
vector; pixels that are left over are stored together with some that were stored already.
Less than four pixels also use a vector, which is written in words of four bytes.

Results of `fixed_point.rounded` are not only packed: HVX multiplies, shifts and saturates like that
function, so that they are wide only until the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr
from tvm.sym import Analyzer
from tvm.tirx.buffer import is_buffer_var

from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.kernels.fixed_point import Narrowing, narrowing_of, write_out
from tvm_stretch.targets.kernels.loops import block, const, load, store, vectors, within

from .hvx import LANES, VECTOR, hvx, keep, keep_bytes, whole

_PIXELS = 4


def pack_stores(func: tirx.PrimFunc, constants: Sequence[tirx.Buffer] = ()) -> tirx.PrimFunc:
    """The function with such stores packed; the function itself if it has none.

    Its own buffers and ``constants`` are aligned to a vector, as the DSP's stack and the image of
    its weights are (native/dsp/image.cc); tensors are aligned to half a vector.
    """
    body = write_out(rewrite(func.body, (tirx.SeqStmt, _packed)))
    if body.same_as(func.body) and not constants:
        return func
    packed: dict[tirx.Var, tirx.Var] = {}

    def aligned(var: tirx.Var) -> tirx.Var:
        stays = any(var.same_as(p) for p in func.params) and not any(map(var.same_as, constants))
        if stays or not is_buffer_var(var):
            return var
        return packed.setdefault(var, _aligned(var))

    params = [aligned(param) for param in func.params]
    body = rewrite(body, (tirx.Var, aligned))
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _aligned(buffer: tirx.Buffer) -> tirx.Buffer:
    shape, dtype, scope = buffer.shape, str(buffer.dtype), buffer.ty.storage_scope
    return tirx.decl_buffer(shape, dtype, buffer.name, scope=scope, data_alignment=VECTOR)


@dataclass(frozen=True)
class _Store:
    """A vectorized loop that stores bytes into 32 contiguous lanes."""

    loop: tirx.For
    where: Expr
    wide: Expr  # the int32 that is stored
    narrowing: Narrowing | None

    @property
    def into(self) -> tirx.BufferStore:
        return self.loop.body

    def keep(self, buffer: tirx.Buffer, value: Expr) -> tirx.Stmt:
        """The loop with another value and destination."""
        old, var = self.loop.loop_var, tirx.Var(self.loop.loop_var.name, "int64")
        moved = rewrite(value, (tirx.Var, lambda node: var if node.same_as(old) else node))
        return tirx.For(
            var, self.loop.min, self.loop.extent, self.loop.kind, store(buffer, moved, var)
        )


def _store_of(statement: tirx.Stmt) -> _Store | None:
    if not isinstance(statement, tirx.For) or statement.kind != tirx.ForKind.VECTORIZED:
        return None
    into = statement.body
    if int(statement.extent) != LANES or not isinstance(into, tirx.BufferStore):
        return None
    narrowing = narrowing_of(into.value)
    wide = into.value if narrowing is None else narrowing.result()
    is_byte = str(into.buffer.dtype) in ("uint8", "int8") and isinstance(wide, tirx.Cast)
    if not is_byte or not into.indices[-1].same_as(statement.loop_var):
        return None
    if str(wide.value.ty.dtype) != "int32" or int(into.buffer.shape[-1]) != LANES:
        return None
    place: Expr = const(0)
    for index, extent in zip(into.indices[:-1], into.buffer.shape[:-1], strict=True):
        place = place * extent + index
    return _Store(statement, place, wide.value, narrowing)


def _packed(sequence: tirx.SeqStmt) -> tirx.Stmt:
    """The statements with runs of such stores replaced; the stores of a run stay in order."""
    done: list[tirx.Stmt] = []
    run: list[_Store] = []
    for statement in sequence.seq:
        store = _store_of(statement)
        if store is not None and (not run or store.into.buffer.same_as(run[0].into.buffer)):
            run.append(store)
            continue
        done += _pack_run(run)
        run = [] if store is None else [store]
        if store is None:
            done.append(statement)
    done += _pack_run(run)
    return block(*done) if any(_store_of(s) is not None for s in sequence.seq) else sequence


def _pack_run(run: Sequence[_Store]) -> list[tirx.Stmt]:
    analyzer = Analyzer()
    left, stores = list(run), []
    while left:
        row = [left.pop(0)]
        while True:
            step = [analyzer.simplify(s.where - row[-1].where) for s in left]
            after = [i for i, d in enumerate(step) if isinstance(d, tirx.IntImm) and int(d) == 1]
            if not after:
                break
            row.append(left.pop(after[0]))
        stores.append(_pack(row))
    return stores


def _pack(row: Sequence[_Store]) -> tirx.Stmt:
    """Pack neighbouring pixels, four at a time."""
    first = row[0].narrowing
    same = all(s.narrowing is not None and s.narrowing.same(first) for s in row)
    totals = vectors("packed", len(row), LANES, dtype="int32")
    if first is None or not same:
        kept = [s.keep(b, s.wide) for s, b in zip(row, totals, strict=True)]
        statements = [
            statement
            for start in _starts(len(row))
            for statement in _store_bytes(row, start, _evens(_four(totals, start)))
        ]
        return within(totals, *kept, *statements)
    factors = vectors("factor", 1, LANES, dtype="int32")
    steps = []
    for s, total in zip(row, totals, strict=True):
        assert s.narrowing is not None
        steps += [s.keep(total, s.narrowing.number), s.keep(factors[0], s.narrowing.mantissa)]
        steps.append(keep(total, first.product(whole(total), whole(factors[0]))))
    for start in _starts(len(row)):
        steps += _store_bytes(row, start, first.narrowed(_four(totals, start)))
    return within([*totals, *factors], *steps)


def _starts(pixels: int) -> list[int]:
    """First pixels of each four; the last four end with the row."""
    return [*range(0, pixels - _PIXELS, _PIXELS), max(0, pixels - _PIXELS)]


def _four(buffers: Sequence[tirx.Buffer], start: int) -> list[Expr]:
    """Four vectors; if there are less, the last one is repeated."""
    return [whole(buffers[min(start + i, len(buffers) - 1)]) for i in range(_PIXELS)]


def _store_bytes(row: Sequence[_Store], start: int, packed: Expr) -> list[tirx.Stmt]:
    """Store one to four neighbouring pixels."""
    first = row[start].into
    *place, _ = first.indices
    dtype, pixels = str(first.buffer.dtype), min(_PIXELS, len(row))
    if pixels == _PIXELS:
        return [keep_bytes(first.buffer, packed, *place, 0)]
    (words,) = vectors("bytes", 1, LANES, dtype="int32")
    parts = [
        store(
            first.buffer,
            tirx.reinterpret(f"{dtype}x4", load(words, number)),
            *place,
            tirx.Ramp(const(4 * number), const(1), 4),
        )
        for number in range(pixels * LANES // 4)
    ]
    return [within([words], keep(words, packed), *parts)]


def _evens(four: Sequence[Expr]) -> Expr:
    """The lowest bytes of four vectors of words."""
    low, high = (_even("h", four[i + 1], four[i]) for i in (0, 2))
    return _even("b", high, low)


def _even(size: str, high: Expr, low: Expr) -> Expr:
    """The lower halves of the elements of two vectors, `low`'s first."""
    return hvx(f"vpacke{size}", high, low)
