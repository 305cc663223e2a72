"""Depthwise convolutions and maximum pooling of 8-bit numbers on HVX.

A vector holds 32 channels of four neighbouring pixels. For a depthwise convolution, rows of the
image below each other are shuffled until each word contains four numbers of one channel::

    for channel block, band of rows:
      image = the rows, with the zero point around them         # makes all tiles alike
      for row y, tile of 4 pixels:
        for 4 columns, rows of the kernel, four at a time:
          words = shuffle(row 0, row 1, row 2, row 3)            # a vector of words for each column
          for the taps that read a column:
            sums[pixel] += words[column] * weights of the four rows
        out = epilogue(sums)

Maximum pooling first takes the maximum of rows, into one row, then that of its columns; for a
stride of 2, every second pixel is selected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.integer_window import IntegerWindowConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.dots import WORD
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.loops import (
    block,
    const,
    lanes,
    load,
    loop,
    scratch,
    store,
    vectors,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.window_taps import reads_of_tile

from .hvx import (
    LANES,
    VECTOR,
    bytes_at,
    every_byte,
    hidden_loop,
    high,
    hvx,
    keep,
    keep_bytes,
    low,
    moved,
    pair,
    whole,
    word,
)

PIXELS = VECTOR // LANES
"""Pixels in a vector of bytes."""

_BAND_BYTES = 1 << 16
"""Bytes of the rows that are copied together, so that they stay in the second-level cache."""

_STRIDES = (1, 2)

_TOGETHER = 8
"""Vectors of a row of maxima that are unrolled together."""


@dataclass(frozen=True, kw_only=True)
class HvxDepthwiseConfig(IntegerWindowConfig):
    """A depthwise convolution, whose kernel pads the image itself."""

    template: ClassVar[str] = "hvx_depthwise"
    machines: ClassVar[tuple[str, ...]] = ("dsp",)
    pads: ClassVar[bool] = True

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, weight = fused.operands[:2]
        image = _Image(self, data)
        nest, rows = _Depthwise(self, image, weight, fused.epilogue), image.band

        def band(n: Expr, b: Expr, i: Expr) -> tirx.Stmt:
            first = tirx.min(i * rows, const(self.out_size[0] - rows))
            fill = image.fill(n, b, first * self.stride[0] - self.padding[0])
            return block(fill, nest.rows((n, b), first, rows))

        bands = -(-self.out_size[0] // rows)
        nests = loop(
            self.batch,
            lambda n: loop(
                self.blocks, lambda b: loop(bands, lambda i: band(n, b, i), "band"), "block"
            ),
            "image",
        )
        return within([image.buffer], image.clear(), nests)


@dataclass(frozen=True, kw_only=True)
class HvxWindowConfig(WindowConfig):
    """A pooling; what instructions for bytes do not support becomes plain loops."""

    template: ClassVar[str] = "hvx_window"
    machines: ClassVar[tuple[str, ...]] = ("dsp",)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        if takes_pool(self, fused.operands[0], fused.epilogue):
            return write_hvx_pool(self, fused.operands[0], fused.epilogue)
        return super().write(machine, fused)


class _Image:
    """Rows of one block of channels with their padding, each aligned to a vector.

    A band of output rows reads ``rows`` of them. Padding beside the rows is written once.
    """

    def __init__(self, cfg: IntegerWindowConfig, data: tirx.Buffer) -> None:
        self.cfg, self.data = cfg, data
        self.tile, stride = min(PIXELS, cfg.out_size[1]), cfg.stride[1]  # pixels of a tile
        groups = -(-((self.tile - 1) * stride + cfg.spans[1]) // PIXELS)
        tiles = -(-cfg.out_size[1] // self.tile)
        last = (tiles - 1) * self.tile * stride + groups * PIXELS  # column that is read
        inside = cfg.padding[1] + cfg.in_size[1]
        self.row_bytes = -(-max(last, inside) // PIXELS) * VECTOR
        height, most = cfg.out_size[0], _BAND_BYTES // self.row_bytes - cfg.spans[0]
        bands = -(-height // max(1, most // cfg.stride[0] + 1))
        self.band = -(-height // bands)
        self.rows = (self.band - 1) * cfg.stride[0] + cfg.spans[0]
        self.buffer = scratch("window", self.rows * self.row_bytes, dtype=cfg.dtype)

    def clear(self) -> tirx.Stmt:
        """Fill everything with the padding."""
        outside = every_byte(self.cfg.outside)
        count = self.rows * self.row_bytes // VECTOR
        return loop(count, lambda v: keep_bytes(self.buffer, moved(outside), v * VECTOR), "v")

    def fill(self, n: Expr, b: Expr, first: Expr) -> tirx.Stmt:
        """Copy rows from row ``first`` of the image on; rows outside get the padding."""
        height = self.cfg.in_size[0]

        def row(r: Expr) -> tirx.Stmt:
            own, copied = first + r, self._copied(n, b, first + r, r * self.row_bytes)
            if not (self.cfg.padding[0] or self.cfg.padding[2]):
                return copied
            inside = tirx.all(own >= 0, own < height)
            return tirx.IfThenElse(inside, copied, self._outside(r * self.row_bytes))

        return loop(self.rows, row, "row")

    def _copied(self, n: Expr, b: Expr, row: Expr, to: Expr) -> tirx.Stmt:
        width, start = self.cfg.in_size[1], to + self.cfg.padding[1] * LANES
        if width < PIXELS:
            return loop(
                width * LANES,
                lambda i: store(self.buffer, load(self.data, n, b, row, 0, i), start + i),
            )

        def four(v: Expr) -> tirx.Stmt:
            at = tirx.min(v * PIXELS, const(width - PIXELS)) if width % PIXELS else v * PIXELS
            pixels = moved(bytes_at(self.data, n, b, row, 0, at * LANES))
            return keep_bytes(self.buffer, pixels, start + at * LANES)

        return loop(-(-width // PIXELS), four, "v")

    def _outside(self, to: Expr) -> tirx.Stmt:
        outside = every_byte(self.cfg.outside)
        return loop(
            self.row_bytes // VECTOR,
            lambda v: keep_bytes(self.buffer, moved(outside), to + v * VECTOR),
            "v",
        )

    def pixels(self, row: Expr, column: Expr) -> Expr:
        """Four neighbouring pixels of a row."""
        return bytes_at(self.buffer, row * self.row_bytes + column * LANES)


@dataclass(frozen=True)
class _Depthwise:
    """Writes the rows of one convolution."""

    cfg: IntegerWindowConfig
    image: _Image
    weight: tirx.Buffer
    epilogue: Epilogue

    def rows(self, of: tuple[Expr, Expr], first: Expr, count: int) -> tirx.Stmt:
        """Output rows whose taps lie in the copy, as one loop, so that LLVM can overlap tiles.

        All tiles begin with a vector. The last tile of a row may be too wide: it writes into the
        next row, which is computed later; after the last row, a tile that ends with the row is
        repeated.
        """
        width, tile, stride = self.cfg.out_size[1], self.image.tile, self.cfg.stride[0]
        in_row = -(-width // tile)

        def one(i: Expr) -> tirx.Stmt:
            return self.tile((*of, first + i // in_row, i % in_row * tile), i // in_row * stride)

        if width % tile == 0:
            return loop(count * in_row, one, "tile")
        place = (*of, first + (count - 1), const(width - tile))
        last = self.tile(place, const((count - 1) * stride))
        return block(loop(count * in_row - 1, one, "tile"), last)

    def tile(self, place: tuple[Expr, ...], top: Expr) -> tirx.Stmt:
        """Add up products and pass the tile to the epilogue.

        A packet can hold two products, but only one that accumulates.
        """
        cfg, tile = self.cfg, self.image.tile
        n, b, y, x = place
        acc = vectors("acc", tile, LANES, dtype="int32")
        (column_words,) = vectors("word", 1, LANES, dtype="int32")
        steps: list[tirx.Stmt] = []
        begun: set[int] = set()
        reads = dict(reads_of_tile(cfg, None, tile))
        vector = tirx.Ramp(const(0), const(1), VECTOR)
        for first in range(0, max(reads) + 1, PIXELS):
            for group in range(cfg.words):
                words = self._words(group, top, x * cfg.stride[1] + first)
                for column, value in enumerate(words, first):
                    taps = reads.get(column, ())
                    steps += [keep(column_words, value)] if taps else []
                    for p, kx in taps:
                        taken = load(self.weight, b, group, kx, 0, vector)
                        product = cfg.way.product(whole(column_words), taken)
                        steps.append(
                            keep(acc[p], whole(acc[p]) + product if p in begun else product)
                        )
                        begun.add(p)
        for p in range(tile):
            steps.append(
                lanes(
                    LANES,
                    lambda v, p=p: self.epilogue.store((n, b, y, x + p, v), load(acc[p], v)),
                )
            )
        return within([*acc, column_words], *steps)

    def _words(self, group: int, top: Expr, column: Expr) -> list[Expr]:
        """For each of four columns, the numbers of up to four kernel rows, in words."""
        cfg = self.cfg
        own = range(group * WORD, min(cfg.kernel[0], (group + 1) * WORD))
        rows = [self.image.pixels(top + ky * cfg.dilation[0], column) for ky in own]
        rows += [rows[-1]] * (WORD - len(rows))  # multiplied by weights of zero
        upper, lower = (pair("vshuffvdd", rows[i + 1], rows[i], word(-1)) for i in (0, 2))
        halves = [pair("vshuffvdd", half(lower), half(upper), word(-2)) for half in (low, high)]
        return [part(half) for half in halves for part in (low, high)]


def _tiles(width: int, body: Callable[[Expr], tirx.Stmt]) -> tirx.Stmt:
    """``body`` for the first pixel of each four of a row; the last four end with the row.

    Some of them are unrolled together, so that loads, selections and stores overlap.
    """
    firsts = [*range(0, width - PIXELS, PIXELS), width - PIXELS]
    passes, rest = divmod(len(firsts), _TOGETHER)
    if width % PIXELS and not rest:
        passes, rest = passes - 1, _TOGETHER
    if passes <= 1:
        return block(*(body(const(first)) for first in firsts))

    def some(i: Expr) -> tirx.Stmt:
        start = i.astype("int64") * (PIXELS * _TOGETHER)
        return block(*(body(start + k * PIXELS) for k in range(_TOGETHER)))

    left = [body(const(first)) for first in firsts[passes * _TOGETHER :]]
    return block(hidden_loop(passes, some, "tile"), *left)


# --- maximum pooling ------------------------------------------------------------------------------


def takes_pool(cfg: WindowConfig, data: tirx.Buffer, epilogue: Epilogue) -> bool:
    """Whether `write_hvx_pool` supports it: every pooling except those of the smallest images."""
    begins = (cfg.out_size[0] - 1) * cfg.stride[0] - cfg.padding[0]
    return (
        cfg.kind == "max"
        and str(data.dtype) in _MAXIMUM
        and epilogue.value is None
        and min(cfg.in_size[1], cfg.out_size[1]) >= PIXELS
        and cfg.stride[1] in _STRIDES
        and cfg.dilation == (1, 1)
        and cfg.padding[0] < cfg.kernel[0]
        and begins < cfg.in_size[0]
    )


_MAXIMUM = {"uint8": ("vmaxub", 0), "int8": ("vmaxb", -128)}
"""By type of pixels: the instruction, and the maximum of no pixels."""


def write_hvx_pool(cfg: WindowConfig, data: tirx.Buffer, epilogue: Epilogue) -> tirx.Stmt:
    """The loop nest of a maximum pooling that `takes_pool` accepts."""
    nest = _Pool(cfg, data, epilogue.out)
    rows = loop(
        cfg.batch,
        lambda n: loop(
            cfg.blocks,
            lambda b: loop(cfg.out_size[0], lambda y: nest.row(n, b, y), "y"),
            "block",
        ),
        "image",
    )
    return rows if nest.is_direct else within([nest.columns], nest.clear(), rows)


class _Pool:
    """Writes the rows of one pooling."""

    def __init__(self, cfg: WindowConfig, data: tirx.Buffer, out: tirx.Buffer) -> None:
        self.cfg, self.data, self.out = cfg, data, out
        self.maximum, self.least = _MAXIMUM[str(data.dtype)]
        self.before = -(-cfg.padding[1] // PIXELS) * PIXELS  # the image begins with a vector
        last = (cfg.out_size[1] - 1) * cfg.stride[1] + cfg.spans[1] - cfg.padding[1]
        columns = self.before + max(cfg.in_size[1], last) + 2 * PIXELS  # pairs are read completely
        self.vectors = -(-columns // PIXELS)
        self.columns = scratch("columns", self.vectors * VECTOR, dtype=str(data.dtype))
        is_inside = not (cfg.padding[1] or cfg.padding[3]) and last <= cfg.in_size[1]
        pairs = cfg.stride[1] == 1 or cfg.kernel[1] % 2 == 0  # windows contain whole pairs
        self.is_direct = is_inside and pairs and cfg.kernel[1] <= cfg.stride[1]

    def clear(self) -> tirx.Stmt:
        """Fill the places beside the image with the least number."""
        value = every_byte(self.least)
        return loop(self.vectors, lambda v: keep_bytes(self.columns, moved(value), v * VECTOR), "v")

    def row(self, n: Expr, b: Expr, y: Expr) -> tirx.Stmt:
        """One output row: the maxima of its columns, then the maxima of neighbouring columns."""
        width = self.cfg.in_size[1]

        def four(x: Expr) -> tirx.Stmt:
            return keep_bytes(self.columns, self._below(n, b, y, x), (x + self.before) * LANES)

        def result(x: Expr) -> tirx.Stmt:
            def column(x: Expr) -> Expr:
                return self._below(n, b, y, x) if self.is_direct else self._at(x)

            return keep_bytes(self.out, self._beside(x, column), n, b, y, x, 0)

        results = _tiles(self.cfg.out_size[1], result)
        return results if self.is_direct else block(_tiles(width, four), results)

    def _below(self, n: Expr, b: Expr, y: Expr, column: Expr) -> Expr:
        """Maxima of the rows of a window; for rows outside, a row inside is repeated."""
        cfg = self.cfg
        top, bottom = y * cfg.stride[0] - cfg.padding[0], const(cfg.in_size[0] - 1)
        rows = [tirx.max(const(0), tirx.min(bottom, top + ky)) for ky in range(cfg.kernel[0])]
        return self._most([bytes_at(self.data, n, b, r, 0, column * LANES) for r in rows])

    def _beside(self, x: Expr, at: Callable[[Expr], Expr]) -> Expr:
        """Maxima of the columns of four windows; ``at`` returns the maxima of four columns."""
        cfg = self.cfg
        first = x * cfg.stride[1] + (self.before - cfg.padding[1])
        if cfg.stride[1] == 1:
            return self._most([at(first + kx) for kx in range(cfg.kernel[1])])
        neighbours: list[Expr] = []
        for kx in range(0, cfg.kernel[1], 2):
            upper, lower = at(first + kx + PIXELS), at(first + kx)
            both = pair("vdealvdd", upper, lower, word(-LANES))
            neighbours += [low(both), high(both)] if kx + 1 < cfg.kernel[1] else [low(both)]
        return self._most(neighbours)

    def _at(self, column: Expr) -> Expr:
        return bytes_at(self.columns, column * LANES)

    def _most(self, values: list[Expr]) -> Expr:
        total = values[0]
        for value in values[1:]:
            total = hvx(self.maximum, total, value)
        return total
