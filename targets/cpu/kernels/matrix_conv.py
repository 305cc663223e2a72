"""Convolutions by small matrix products: ``smmla`` and ``usmmla`` of aarch64 (i8mm).

    sums[2 pixels][2 outputs] += pixels[2][8 channels] * weights[2][8 channels], transposed

That is 32 multiply-adds in an instruction that takes as long as a dot product of 16.  A tile
consists of groups of four pixels and vectors of four outputs.  Four pixels of a block of channels
are neighbours in memory, and so are those of the next block; zipped, they are two pairs of pixels
of eight channels:

    p0b0 p1b0 p2b0 p3b0            p0b0 p0b1 p1b0 p1b1
    p0b1 p1b1 p2b1 p3b1     ->     p2b0 p2b1 p3b0 p3b1

A group that would reach beyond the tile begins earlier, even before the tile; results that are
computed twice are stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.integer_conv import IntegerNest
from tvm_stretch.targets.kernels.cycles import tile_counts
from tvm_stretch.targets.kernels.dots import DOTS, WORD
from tvm_stretch.targets.kernels.layers import IntegerConvShape
from tvm_stretch.targets.kernels.loops import (
    block,
    const,
    fenced_span,
    lanes,
    load,
    scratch,
    span,
    store,
    unroll,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

from .conv_tiles import Reduction, Tile
from .integer_conv import IntegerConvConfig, dense_dot

GROUP = 4
"""Pixels in a group for small matrices; they are loaded together."""

_MATRIX_OPERANDS = 4
"""Registers besides sums and pairs of pixels: weights, and pixels before they are zipped."""

_EVEN, _ODD = (0, 1, 4, 5), (2, 3, 6, 7)
"""Elements of two results, 2 x 2 unroll, that belong to the first and to the second pixel."""

_KIND = f"int32x{GROUP}"


class MatrixNest(IntegerNest):
    """Multiplies pairs of pixels by pairs of outputs; no padding, and stride 1 along rows."""

    def tile(
        self,
        tile: Tile,
        _reduce: Sequence[Reduction],
        _start: Callable[[Expr, Expr, Expr], Expr] | None,
        finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """Sums in registers: zero, reduction over pairs of channel blocks, finish."""
        cfg, pixels = self.cfg, len(tile.taps)
        starts = [min(g * GROUP, pixels - GROUP) for g in range(-(-pixels // GROUP))]
        rows = range(GROUP * len(starts))  # four results of every group and vector of outputs
        shape = (tile.blocks, cfg.lanes)
        sums = [scratch(f"acc{r}", *shape, dtype="int32") for r in rows]
        done = [scratch(f"done{p}", *shape, dtype="int32") for p in range(GROUP)]

        def of_all(body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
            return unroll(range(tile.blocks), body)

        products = partial(self._products, tile, starts, sums)
        # as in `ConvNest`: if it were unrolled, LLVM would keep shared pixels in registers and
        # spill sums
        columns = fenced_span if cfg.kernel[1] > 1 else span

        def taps(ic: Expr) -> tirx.Stmt:
            def row(ky: Expr) -> tirx.Stmt:
                return columns(0, cfg.kernel[1], lambda kx: products((ic, ky, kx)), "kx")

            return span(0, cfg.kernel[0], row, "ky")

        def result(p: int, g: int) -> list[tirx.Stmt]:
            """One pixel of a group: its elements of two results, with two outputs each."""
            halves, order = sums[g * GROUP + p // 2 * 2 :][:2], _ODD if p % 2 else _EVEN

            def apart(o: Expr) -> tirx.Stmt:
                both = [_vector(half, o) for half in halves]
                return _store(done[p], o, tirx.Shuffle(both, list(order)))

            def finished(o: Expr) -> tirx.Stmt:
                place = const(starts[g] + p)
                return lanes(GROUP, lambda v: finish(place, o, v, load(done[p], o, v)))

            return [of_all(apart), of_all(finished)]

        zero = tirx.Broadcast(tirx.const(0, "int32"), GROUP)
        return within(
            [*sums, *done],
            *(of_all(lambda o, s=s: _store(s, o, zero)) for s in sums),
            span(0, cfg.weight_shape[1], taps, "ic"),
            *(
                step
                for g, start in enumerate(starts)
                for p in range(GROUP)
                if start + p >= g * GROUP  # otherwise another group or tile stores it
                for step in result(p, g)
            ),
        )

    def _products(
        self,
        tile: Tile,
        starts: Sequence[int],
        sums: Sequence[tirx.Buffer],
        place: tuple[Expr, Expr, Expr],  # channel block and tap
    ) -> tirx.Stmt:
        """Add the products of two channel blocks under one tap."""
        ic, ky, kx = place
        pairs = [pair for s in starts for pair in self._pairs(tile, ic, (const(s), ky, kx))]
        every = tirx.Ramp(const(0), const(1), 4 * GROUP)

        def of_outputs(o: Expr) -> tirx.Stmt:
            """Weights change slowest, so that few of them are in registers at a time."""
            steps = []
            for half in (0, 1):
                weight = load(self.weight, tile.group, ic, ky, kx, o * 2 + half, every)
                for pair, of_pair in zip(pairs, sums[half::2], strict=True):
                    operands = (_vector(of_pair, o), pair, weight)
                    steps.append(_store(of_pair, o, _product(self.cfg.way.intrinsic, *operands)))
            return block(*steps)

        return unroll(range(tile.blocks), of_outputs)

    def _pairs(self, tile: Tile, ic: Expr, tap: tuple[Expr, Expr, Expr]) -> tuple[Expr, Expr]:
        """Two pairs of neighbouring pixels with the channels of two blocks."""
        cfg, place = self.cfg, tirx.Ramp(const(0), const(1), 4 * GROUP)
        second = ic * 2 + 1
        if cfg.reduce_blocks % 2:  # its weights are zero
            second = tirx.min(second, const(cfg.reduce_blocks - 1))
        words = [
            tirx.reinterpret(_KIND, load(self.data, *self.input_place(tile, tap, channel, place)))
            for channel in (ic * 2, second)
        ]
        bytes_ = f"{cfg.dtype}x{4 * GROUP}"
        first, last = (tirx.Shuffle(words, order) for order in ([0, 4, 1, 5], [2, 6, 3, 7]))
        return tirx.reinterpret(bytes_, first), tirx.reinterpret(bytes_, last)


def _product(intrinsic: str, *operands: Expr) -> Expr:
    return tirx.call_llvm_pure_intrin(_KIND, intrinsic, *operands)


def _vector(buffer: tirx.Buffer, row: Expr) -> Expr:
    return load(buffer, row, tirx.Ramp(const(0), const(1), GROUP))


def _store(buffer: tirx.Buffer, row: Expr, value: Expr) -> tirx.Stmt:
    return store(buffer, value, row, tirx.Ramp(const(0), const(1), GROUP))


@dataclass(frozen=True, kw_only=True)
class MatrixConvConfig(IntegerConvConfig):
    """A convolution by instructions that multiply small matrices."""

    template: ClassVar[str] = "matrix_conv"
    is_last_resort: ClassVar[bool] = False
    reads_padding: ClassVar[bool] = True
    nest: ClassVar[type[IntegerNest]] = MatrixNest

    @property
    def weight_shape(self) -> tuple[int, ...]:
        pairs = (self.oc_blocks * self.lanes // 2, 4 * WORD)
        return (self.out_groups, -(-self.reduce_blocks // 2), *self.kernel, *pairs)

    @classmethod
    def dot_for(cls, shape: IntegerConvShape, machine: VectorMachine, block: int) -> str | None:
        """Small matrices need two blocks of channels, and four pixels side by side."""
        dot = dense_dot(machine, shape)
        if not DOTS[dot].is_matrix or shape.groups > 1:
            return None
        rows, width = shape.padded().in_size
        pointwise = shape.kernel == shape.stride == (1, 1)
        outside = (shape.kernel[1] - 1) * shape.dilation[1]
        side_by_side = rows * width if pointwise else width - outside
        fits = side_by_side >= GROUP and shape.stride[1] == 1 and shape.in_channels > block
        return dot if fits else None

    def tiles(self, machine: VectorMachine) -> Iterable[tuple[int, int]]:
        """Tiles (pixels, vectors of outputs) that fit into the registers.

        The first tile of a row has at least one whole group; groups of other tiles may begin
        earlier.
        """
        rows, width = self.out_size
        row = rows * width if self.pointwise else width
        return [
            (pixels, blocks)
            for pixels in range(GROUP, machine.registers)
            for blocks in range(1, machine.registers // GROUP)
            if (GROUP * blocks + 2) * -(-pixels // GROUP) + _MATRIX_OPERANDS <= machine.registers
            and tile_counts(row, pixels)[0][0] >= GROUP
        ]

    def step(self, pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        """Cycles for one channel, of eight: products, zipping of their pixels, and loads."""
        groups = -(-pixels // GROUP)
        computed = (4 * groups * blocks + 2 * groups) / machine.multiply_adds
        loads = (2 * groups + 2 * blocks) / machine.loads
        cycles = max(computed, loads, machine.latency) + 0.04 * (pixels + blocks)
        return cycles / (2 * WORD)

    def pack(self, weight: te.Tensor, sums: str = "") -> te.Tensor:
        in_group, kind = self.in_channels // self.groups, self.way.weight

        def element(g: Expr, b: Expr, y: Expr, x: Expr, pair: Expr, place: Expr) -> Expr:
            out = g * (self.oc_blocks * self.lanes) + pair * 2 + place // (2 * WORD)
            row = b * (2 * WORD) + place % (2 * WORD)
            exists = tirx.all(out < self.out_channels, row < in_group)
            return tirx.if_then_else(exists, weight[out, row, y, x], tirx.const(0, kind))

        return te.compute(self.weight_shape, element, name="pack_integer_weight")

    def factor(
        self, weight: te.Tensor, group: Expr, tap: tuple[Expr, ...], inner: Expr, width: Expr
    ) -> Expr:
        blocks, ky, kx = tap
        place = (width % 2 * 2 + blocks % 2) * WORD + inner
        return weight[group, blocks // 2, ky, kx, width // 2, place].astype("int32")
