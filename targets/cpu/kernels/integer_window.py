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

from tvm_stretch.targets.kernels.dots import FLIP, WORD, OfWords, by_vectors, every, number, shifted
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import (
    Along,
    ConvShape,
    IntegerConvShape,
    Layer,
    WindowShape,
    taken,
)
from tvm_stretch.targets.kernels.loops import TileRun, const, lanes, load, store, vectors, within
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.kernels.window_taps import Reads, each_read

from .window import DepthwiseFeatures, IntegerDepthwiseFeatures, WindowConfig
from .window_nest import RowNest


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
        return _Nest(self, machine, fused).write()


class _Nest(RowNest[bool]):
    """Windows of 8-bit numbers; a case is whether kernel rows are masked."""

    cfg: IntegerWindowConfig

    def __init__(
        self, cfg: IntegerWindowConfig, machine: VectorMachine, fused: FusedKernel
    ) -> None:
        super().__init__(cfg, machine, fused, 8)
        self.data, self.weight = fused.operands[:2]

    def cases(self, y: Expr) -> tuple[list[tuple[int, int, bool]], bool]:
        """Rows are masked only near the border."""
        cfg = self.cfg
        top, bottom = cfg.padding[0], cfg.in_size[0] + cfg.padding[0] - cfg.spans[0]
        first, last = -(-top // cfg.stride[0]), bottom // cfg.stride[0]  # rows with all taps
        if first == 0 and last >= cfg.out_size[0] - 1:
            return [], False
        return [(first, last + 1, False)] if first <= last else [], True

    def tile(self, row: tuple[Expr, ...], x: Expr, run: TileRun[Reads], rows: bool) -> tirx.Stmt:
        cfg = self.cfg
        n, b, y = row
        masks = {group: self.mask(y, group) for group in range(cfg.words)} if rows else {}
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

        def products(group: int) -> list[tirx.Stmt]:
            own = words[group * len(run.work) :]

            def fetch(i: int, column: int) -> tirx.Stmt:
                return way.apply(cfg.lanes, partial(fill, own[i], column, group))

            def use(i: int, p: int, kx: int) -> list[tirx.Stmt]:
                parts = range(way.parts)
                return [way.apply(cfg.lanes, partial(add, own[i], p, kx, group, k)) for k in parts]

            return each_read(run.work, use, fetch)

        steps += [step for group in range(cfg.words) for step in products(group)]
        for p in range(run.width):
            steps.append(
                lanes(
                    cfg.lanes,
                    lambda v, p=p: self.epilogue.store((n, b, y, x + p, v), load(acc[p], v)),
                )
            )
        return within([*acc, *words], *steps)

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
        taps: list[Expr] = []
        for i, row in enumerate(self.rows(y, group)):
            if mask is not None:
                row = tirx.max(const(0), tirx.min(const(cfg.in_size[0] - 1), row))
            pixels = load(self.data, n, b, row, column, lane)
            if cfg.dtype != "uint8":
                pixels = tirx.reinterpret(unsigned, pixels)
            taps.append(tirx.shift_left(pixels.astype(wide), number(8 * i, count)))
        word = reduce(tirx.bitwise_or, taps)
        if cfg.way.shift(cfg.dtype):
            word = tirx.bitwise_xor(word, number(FLIP, count))
        return word if mask is None else tirx.bitwise_and(word, every(mask, count))
