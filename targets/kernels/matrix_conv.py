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

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr

from .conv_nest import Reduction, Tile, write_nest
from .fused import Epilogue
from .integer_conv import GROUP, IntegerConvConfig, IntegerNest, integer_blocking
from .loops import block, const, each, fenced_span, lanes, load, scratch, span, store, within
from .machine import VectorMachine

_EVEN, _ODD = (0, 1, 4, 5), (2, 3, 6, 7)
"""Elements of two results, 2 x 2 each, that belong to the first and to the second pixel."""

_KIND = f"int32x{GROUP}"


def write_matrix_conv(
    cfg: IntegerConvConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """The loop nest of one (fused) convolution; ``operands`` are data and weight."""
    cut = integer_blocking(cfg, machine)
    return write_nest(_MatrixNest(cfg, cut, operands[0], operands[1], epilogue, machine))


class _MatrixNest(IntegerNest):
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
            return each(range(tile.blocks), body)

        def products(ic: Expr, ky: Expr, kx: Expr) -> tirx.Stmt:
            pairs = [pair for s in starts for pair in self._pairs(tile, ic, (const(s), ky, kx))]
            every = tirx.Ramp(const(0), const(1), 4 * GROUP)

            def of_outputs(o: Expr) -> tirx.Stmt:
                """Weights change slowest, so that few of them are in registers at a time."""
                steps = []
                for half in (0, 1):
                    weight = load(self.weight, tile.group, ic, ky, kx, o * 2 + half, every)
                    for pair, of_pair in zip(pairs, sums[half::2], strict=True):
                        operands = (_vector(of_pair, o), pair, weight)
                        steps.append(_store(of_pair, o, _product(cfg.way.intrinsic, *operands)))
                return block(steps)

            return of_all(of_outputs)

        # as in `ConvNest`: if it were unrolled, LLVM would keep shared pixels in registers and
        # spill sums
        columns = fenced_span if cfg.kernel[1] > 1 else span

        def taps(ic: Expr) -> tirx.Stmt:
            def row(ky: Expr) -> tirx.Stmt:
                return columns(0, cfg.kernel[1], lambda kx: products(ic, ky, kx), "kx")

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
            [
                *(of_all(lambda o, s=s: _store(s, o, zero)) for s in sums),
                span(0, cfg.weight_shape[1], taps, "ic"),
                *(
                    step
                    for g, start in enumerate(starts)
                    for p in range(GROUP)
                    if start + p >= g * GROUP  # otherwise another group or tile stores it
                    for step in result(p, g)
                ),
            ],
        )

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
