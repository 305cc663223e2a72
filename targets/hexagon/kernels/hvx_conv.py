"""Subtract the offset of packed weights on HVX, by sums of pixels.

    sum of x * (w + 128)  =  sum of x * w  +  128 * sum of x

The last sum is the same for all output channels; with groups it is the same for the channels of a
vector, which reads all channels of the groups that it overlaps. Before a convolution the channels
of each pixel are added, 128 bytes at a time, and multiplied by -128; tiles start from the sums of
their taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr, StringImm

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.conv_nest import write_nest
from tvm_stretch.targets.cpu.kernels.conv_tiles import Tile
from tvm_stretch.targets.cpu.kernels.integer_conv import (
    IntegerConvConfig,
    IntegerNest,
    dense_dot,
    integer_blocking,
    integer_runs,
)
from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.channel_runs import ChannelRun, channel_runs
from tvm_stretch.targets.kernels.cycles import register_tiles
from tvm_stretch.targets.kernels.dots import DOTS, WORD
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import IntegerConvShape
from tvm_stretch.targets.kernels.loops import (
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
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.window_taps import Run, kernel_rows, runs_of

from .hvx import LANES, bytes_at, every, high, hvx, keep, low, pair, whole, word

_ONES = 0x01010101
_WORTH_VECTORS = 4
"""From this many pixels of a row on, they are added in a vector even if it is not full."""

_MOST_PIXELS = 8
"""Most pixels of a tile, because bytes are stored four pixels at a time: tiles have 4 to 8."""

_MOST_SUMS = 8
"""Most sums of a tile of words for 1x1 kernels; more leave no registers to overlap rounding."""


@dataclass(frozen=True, kw_only=True)
class HvxConvConfig(IntegerConvConfig):
    """A convolution that multiplies vectors by vectors."""

    template: ClassVar[str] = "hvx_conv"
    machines: ClassVar[tuple[str, ...]] = ("dsp",)

    def tiles(self, machine: VectorMachine) -> Iterable[tuple[int, int]]:
        return [tile for tile in register_tiles(machine) if tile[0] <= _MOST_PIXELS]


@dataclass(frozen=True, kw_only=True)
class WordConvConfig(HvxConvConfig):
    """A convolution that multiplies vectors by words of general registers."""

    template: ClassVar[str] = "hvx_word_conv"
    is_last_resort: ClassVar[bool] = False

    @classmethod
    def dot_for(cls, shape: IntegerConvShape, machine: VectorMachine, block: int) -> str | None:
        """Words need sums of pixels, which are worth it for several pixels.

        A vector of these sums reads the channels of several pixels.
        """
        dot = dense_dot(machine, shape)
        fits = shape.in_size[0] * shape.in_size[1] * block >= WORD * machine.lanes
        fits = fits and bool(DOTS[dot].offset)
        if shape.groups > 1:
            fits = fits and cls._reads_words(shape, machine, block)
        return dot if fits else None

    @classmethod
    def _reads_words(cls, shape: IntegerConvShape, machine: VectorMachine, block: int) -> bool:
        """Whether each vector of a grouped convolution reads whole words, the same in all tiles.

        Products of channels of two groups are zeros, but two products start in a packet.
        """
        config = ConvConfig.smallest(shape, machine, block)
        merge = config.merged_groups
        width = -(-shape.out_channels // shape.groups * merge // machine.lanes)
        fits = merge == 1 or any(width == blocks for _, blocks in register_tiles(machine))
        if block != machine.lanes or shape.in_channels // shape.groups % WORD or not fits:
            return False
        return channel_runs(replace(config, oc_blocks=width), width) is not None

    @property
    def is_useful(self) -> bool:
        """Whether a short tile's bytes fill vectors, and are rounded while the next is summed.

        With groups, sums of pixels are those of whole runs.
        """
        if self.groups > 1:
            return integer_runs(self, self.oc_blocks) is not None
        fits = self.pixels >= WORD and self.pixels * self.oc_blocks <= _MOST_SUMS
        return not self.pointwise or (fits and self.out_blocks % self.oc_blocks == 0)

    def step(self, pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        """Packets, each with up to two products, one load of weights and one of a pixel's word."""
        return max(pixels * blocks / 2, (pixels + blocks) / 2, blocks) / WORD

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, weight = fused.operands[:2]
        pixels, cut = PixelSums(self, data), integer_blocking(self, machine)
        sums: PixelSums | TapSums = pixels
        buffers, first = [pixels.buffer], [pixels.write()]
        if not self.pointwise:
            sums = TapSums(self, pixels)
            buffers.append(sums.buffer)
            first.append(sums.write())
        # Separate functions: otherwise LLVM keeps addresses of both parts, and spills them. There
        # are two, because scratch of one may share memory with results of the other, and arguments
        # never alias.
        apart = [
            tirx.AttrStmt(self.batch, "compute_scope", StringImm(f"pixel_sums{number}"), part)
            for number, part in enumerate(first)
        ]
        nest = _WordNest(self, cut, data, weight, fused.epilogue, machine, sums)
        return within(buffers, *apart, write_nest(nest))


class PixelSums:
    """The surplus in sums of products, negated, for each pixel of an image.

    A vector holds some words of a few pixels. Eight vectors are added in pairs until one with a
    number for each pixel is left; small images leave several numbers, the first of which counts.
    """

    def __init__(self, cfg: IntegerConvConfig, data: tirx.Buffer) -> None:
        self.cfg, self.data = cfg, data
        self.in_pixel = cfg.data_block // WORD
        self.in_image = prod(cfg.in_size) * self.in_pixel
        self.vectors = self.in_pixel  # vectors that are added together
        while self.vectors * LANES > self.in_image:
            self.vectors //= 2
        self.words = self.in_pixel // self.vectors
        self.image = prod(cfg.in_size) * self.words
        self.sets = sum_sets(cfg)
        size = cfg.batch * self.sets * self.image + LANES
        self.buffer = scratch("pixel_sums", size, dtype="int32")

    def write(self) -> tirx.Stmt:
        """Compute the sums of all pixels."""
        cfg = self.cfg
        parts = []
        if cfg.groups == 1:
            parts.append((0, 1, self._dense()))
        else:
            full, tail = divmod(cfg.out_blocks, cfg.oc_blocks)
            parts += [(0, full, self._of_groups(cfg.oc_blocks))] if full else []
            parts += [(full, 1, self._of_groups(tail))] if tail else []

        def group(n: Expr, g: Expr, reads: Sequence[Sequence[ChannelRun]]) -> tirx.Stmt:
            first = const(cfg.first_block(g * cfg.oc_blocks))
            return block(
                *(
                    self._image(n, g * cfg.oc_blocks + i, first, runs)
                    for i, runs in enumerate(reads)
                )
            )

        def image(n: Expr) -> tirx.Stmt:
            return block(
                *(
                    span(first, count, lambda g, reads=reads: group(n, g, reads), "g")
                    for first, count, reads in parts
                )
            )

        return loop(cfg.batch, image, "n")

    def _dense(self) -> list[list[ChannelRun]]:
        """All channels; lanes after the last channel may hold anything."""
        cfg = self.cfg
        full, rest = divmod(cfg.in_channels, cfg.data_block)
        runs = [ChannelRun(0, full, (0, cfg.data_block), (0, 1))] if full else []
        return [[*runs, *([ChannelRun(full, 1, (0, rest), (0, 1))] if rest else [])]]

    def _of_groups(self, vectors: int) -> list[list[ChannelRun]]:
        """The runs that each of ``vectors`` vectors reads."""
        runs = integer_runs(self.cfg, vectors)
        assert runs is not None  # `conv_dot` has checked it
        return [[run for run in runs if v in range(*run.vectors)] for v in range(vectors)]

    def _image(self, n: Expr, number: Expr, base: Expr, runs: Sequence[ChannelRun]) -> tirx.Stmt:
        """Compute the sums of one image."""
        step = self.vectors * LANES
        count = -(-self.in_image // step)
        last = const(self.in_image - step)  # the last vectors end where the image ends

        def some(v: Expr) -> tirx.Stmt:
            first = v * step
            first = first if count * step == self.in_image else tirx.min(first, last)
            return self._some(n, number, base, runs, first)

        return loop(count, some, "v")

    def _some(
        self, n: Expr, number: Expr, base: Expr, runs: Sequence[ChannelRun], first: Expr
    ) -> tirx.Stmt:
        """Compute the sums of the pixels in some vectors, from the given word of the image on."""
        totals = vectors("total", self.vectors, LANES, dtype="int32")
        steps = [
            statement
            for i, total in enumerate(totals)
            for statement in self._of_blocks(n, base, runs, first + i * LANES, total)
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
        place = tirx.Ramp(self._first(n, number) + first // self.vectors, const(1), LANES)
        return within(totals, *steps, store(self.buffer, scaled, place))

    def _of_blocks(
        self, n: Expr, base: Expr, runs: Sequence[ChannelRun], first: Expr, total: tirx.Buffer
    ) -> list[tirx.Stmt]:
        """Add one vector of words over the blocks of channels."""
        add = "vrmpyubv" if self.cfg.dtype == "uint8" else "vrmpybv"

        def of_block(b: Expr, run: ChannelRun) -> tirx.Stmt:
            pixels = bytes_at(self.data, n, base + b, 0, 0, first * WORD)
            begin, end = run.lanes[0] // WORD, -(-run.lanes[1] // WORD)
            if end - begin < self.in_pixel:
                lane = tirx.Ramp(word(0), word(1), LANES)
                number = tirx.bitwise_and(lane, every(self.in_pixel - 1))
                inside = number < every(end)
                if begin:
                    inside = tirx.bitwise_and(inside, number >= every(begin))
                pixels = tirx.Select(inside, pixels, every(0))
            return keep(total, hvx(f"{add}.acc", whole(total), pixels, every(_ONES)))

        return [
            keep(total, every(0)),
            *(
                span(run.block, run.blocks, lambda b, run=run: of_block(b, run), "ic")
                for run in runs
            ),
        ]

    def _first(self, n: Expr, number: Expr) -> Expr:
        return (n * self.sets + number) * self.image

    def sum_at(self, n: Expr, number: Expr, row: Expr, column: Expr, lanes: int = 1) -> Expr:
        """The sum of a pixel, or of several pixels of a row."""
        inside = (row * self.cfg.in_size[1] + column) * self.words
        place = self._first(n, number) + inside
        return load(self.buffer, place if lanes == 1 else tirx.Ramp(place, const(1), lanes))


class TapSums:
    """For each output pixel the total of `PixelSums` over its taps inside the image."""

    def __init__(self, cfg: IntegerConvConfig, pixels: PixelSums) -> None:
        self.cfg, self.pixels = cfg, pixels
        size = cfg.batch * sum_sets(cfg) * prod(cfg.out_size) + LANES
        self.buffer = scratch("tap_sums", size, dtype="int32")

    def write(self) -> tirx.Stmt:
        """Compute all sums row by row: excess lanes of a vector are overwritten later."""
        cfg = self.cfg
        runs = runs_of(cfg, 1)
        wide = [r for r in runs if r.end - r.start >= _WORTH_VECTORS and self._steps_by_one]
        narrow = [run for run in runs if run not in wide]

        def row(n: Expr, y: Expr) -> tirx.Stmt:  # of an image, and a set of channels
            parts = [self._columns(n, y, run, LANES) for run in wide]
            return block(*parts, *(self._columns(n, y, run, 1) for run in narrow))

        images = cfg.batch * sum_sets(cfg)
        return loop(images, lambda n: loop(cfg.out_size[0], lambda y: row(n, y), "y"), "n")

    @property
    def _steps_by_one(self) -> bool:
        return self.cfg.stride[1] == 1 and self.pixels.words == 1

    def _columns(self, n: Expr, y: Expr, run: Run, lanes: int) -> tirx.Stmt:
        """A run of columns of a row, ``lanes`` at a time."""
        cfg = self.cfg
        (total,) = vectors("total", 1, lanes, dtype="int32")
        low, rows = kernel_rows(cfg, y)
        ramp = const(0) if lanes == 1 else tirx.Ramp(const(0), const(1), lanes)

        def add(x: Expr, ky: Expr, kx: int) -> tirx.Stmt:
            row = y * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            column = x * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
            value = load(total, ramp) + self.pixels.sum_at(const(0), n, row, column, lanes)
            return store(total, value, ramp)

        def some(x: Expr) -> tirx.Stmt:
            zero = word(0) if lanes == 1 else every(0)
            steps = [store(total, zero, ramp)]
            if run.taps:
                added = span(low, rows, lambda ky: block(*(add(x, ky, k) for k in run.taps)), "ky")
                steps.append(added)
            place = self._place(n, y, x)
            where = place if lanes == 1 else tirx.Ramp(place, const(1), lanes)
            return within([total], *steps, store(self.buffer, load(total, ramp), where))

        count = run.end - run.start
        return loop(-(-count // lanes), lambda i: some(i * lanes + run.start), "x")

    def _place(self, n: Expr, y: Expr, x: Expr) -> Expr:
        height, width = self.cfg.out_size
        return (n * height + y) * width + x

    def sum_at(self, n: Expr, number: Expr, y: Expr, x: Expr) -> Expr:
        """The sum of an output pixel."""
        return load(self.buffer, self._place(n * sum_sets(self.cfg) + number, y, x))


def sum_sets(cfg: IntegerConvConfig) -> int:
    """Number of sums per pixel: one or, with groups, one for each vector of output channels."""
    return 1 if cfg.groups == 1 else cfg.out_blocks


@dataclass(frozen=True)
class _WordNest(IntegerNest):
    """Tiles whose sums start from the negated surplus."""

    sums: PixelSums | TapSums

    def run(self, count: int, at: Callable[[Expr], Tile]) -> tirx.Stmt:
        """Start each tile at the end of the one before, so that its loads overlap with rounding."""
        if count == 1:
            return self.whole_tile(at(const(0)))
        first = at(const(0))
        acc = Accumulators(len(first.taps), first.blocks, self.cfg.lanes, dtype="int32")

        def begun(tile: Tile) -> list[tirx.Stmt]:
            return acc.start(self.begin(tile))

        def one(t: Expr) -> tirx.Stmt:
            reduce, finish = self.whole(at(t))
            return block(
                *self.reduction(at(t), reduce, acc),
                *self.finished(acc, finish),
                *begun(at(tirx.min(t + 1, const(count - 1)))),
            )

        return within(acc.buffers, *begun(first), loop(count, one, "tile"))

    def begin(self, tile: Tile) -> Callable[[Expr, Expr, Expr], Expr]:
        """The sums for the pixels under the taps."""

        def of_pixel(p: Expr, o: Expr, _lane: Expr) -> Expr:
            number = const(0) if self.cfg.groups == 1 else tile.group * self.cfg.oc_blocks + o
            return self.sums.sum_at(tile.n, number, *self.pixel(tile.y, tile.x + p))

        return of_pixel
