"""Products with weights of 4 bits on a GPU: read once as they are, floats in registers.

for each work-group:                          # 16 outputs, a few rows
  for byte of weights, one for each line of items:      # neighbours read neighbours
    low, high = scale * (byte & 15 - zero), scale * (byte >> 4 - zero)
    acc += x[2 * byte] * low + x[2 * byte + 1] * high   # for every row
  acc of all lines are added in local memory

With inputs that were rounded to 8 bits, an item reads the four bytes of a word of one output
instead of a byte of four outputs; their products are whole numbers that float32 holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.ir.codec import from_text

from ..dots import WORD, number
from ..loops import as_type, block, const, f32, load, loop, store, unravelled, within
from ..machine import VectorMachine
from ..nibble_words import WORDS
from ..nibbles import NIBBLES, UNITS, Nibbles, scale_of, zero_of
from .groups import QUAD, barrier, element, launch, load_quad, quads, splat, when
from .machine import GpuMachine

_ROWS = 4
"""Most rows of a group."""

_ITEMS = 128
"""Work-items of a group that the device allows: enough to hide the memory's latency."""


def write_group_nibbles(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.Stmt:
    """The body of a PrimFunc of `nibbles.py` on a GPU."""
    own = from_text(Nibbles, str(func.attrs[NIBBLES]))
    x, weight, scale, *zero, y = func.params
    assert machine.gpu is not None
    return _Nest(own, machine.gpu, x, None, weight, scale, zero[0] if zero else None, y).written()


def write_group_words(func: tirx.PrimFunc, machine: VectorMachine) -> tirx.Stmt:
    """The body of a PrimFunc of `nibble_words.py` on a GPU."""
    own = from_text(Nibbles, str(func.attrs[WORDS]))
    q, factor, weight, scale, *zero, y = func.params
    assert machine.gpu is not None
    return _Nest(own, machine.gpu, q, factor, weight, scale, zero[0] if zero else None, y).written()


@dataclass(frozen=True)
class _Nest:
    """The loops; the names of tensors are those of `nibbles.py` and `nibble_words.py`."""

    own: Nibbles
    gpu: GpuMachine
    x: tirx.Buffer
    factor: tirx.Buffer | None  # the scales of inputs that were rounded
    weight: tirx.Buffer
    scale: tirx.Buffer
    zero: tirx.Buffer | None
    y: tirx.Buffer

    @property
    def across(self) -> int:
        """Items of a line: one has four outputs, or one of them."""
        return UNITS // QUAD if self.factor is None else UNITS

    @property
    def inputs(self) -> int:
        """Inputs whose weights an item reads at once."""
        return 2 if self.factor is None else 2 * WORD

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return min(self.own.rows, _ROWS)

    @cached_property
    def lines(self) -> int:
        """Lines of items, a power of two; they share local memory."""
        most = min(_ITEMS, self.gpu.max_group_items) // self.across
        most = min(most, self.gpu.local_bytes // (4 * QUAD * self.across * self.rows))
        return 1 << (max(1, min(most, self.own.depth // self.inputs)).bit_length() - 1)

    def written(self) -> tirx.Stmt:
        """A group for each block of outputs and tile of rows."""
        tiles = -(-self.own.rows // self.rows)
        acc = quads("acc", self.rows)
        both = quads("weights", 2)
        parts = quads("parts", self.lines, self.across, self.rows, scope="shared")

        def body(group: Expr, item: Expr) -> tirx.Stmt:
            unit, tile = unravelled(group, (self.own.units, tiles))
            line, column = unravelled(item, (self.lines, self.across))
            first = tile * self.rows

            def step(number: Expr) -> tirx.Stmt:
                return self.step(acc, both, (unit, column, first), number)

            turns, rest = divmod(self.own.depth // self.inputs, self.lines)
            steps = [loop(turns, lambda turn: step(line + turn * self.lines), "turn")]
            if rest:
                steps.append(when(line < rest, step(line + turns * self.lines)))
            kept = [store(parts, load(acc, r), line, column, r) for r in range(self.rows)]
            added = loop(
                self.lines - 1,
                lambda other: block(
                    [
                        store(acc, load(acc, r) + load(parts, other + 1, column, r), r)
                        for r in range(self.rows)
                    ]
                ),
                "line",
            )
            last = [*([added] if self.lines > 1 else []), *self.results(acc, unit, column, first)]
            begin = [store(acc, splat(f32(0.0)), r) for r in range(self.rows)]
            steps = [*begin, *steps, *kept, barrier(), when(line < 1, block(last))]
            return within([acc, both, parts], steps)

        return launch(self.own.units * tiles, self.lines * self.across, body)

    def step(
        self,
        acc: tirx.Buffer,
        both: tirx.Buffer,  # the lower and the upper weights of bytes, as floats
        place: tuple[Expr, Expr, Expr],  # block of outputs, column of items, first row
        number_of_step: Expr,
    ) -> tirx.Stmt:
        """Add the products of the weights that an item reads at once."""
        unit, column, first = place
        part = number_of_step // (self.own.block // self.inputs)
        bits = as_type(load_quad(self.weight, unit, number_of_step, column * QUAD), "int32")
        low = tirx.bitwise_and(bits, number(15, QUAD))
        high = tirx.shift_right(bits, number(4, QUAD))
        scale, middle = self.of_block(unit, part, column)
        steps = [
            store(both, scale * (as_type(value, "float32") - middle), half)
            for half, value in enumerate((low, high))
        ]
        for r in range(self.rows):
            row = tirx.min(first + r, const(self.own.rows - 1))
            given = [self.given(row, number_of_step, part, half) for half in (0, 1)]
            added = given[0] * load(both, 0) + given[1] * load(both, 1)
            steps.append(store(acc, load(acc, r) + added, r))
        return block(steps)

    def of_block(self, unit: Expr, part: Expr, column: Expr) -> tuple[Expr, Expr]:
        """Scales and zero points of the four weights that an item reads."""
        if self.factor is None:
            place = [unit, part, tirx.Ramp(column * QUAD, const(1), QUAD)]
            middle = zero_of(self.own, self.zero, *place)
            return scale_of(self.own, self.scale, *place), _four(middle)
        scale = scale_of(self.own, self.scale, unit, part, column)
        return splat(scale), splat(zero_of(self.own, self.zero, unit, part, column))

    def given(self, row: Expr, step: Expr, part: Expr, half: int) -> Expr:
        """The inputs of the lower or the upper weights."""
        if self.factor is None:
            return splat(load(self.x, row, step * 2 + half))
        words = load_quad(self.x, row, step * (2 * WORD) + half * WORD)
        return as_type(words, "float32") * splat(load(self.factor, row, part))

    def results(self, acc: tirx.Buffer, unit: Expr, column: Expr, first: Expr) -> list[tirx.Stmt]:
        """Store the sums of one item."""
        found = []
        for r in range(self.rows):
            values = [element(load(acc, r), i) for i in range(QUAD)]
            if self.factor is not None:
                values = [values[0] + values[1] + values[2] + values[3]]
            for i, value in enumerate(values):
                output = unit * UNITS + column * len(values) + i
                exists = tirx.all(first + r < self.own.rows, output < self.own.outputs)
                found.append(when(exists, store(self.y, value, first + r, output)))
        return found


def _four(value: Expr) -> Expr:
    """Four numbers: ``value``, if they are that already."""
    return value if "x" in str(value.ty.dtype) else splat(value)
