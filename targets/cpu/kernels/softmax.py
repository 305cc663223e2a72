"""Softmax row by row, so that a row stays in the first-level cache.

    for row:                                     # parallel
      top = max of vectors of x
      for vector:  power = exp(x - top);  sum += power     # powers lie on the stack, in pieces
      for vector:  out = epilogue(power * (1 / sum))

If vectors do not divide the row, the last one ends with it, and elements that it recomputes are not
added again. Along the last axis but one, vectors hold neighbouring rows, one in each lane.

Denormal numbers make multiplications a hundred times slower. They are kept only if a reader can
distinguish them from zero: log(softmax(x)) can, a matrix product cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import zip_longest
from math import log, prod
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.features import (
    L1_BYTES,
    EpilogueWork,
    Features,
    Phases,
    feature,
    missing,
)
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import Layer, SoftmaxShape
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    STACK_BYTES,
    block,
    const,
    f32,
    lanes,
    load,
    loop,
    scratch,
    store,
    unravelled,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

_TINY = 2.0**-125
"""Twice the least normal float32."""
_NOTHING = 2.0**-150
"""Half of the least positive float32."""
_SHIFTER = 1.5 * 2.0**23
"""The last bit of a float32 of this size is 1."""
_RAISED = 30
"""Exponents by which powers are raised that may be denormal."""
_LN2_PARTS = 0.693359375, -2.12194440e-4
"""Their sum is ln 2; the first has few bits. Small results need that only where they count."""
_EXP_TERMS = (1.0, 0.9999997, 0.4999915, 0.16667637, 0.04189798, 0.0082903076)
"""e^r for r in [-ln2/2, ln2/2], within 1e-7 of it."""


@dataclass(frozen=True)
class SoftmaxConfig(Template):
    """The tensor, the lanes of a vector, and whether denormal results are kept or become 0.

    With ``columns``, softmax runs along the last axis but one, otherwise along the last.
    """

    template: ClassVar[str] = "softmax"
    layers: ClassVar[tuple[type[Layer], ...]] = (SoftmaxShape,)

    shape: tuple[int, ...]
    lanes: int
    denormals: bool = True
    columns: bool = False

    @property
    def axis(self) -> int:
        """The axis along which it runs."""
        return len(self.shape) - (2 if self.columns else 1)

    @property
    def outer(self) -> tuple[int, ...]:
        """The axes before the softmax axis."""
        return self.shape[: -2 if self.columns else -1]

    @property
    def extent(self) -> int:
        """Extent of the softmax axis."""
        return self.shape[len(self.outer)]

    @property
    def operands(self) -> int:
        return 1

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.shape

    @classmethod
    def configure(
        cls, layer: SoftmaxShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        """The configuration of a softmax along the last axis or the one before it."""
        shape = layer.shape
        following = len(shape) - 1 - layer.axis % len(shape)
        if following > 1 or 0 in shape:
            return []
        if not following and shape[-1] < machine.lanes // 2:  # many rows at a time are faster
            return []
        return [cls(shape, min(machine.lanes, shape[-1]), layer.denormals, following == 1)]

    def cycles(self, machine: VectorMachine) -> float:
        """Cycles of one core: an exponential, and two short passes."""
        return prod(self.shape) * 22.0 / self.lanes

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        (x,) = operands
        axis = len(self.outer)
        rows = (*self.outer, *self.shape[axis + 1 :])
        k, j = (te.reduce_axis((0, self.extent), name) for name in "kj")

        def beside(row: tuple[Expr, ...], place: Expr) -> tuple[Expr, ...]:
            return (*row[:axis], place, *row[axis:])

        def of(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return (*at[:axis], *at[axis + 1 :])

        top = te.compute(rows, lambda *row: te.max(x(*beside(row, k.var)), axis=k), name="top")
        power = te.compute(self.shape, lambda *at: tirx.exp(x[at] - top[of(at)]), name="power")
        total = te.compute(
            rows, lambda *row: te.sum(power(*beside(row, j.var)), axis=j), name="total"
        )
        return te.compute(
            self.shape, lambda *at: power[at] / total[of(at)], name="softmax", attrs=self.annotation
        )

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        kind = PARALLEL if machine.threads > 1 else SERIAL
        rows = prod(self.outer)
        if not self.columns:
            return loop(rows, _Row(self, fused).write, "row", kind)
        vectors = -(-self.shape[-1] // self.lanes)
        return loop(rows * vectors, lambda i: _columns(_Row(self, fused), i, vectors), "row", kind)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> SoftmaxFeatures:
        size, cycles = prod(self.shape), self.cycles(machine)
        numbers = size, size, 0
        return SoftmaxFeatures.of_kernel(self, cycles, epilogue, item, 5.0 * size, numbers)


@dataclass(frozen=True)
class SoftmaxFeatures(Features):
    """A softmax; ``rows_of_vectors`` are the rows that a vector holds numbers of."""

    family: ClassVar[str] = "softmax"
    rows: int = field(metadata=feature(lambda config: prod(config.shape) // config.extent, least=1))
    row_elements: int = field(metadata=feature("extent", least=1, is_constant=True))
    rows_of_vectors: int = field(
        metadata=feature(
            lambda config: config.lanes if config.columns else 1, least=1, is_constant=True
        )
    )

    def own_phases(self) -> Phases:
        """Exponentials of vectors, rows, and vectors that are partly empty."""
        together = self.rows_of_vectors
        groups = self.rows / together
        width = self.vector_lanes if together == 1 else 1
        vectors = groups * -(-self.row_elements // width)
        return {
            "exponentials": vectors * 8,
            "rows": groups * 10,
            "long_rows": vectors * missing(self.row_elements * self.item_bytes, L1_BYTES),
        }


_Place = tuple[tirx.Buffer, Expr]
_Vector = Callable[[_Place, Expr, Expr, int], tirx.Stmt]
"""From the place of a lane's power, its column, its lane, and the number of repeated lanes."""

_Element = Callable[[Expr, tuple[Expr, ...], tirx.Buffer, Expr], tirx.Stmt]
"""From a lane, its element's indices, the buffer of its power, and the power's index there."""

_Piece = tuple[tirx.Buffer, int, int]
"""A buffer for the powers of a row, and its first and end vector."""

_MOST_PIECES = 8  # for longer rows the cost of heap memory is small


def _pieces(count: int, width: int) -> list[_Piece]:
    """Buffers for the powers of a row, each with its first and end vector."""
    most = STACK_BYTES // (4 * width)
    if count > _MOST_PIECES * most:
        return [(scratch("powers", count * width), 0, count)]
    ends = [*range(most, count, most), count]
    starts = [0, *ends[:-1]]
    return [
        (scratch(f"powers{start}", (end - start) * width), start, end)
        for start, end in zip(starts, ends, strict=True)
    ]


@dataclass(frozen=True)
class _Row:
    cfg: SoftmaxConfig
    fused: FusedKernel

    def write(self, row: Expr) -> tirx.Stmt:
        """All passes over one row."""
        cfg = self.cfg
        at = unravelled(row, cfg.shape[:-1])
        width, count = cfg.lanes, -(-cfg.shape[-1] // cfg.lanes)
        top, total = scratch("top", width), scratch("total", width)
        pieces = _pieces(count, width)
        x = self.fused.operands[0]

        every = partial(self.for_vectors, pieces)

        def raise_top(_: _Place, column: Expr, v: Expr, _again: int) -> tirx.Stmt:
            return store(top, tirx.max(load(top, v), load(x, *at, column)), v)

        def exponential(place: _Place, column: Expr, v: Expr, again: int) -> tirx.Stmt:
            powers, number = place
            value = load(*place)
            if again:
                value = tirx.Select(v >= again, value, f32(0.0))
            return block(
                store(powers, self.power((*at, column), load(top, 0)), number),
                store(total, load(total, v) + value, v),
            )

        def finish(place: _Place, column: Expr, _: Expr, _again: int) -> tirx.Stmt:
            value = load(*place)
            if not cfg.denormals:  # top now holds this limit times the sum
                value = tirx.Select(value < load(top, 0), f32(0.0), value)
            return self.fused.epilogue.store((*at, column), value * load(total, 0))

        return within(
            [top, total, *(powers for powers, _, _ in pieces)],
            lanes(width, lambda v: store(top, load(x, *at, v), v)),
            *([every(raise_top, 1)] if count > 1 else []),
            store(top, joined(top, width, tirx.max), 0),
            lanes(width, lambda v: store(total, f32(0.0), v)),
            every(exponential),
            store(total, joined(total, width, lambda a, b: a + b), 0),
            *([] if cfg.denormals else [store(top, f32(_TINY) * load(total, 0), 0)]),
            store(total, f32(1.0) / load(total, 0), 0),
            every(finish),
        )

    def for_vectors(self, pieces: Sequence[_Piece], vector: _Vector, first: int = 0) -> tirx.Stmt:
        """``vector(place, column, lane, again)`` for every vector of the row."""
        cfg, width = self.cfg, self.cfg.lanes
        count = -(-cfg.shape[-1] // width)
        again = count * width - cfg.shape[-1]

        def one(powers: tirx.Buffer, number: Expr, column: Expr, again: int) -> tirx.Stmt:
            def lane(v: Expr) -> tirx.Stmt:
                return vector((powers, number * width + v), column + v, v, again)

            return lanes(width, lane)

        def vectors(powers: tirx.Buffer, start: int, end: int) -> list[tirx.Stmt]:
            begin, end = max(start, first), min(end, count - (again > 0))

            def body(i: Expr) -> tirx.Stmt:
                return one(powers, i + (begin - start), (i + begin) * width, 0)

            return [loop(end - begin, body, "vector")] if end > begin else []

        parts = [part for piece in pieces for part in vectors(*piece)]
        if again:
            powers, start, _ = pieces[-1]
            last = const(count - 1 - start)
            parts.append(one(powers, last, const(cfg.shape[-1] - width), again))
        return block(*parts)

    def power(self, at: tuple[Expr, ...], top: Expr) -> Expr:
        """The exponential of an element."""
        return exponential(load(self.fused.operands[0], *at) - top, self.cfg.denormals)


def exponential(difference: Expr, denormals: bool) -> Expr:
    """The exponential of a difference to a greatest number; 0 where it would be too small.

    It is 2^n e^r with r in [-ln2/2, ln2/2]. Adding 1.5 * 2^23 rounds to n, which then stands in the
    low bits of a float32; a shift makes 2^n of them. Where results may be denormal, n is raised, so
    that 2^n is normal before the last product.
    """
    raised, parts = (_RAISED, _LN2_PARTS) if denormals else (0, (log(2),))
    shifter = f32(_SHIFTER + 127 + raised)
    x, turns = (tirx.Var(name, "float32") for name in ("difference", "turns"))
    r = reduce(lambda r, part: r - (turns - shifter) * f32(part), parts, x)
    power = f32(_EXP_TERMS[-1])
    for term in _EXP_TERMS[-2::-1]:
        power = power * r + f32(term)
    power = power * tirx.reinterpret("float32", tirx.reinterpret("int32", turns) << 23)
    least = f32(log(_NOTHING if denormals else _TINY))
    value = tirx.Select(x < least, f32(0.0), power * f32(2.0**-raised) if denormals else power)
    return tirx.Let(x, difference, tirx.Let(turns, x * f32(1 / log(2)) + shifter, value))


def _columns(row: _Row, number: Expr, vectors: int) -> tirx.Stmt:
    """A vector of neighbouring rows."""
    cfg, x = row.cfg, row.fused.operands[0]
    width, extent = cfg.lanes, cfg.extent
    outer = unravelled(number // vectors, cfg.outer)
    first = tirx.min(number % vectors * width, const(cfg.shape[-1] - width))
    top, total = scratch("top", width), scratch("total", width)
    pieces = _pieces(extent, width)

    def at(k: Expr, v: Expr) -> tuple[Expr, ...]:
        return (*outer, k, first + v)

    def every(element: _Element) -> list[tirx.Stmt]:
        """``element`` for every element of the rows."""

        def one(k: Expr, powers: tirx.Buffer, start: int) -> tirx.Stmt:
            return lanes(width, lambda v: element(v, at(k + start, v), powers, k * width + v))

        return [
            loop(end - start, partial(one, powers=powers, start=start), "k")
            for powers, start, end in pieces
        ]

    def exponential(v: Expr, place: tuple[Expr, ...], powers: tirx.Buffer, i: Expr) -> tirx.Stmt:
        return block(
            store(powers, row.power(place, load(top, v)), i),
            store(total, load(total, v) + load(powers, i), v),
        )

    def finish(v: Expr, place: tuple[Expr, ...], powers: tirx.Buffer, i: Expr) -> tirx.Stmt:
        value = load(powers, i)
        if not cfg.denormals:
            value = tirx.Select(value < load(top, v), f32(0.0), value)
        return row.fused.epilogue.store(place, value * load(total, v))

    def higher(k: Expr) -> tirx.Stmt:
        return lanes(width, lambda v: store(top, tirx.max(load(top, v), load(x, *at(k + 1, v))), v))

    tiny = lanes(width, lambda v: store(top, f32(_TINY) * load(total, v), v))
    return within(
        [top, total, *(powers for powers, _, _ in pieces)],
        lanes(width, lambda v: store(top, load(x, *at(const(0), v)), v)),
        *([loop(extent - 1, higher, "k")] if extent > 1 else []),
        lanes(width, lambda v: store(total, f32(0.0), v)),
        *every(exponential),
        *([] if cfg.denormals else [tiny]),
        lanes(width, lambda v: store(total, f32(1.0) / load(total, v), v)),
        *every(finish),
    )


def joined(buffer: tirx.Buffer, count: int, join: Callable[[Expr, Expr], Expr], *row: Expr) -> Expr:
    """All lanes of a row reduced to one number, by halves, which LLVM makes vectors of."""
    values = [load(buffer, *row, i) for i in range(count)]
    while len(values) > 1:
        half = -(-len(values) // 2)
        pairs = zip_longest(values[:half], values[half:])
        values = [one if other is None else join(one, other) for one, other in pairs]
    return values[0]
