"""Sums of pixels on HVX, where packed weights are larger than weights by the same number.

    sum of x * (w + 128)  =  sum of x * w  +  128 * sum of x

The last sum is the same for all output channels. Before a convolution the channels of each pixel
are added up, 128 bytes at a time, and multiplied by -128; a tile begins with what its taps have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import Expr, StringImm

from .conv_nest import Tile, write_nest
from .conv_tiles import column_taps, kernel_rows
from .dots import WORD
from .fused import Epilogue
from .hvx import LANES, bytes_at, every, high, hvx, keep, low, pair, whole, word
from .integer_conv import IntegerConvConfig, IntegerNest, integer_blocking
from .loops import (
    Accumulators,
    block,
    const,
    load,
    loop,
    scratch,
    span,
    store,
    vectors,
    within,
)
from .machine import VectorMachine

_ONES = 0x01010101
_WORTH_VECTORS = 4
"""Pixels of a row that are rather added up in a vector, however little of it they need."""


def write_word_conv(
    cfg: IntegerConvConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """The loop nest of one (fused) convolution whose packed weights have an offset."""
    data, weight = operands[:2]
    pixels, cut = PixelSums(cfg, data), integer_blocking(cfg, machine)
    sums: PixelSums | TapSums = pixels
    buffers, first = [pixels.buffer], [pixels.write()]
    if not cfg.pointwise:
        sums = TapSums(cfg, pixels)
        buffers.append(sums.buffer)
        first.append(sums.write())
    # Functions of their own: else LLVM keeps addresses of both parts, and spills them. Two of them:
    # what only one of them needs may lie where the other's results do, and arguments never overlap.
    apart = [
        tirx.AttrStmt(cfg.batch, "compute_scope", StringImm(f"pixel_sums{number}"), part)
        for number, part in enumerate(first)
    ]
    nest = _WordNest(cfg, cut, data, weight, epilogue, False, sums)
    return within(buffers, [*apart, write_nest(nest, machine)])


class PixelSums:
    """What is too much in sums of products, with the sign changed, for each pixel of an image.

    A vector holds some words of a few pixels. Those of eight vectors are added in pairs until one
    is left, with a number for each pixel; of small images with several, the first of which counts.
    """

    def __init__(self, cfg: IntegerConvConfig, data: tirx.Buffer) -> None:
        self.cfg, self.data = cfg, data
        self.in_pixel = cfg.data_block // WORD
        self.in_image = prod(cfg.in_size) * self.in_pixel
        self.vectors = self.in_pixel  # that are added
        while self.vectors * LANES > self.in_image:
            self.vectors //= 2
        self.words = self.in_pixel // self.vectors
        self.image = prod(cfg.in_size) * self.words
        self.buffer = scratch("pixel_sums", cfg.batch * self.image + LANES, dtype="int32")

    def write(self) -> tirx.Stmt:
        """All of them."""
        step = self.vectors * LANES
        count = -(-self.in_image // step)
        last = const(self.in_image - step)  # the last vectors end where the image does

        def some(n: Expr, v: Expr) -> tirx.Stmt:
            first = v * step
            return self._some(n, first if count * step == self.in_image else tirx.min(first, last))

        return loop(self.cfg.batch, lambda n: loop(count, lambda v: some(n, v), "v"), "n")

    def _some(self, n: Expr, first: Expr) -> tirx.Stmt:
        """Those of the pixels that so many vectors hold, from such a word of the image on."""
        totals = vectors("total", self.vectors, LANES, dtype="int32")
        steps = [
            statement
            for i, total in enumerate(totals)
            for statement in self._of_blocks(n, first + i * LANES, total)
        ]
        left = totals
        while len(left) > 1:
            for lower, upper in zip(left[::2], left[1::2], strict=True):
                dealt = pair("vdealvdd", whole(upper), whole(lower), word(-WORD))
                steps.append(keep(lower, low(dealt) + high(dealt)))
            left = left[::2]
        total, step = left[0], 1
        while step < self.words:
            steps.append(keep(total, whole(total) + hvx("vror", whole(total), word(WORD * step))))
            step *= 2
        scaled = whole(total) * every(-self.cfg.way.offset)
        place = tirx.Ramp(n * self.image + first // self.vectors, const(1), LANES)
        return within(totals, [*steps, store(self.buffer, scaled, place)])

    def _of_blocks(self, n: Expr, first: Expr, total: tirx.Buffer) -> list[tirx.Stmt]:
        """A vector of words, added up over the blocks of channels."""
        cfg = self.cfg
        full, rest = divmod(cfg.in_channels, cfg.data_block)
        add = "vrmpyubv" if cfg.dtype == "uint8" else "vrmpybv"

        def of_block(b: Expr, words: int) -> tirx.Stmt:
            pixels = bytes_at(self.data, n, b, 0, 0, first * WORD)
            if words < self.in_pixel:  # what stands behind the last channel may be anything
                lane = tirx.Ramp(word(0), word(1), LANES)
                number = tirx.bitwise_and(lane, every(self.in_pixel - 1))
                pixels = tirx.Select(number < every(words), pixels, every(0))
            return keep(total, hvx(f"{add}.acc", whole(total), pixels, every(_ONES)))

        steps = [keep(total, every(0))]
        if full:
            steps.append(span(0, full, lambda b: of_block(b, self.in_pixel), "ic"))
        if rest:
            steps.append(of_block(const(full), -(-rest // WORD)))
        return steps

    def at(self, n: Expr, row: Expr, column: Expr, lanes: int = 1) -> Expr:
        """One of them, or those of some pixels of a row."""
        place = n * self.image + (row * self.cfg.in_size[1] + column) * self.words
        return load(self.buffer, place if lanes == 1 else tirx.Ramp(place, const(1), lanes))


class TapSums:
    """Of each output pixel the sum of what `PixelSums` has for its taps inside the image."""

    def __init__(self, cfg: IntegerConvConfig, pixels: PixelSums) -> None:
        self.cfg, self.pixels = cfg, pixels
        self.buffer = scratch("tap_sums", cfg.batch * prod(cfg.out_size) + LANES, dtype="int32")

    def write(self) -> tirx.Stmt:
        """All of them, row by row: what a vector writes too much is written again."""
        cfg = self.cfg
        spans: list[tuple[int, int, tuple[int, int]]] = []  # of columns with the same taps
        for x in range(cfg.out_size[1]):
            taps = column_taps(cfg, x)
            if spans and spans[-1][2] == taps:
                spans[-1] = (spans[-1][0], spans[-1][1] + 1, taps)
            else:
                spans.append((x, 1, taps))
        wide = [s for s in spans if s[1] >= _WORTH_VECTORS and self._steps_by_one]
        narrow = [s for s in spans if s not in wide]

        def row(n: Expr, y: Expr) -> tirx.Stmt:
            parts = [self._columns(n, y, *columns, LANES) for columns in wide]
            return block([*parts, *(self._columns(n, y, *columns, 1) for columns in narrow)])

        return loop(cfg.batch, lambda n: loop(cfg.out_size[0], lambda y: row(n, y), "y"), "n")

    @property
    def _steps_by_one(self) -> bool:
        return self.cfg.stride[1] == 1 and self.pixels.words == 1

    def _columns(
        self, n: Expr, y: Expr, first: int, count: int, taps: tuple[int, int], lanes: int
    ) -> tirx.Stmt:
        """A row's columns from ``first`` on, so many at a time."""
        cfg = self.cfg
        (total,) = vectors("total", 1, lanes, dtype="int32")
        low, rows = kernel_rows(cfg, y)
        ramp = const(0) if lanes == 1 else tirx.Ramp(const(0), const(1), lanes)

        def add(x: Expr, ky: Expr, kx: int) -> tirx.Stmt:
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            column = x * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
            value = load(total, ramp) + self.pixels.at(n, row, column, lanes)
            return store(total, value, ramp)

        def some(x: Expr) -> tirx.Stmt:
            zero = word(0) if lanes == 1 else every(0)
            steps = [store(total, zero, ramp)]
            if taps[0] < taps[1]:
                columns = range(*taps)
                added = span(low, rows, lambda ky: block([add(x, ky, k) for k in columns]), "ky")
                steps.append(added)
            place = self._place(n, y, x)
            where = place if lanes == 1 else tirx.Ramp(place, const(1), lanes)
            return within([total], [*steps, store(self.buffer, load(total, ramp), where)])

        return loop(-(-count // lanes), lambda i: some(i * lanes + first), "x")

    def _place(self, n: Expr, y: Expr, x: Expr) -> Expr:
        height, width = self.cfg.out_size
        return (n * height + y) * width + x

    def at(self, n: Expr, y: Expr, x: Expr) -> Expr:
        """One of them."""
        return load(self.buffer, self._place(n, y, x))


@dataclass(frozen=True)
class _WordNest(IntegerNest):
    """Tiles that begin with what is too much in their sums."""

    sums: PixelSums | TapSums

    def run(self, count: int, at: Callable[[Expr], Tile]) -> tirx.Stmt:
        """The next tile begins where a tile ends: its first sums are made while that one rounds."""
        if count == 1:
            return self.whole_tile(at(const(0)))
        first = at(const(0))
        acc = Accumulators(len(first.taps), first.blocks, self.cfg.lanes, dtype="int32")

        def begun(tile: Tile) -> list[tirx.Stmt]:
            begin = self.begin(tile)
            return acc.start(lambda p, _o, _v: begin(p))

        def one(t: Expr) -> tirx.Stmt:
            reduce, finish = self.whole(at(t))
            return block(
                [
                    *self.reduction(at(t), reduce, acc),
                    *self.finished(acc, finish),
                    *begun(at(tirx.min(t + 1, const(count - 1)))),
                ]
            )

        return within(acc.buffers, [*begun(first), loop(count, one, "tile")])

    def begin(self, tile: Tile) -> Callable[[Expr], Expr]:
        """The sums of the pixels under the taps."""

        def of_pixel(p: Expr) -> Expr:
            return self.sums.at(tile.n, *self.pixel(tile.y, tile.x + p))

        return of_pixel
