"""Depthwise convolution of 8-bit numbers in blocked layout.

Four numbers whose products are added together (`dots.py`) lie below each other in the image::

    for channel block, row y, tile of the row:
      for rows of the kernel, four at a time:
        for input column of the tile:             # unrolled
          word[lane] = x[row 0] | x[row 1] << 8 | x[row 2] << 16 | x[row 3] << 24
          for the taps that read it:
            sums[pixel] += word * weights of the four rows
      out = epilogue(sums)

Rows outside the image are masked, and columns outside are omitted; both are right for a zero point
of 0; otherwise `integer_blocks.py` pads before.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import ClassVar

from tvm import te, tirx, topi
from tvm.ir import Expr

from .dots import FLIP, WORD, OfWords, by_vectors, every, number, shifted
from .fused import Epilogue, FusedKernel
from .layers import Along, ConvShape, IntegerConvShape, Layer, WindowShape, taken
from .loops import (
    TileRun,
    block,
    const,
    lanes,
    load,
    loop,
    store,
    tile_runs,
    vectors,
    within,
)
from .machine import VectorMachine
from .template import Template
from .window import WindowConfig
from .window_features import DepthwiseFeatures, IntegerDepthwiseFeatures
from .window_nest import Reads, each_row, reads_of_tile


@dataclass(frozen=True, kw_only=True)
class IntegerWindowConfig(OfWords, WindowConfig):
    """A depthwise convolution of 8-bit pixels."""

    template: ClassVar[str] = "integer_window"
    layers: ClassVar[tuple[type[Layer], ...]] = (IntegerConvShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)
    family: ClassVar[type[DepthwiseFeatures]] = IntegerDepthwiseFeatures

    outside: int = 0  # value of the pixels around the image

    @property
    def words(self) -> int:
        """Groups of four kernel rows, the last one perhaps partly empty."""
        return -(-self.kernel[0] // WORD)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Packed weights."""
        width = self.lanes * self.way.together
        return (self.blocks, self.words, self.kernel[1], self.way.parts, width)

    @classmethod
    def configure(
        cls, layer: WindowShape | ConvShape, machine: VectorMachine, block: int
    ) -> list[WindowConfig]:
        """The windows of a depthwise convolution."""
        assert isinstance(layer, IntegerConvShape)
        dot = by_vectors(machine.dot, layer.dtype)
        if not layer.is_depthwise:
            return []
        own = {"kind": "depthwise", "channels": layer.in_channels, "dot": dot}
        return [taken(cls, layer, lanes=machine.lanes, **own)]

    @property
    def steps(self) -> float:
        return prod(self.kernel) / WORD

    def part(self, along: Along, extent: int, machine: VectorMachine) -> Template | None:
        """The windows of fewer channels or rows."""
        changed = taken(WindowShape, self).cut(along, extent)
        return taken(type(self), self, **vars(changed))

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """(C, 1, kh, kw) -> `weight_shape`, zero for channels or rows that do not exist."""
        way = self.way

        def element(b: Expr, word: Expr, x: Expr, part: Expr, place: Expr) -> Expr:
            channel = b * self.lanes + place // way.together
            row = word * WORD + way.channel(part, place % way.together)
            exists = tirx.all(channel < self.channels, row < self.kernel[0])
            value = weight[channel, 0, row, x].astype(way.weight)
            return tirx.if_then_else(exists, value, tirx.const(0, way.weight))

        return te.compute(self.weight_shape, element, name="pack_integer_window")

    @property
    def kernel_name(self) -> str:
        return "integer_depthwise"

    def padded(self, data: te.Tensor) -> te.Tensor:
        """The image in the range of the instruction's type, with its padding."""
        top, left, bottom, right = self.padding
        wide = shifted(data, self.way.shift(self.dtype))
        if not any(self.padding):
            return wide
        return topi.nn.pad(wide, (0, 0, top, left, 0), (0, 0, bottom, right, 0), self.outside)

    def factor(self, weight: te.Tensor, b: Expr, ky: Expr, kx: Expr, lane: Expr) -> Expr:
        way, row = self.way, ky % WORD
        place = lane * way.together + row // way.parts
        return weight[b, ky // WORD, kx, row % way.parts, place].astype("int32")

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        runs = tile_runs(self.out_size[1], 8, partial(reads_of_tile, self))
        nest = _Nest(self, runs, fused.operands[0], fused.operands[1], fused.epilogue)
        return each_row(self, machine, nest.row)


@dataclass(frozen=True)
class _Nest:
    """Writes the rows of one convolution."""

    cfg: IntegerWindowConfig
    runs: list[TileRun[Reads]]
    data: tirx.Buffer
    weight: tirx.Buffer
    epilogue: Epilogue

    def row(self, n: Expr, b: Expr, y: Expr) -> tirx.Stmt:
        """One output row; rows are masked only near the border."""
        cfg = self.cfg
        top, bottom = cfg.padding[0], cfg.in_size[0] + cfg.padding[0] - cfg.spans[0]
        first, last = -(-top // cfg.stride[0]), bottom // cfg.stride[0]  # rows with all taps
        if first == 0 and last >= cfg.out_size[0] - 1:
            return self.tiles(n, b, y, masked=False)
        masked = self.tiles(n, b, y, masked=True)
        if first > last:
            return masked
        inside = tirx.all(y >= first, y <= last)
        return tirx.IfThenElse(inside, self.tiles(n, b, y, masked=False), masked)

    def tiles(self, n: Expr, b: Expr, y: Expr, *, masked: bool) -> tirx.Stmt:
        """All tiles of a row."""

        def tile(t: Expr, run: TileRun[Reads]) -> tirx.Stmt:
            return self.tile((n, b, y, t * run.width + run.start), run, masked)

        return block([loop(run.count, partial(tile, run=run), "tile") for run in self.runs])

    def tile(self, place: tuple[Expr, ...], run: TileRun[Reads], masked: bool) -> tirx.Stmt:
        """Clear the sums, reduce, pass the tile to the epilogue."""
        cfg = self.cfg
        n, b, y, x = place
        acc = vectors("acc", run.width, cfg.lanes, dtype="int32")
        words = vectors("word", len(run.work) * cfg.words, cfg.lanes, dtype="int32")
        way, zero = cfg.way, tirx.const(0, "int32")
        steps = [
            lanes(cfg.lanes, lambda v, buffer=buffer: store(buffer, zero, v)) for buffer in acc
        ]
        left = x * cfg.stride[1] - cfg.padding[1]

        def fill(word: tirx.Buffer, column: int, group: int, lane: Expr, count: int) -> tirx.Stmt:
            at = (n, b, y, left + column)
            return store(word, self.word(at, group, masks.get(group), lane, count), lane)

        def add(
            word: tirx.Buffer, p: int, kx: int, group: int, part: int, lane: Expr, count: int
        ) -> tirx.Stmt:
            piece = way.split(load(word, lane), count)[part]
            weight = load(self.weight, b, group, kx, part, way.weights(lane, 0, count))
            return store(acc[p], way.add(load(acc[p], lane), piece, weight, count), lane)

        masks = {group: self.mask(y, group) for group in range(cfg.words)} if masked else {}
        for group in range(cfg.words):
            for index, (column, taps) in enumerate(run.work):
                word = words[group * len(run.work) + index]
                steps.append(way.each(cfg.lanes, partial(fill, word, column, group)))
                steps += [
                    way.each(cfg.lanes, partial(add, word, p, kx, group, part))
                    for p, kx in taps
                    for part in range(way.parts)
                ]
        for p in range(run.width):
            steps.append(
                lanes(
                    cfg.lanes,
                    lambda v, p=p: self.epilogue.store((n, b, y, x + p, v), load(acc[p], v)),
                )
            )
        return within([*acc, *words], steps)

    def rows(self, y: Expr, group: int) -> list[Expr]:
        """The image rows under up to four rows of the kernel."""
        cfg = self.cfg
        first = group * WORD
        count = min(WORD, cfg.kernel[0] - first)
        top = y * cfg.stride[0] - cfg.padding[0]
        return [top + (first + i) * cfg.dilation[0] for i in range(count)]

    def mask(self, y: Expr, group: int) -> Expr:
        """All ones in the bytes of a word whose rows lie in the image."""
        mask: Expr = tirx.const(0, "int32")
        for i, row in enumerate(self.rows(y, group)):
            byte = (0xFF << 8 * i) - (1 << 32 if i == WORD - 1 else 0)
            inside = tirx.all(row >= 0, row < self.cfg.in_size[0])
            values = tirx.const(byte, "int32"), tirx.const(0, "int32")
            mask = tirx.bitwise_or(mask, tirx.Select(inside, *values))
        return mask

    def word(
        self, place: tuple[Expr, ...], group: int, mask: Expr | None, lane: Expr, count: int
    ) -> Expr:
        """One column of four rows, in the instruction's type."""
        cfg = self.cfg
        n, b, y, column = place
        unsigned, wide = (f"{t}x{count}" if count > 1 else t for t in ("uint8", "int32"))
        found: list[Expr] = []
        for i, row in enumerate(self.rows(y, group)):
            if mask is not None:
                row = tirx.max(const(0), tirx.min(const(cfg.in_size[0] - 1), row))
            pixels = load(self.data, n, b, row, column, lane)
            if cfg.dtype != "uint8":
                pixels = tirx.reinterpret(unsigned, pixels)
            found.append(tirx.shift_left(pixels.astype(wide), number(8 * i, count)))
        word = reduce(tirx.bitwise_or, found)
        if cfg.way.shift(cfg.dtype):
            word = tirx.bitwise_xor(word, number(FLIP, count))
        return word if mask is None else tirx.bitwise_and(word, every(mask, count))
