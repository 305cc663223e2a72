"""Convolutions and dense layers of 8-bit numbers in blocked layout: packing, meaning, loop nest.

The nest is that of `conv_nest.py`: a tile of pixels and vectors of output channels, whose int32
sums stay in registers; each step multiplies a word of four input channels of each pixel
(`dots.py`). Taps in the padding are omitted, which is right for a zero point of 0; otherwise
`integer_blocks.py` pads before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from tvm import te, tirx, topi
from tvm.ir import Expr

from .accumulators import Accumulators, Sum
from .channel_runs import ChannelRun, channel_runs, whole_run
from .choose import ConvShape, register_tiles, step_cycles, tile_counts
from .choose import direct_cycles as cycles_of_tiles
from .conv import ConvConfig, merged_groups
from .conv_nest import ConvNest, Reduction, Tile, write_nest
from .conv_tiles import Blocking, blocking, column_segments, kernel_rows
from .dots import DOTS, WORD, OfWords, by_vectors
from .fused import Epilogue
from .loops import block, const, fenced_span, load, span, unrolled, within
from .machine import VectorMachine


@dataclass(frozen=True)
class IntegerConvConfig(OfWords, ConvConfig):
    """A convolution of 8-bit pixels."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Packed weights, in the order in which the inner loops read them."""
        if self.way.is_matrix:
            pairs = (self.oc_blocks * self.lanes // 2, 4 * WORD)
            return (self.out_groups, -(-self.reduce_blocks // 2), *self.kernel, *pairs)
        width = self.oc_blocks * self.lanes * self.way.together
        words = (self.data_block // WORD, self.way.parts, width)
        return (self.out_groups, self.reduce_blocks, *self.kernel, *words)


GROUP = 4
"""Pixels in a group for small matrices; they are loaded together."""

_MATRIX_OPERANDS = 4
"""Registers besides sums and pairs of pixels: weights, and pixels before they are zipped."""

_MOST_PIXELS = 8
"""Most pixels of a tile if bytes are stored four pixels at a time, so tiles have 4 to 8 pixels."""


_MOST_SUMS = 8
"""Most sums of a tile of words for 1x1 kernels; more leave no registers to overlap rounding."""


@lru_cache(maxsize=4096)
def choose_integer_conv(
    shape: ConvShape, machine: VectorMachine, data_block: int, dtype: str, dot: str
) -> IntegerConvConfig:
    """The fastest tile by the model of `choose.py`."""
    merge = merged_groups(shape.in_channels, shape.out_channels, shape.groups, machine.lanes)
    config = IntegerConvConfig(
        **vars(shape),
        lanes=machine.lanes,
        data_block=data_block,
        oc_blocks=1,
        pixels=1,
        merged_groups=merge,
        dtype=dtype,
        dot=dot,
    )
    tiles = register_tiles(machine)
    if machine.packs_bytes:
        tiles = [(p, o) for p, o in tiles if p <= _MOST_PIXELS]
    if DOTS[dot].is_matrix:
        tiles = _matrix_tiles(config, machine)
    candidates = [replace(config, pixels=p, oc_blocks=o) for p, o in tiles]
    if shape.groups > merge:
        width = shape.out_channels // shape.groups * merge // machine.lanes
        candidates = [c for c in candidates if width % c.oc_blocks == 0]
    if config.pointwise and config.way.offset and shape.groups == 1:
        candidates = [c for c in candidates if _rounds_beside(c)]
    if shape.groups > 1 and config.way.offset:  # sums of pixels are those of whole runs
        candidates = [c for c in candidates if integer_runs(c, c.oc_blocks) is not None]
    return min(candidates, key=lambda c: integer_conv_cycles(c, machine))


def _rounds_beside(c: IntegerConvConfig) -> bool:
    """Whether a short tile's bytes fill vectors, and are rounded while the next tile is summed."""
    fits = c.pixels >= WORD and c.pixels * c.oc_blocks <= _MOST_SUMS
    return fits and c.out_blocks % c.oc_blocks == 0


def conv_dot(shape: ConvShape, machine: VectorMachine, data_block: int, dtype: str) -> str:
    """The way in which a convolution adds products.

    Words of general registers are used only if sums of pixels are possible and worth it: a vector
    of these sums reads the channels of several pixels. Small matrices are used only if there are
    two blocks of channels, and four pixels side by side.
    """
    by_vector = by_vectors(machine.dot, dtype)
    dense = dict(DOTS[machine.dot].dense).get(dtype, by_vector)
    if DOTS[dense].is_matrix:
        rows, width = shape.padded().in_size
        pointwise = shape.kernel == shape.stride == (1, 1)
        outside = (shape.kernel[1] - 1) * shape.dilation[1]
        side_by_side = rows * width if pointwise else width - outside
        fits = side_by_side >= GROUP and shape.stride[1] == 1
        fits = fits and shape.in_channels > data_block
    else:
        fits = shape.in_size[0] * shape.in_size[1] * data_block >= WORD * machine.lanes
    if shape.groups > 1 and DOTS[dense].offset:
        fits = fits and _reads_words(shape, machine, data_block)
    elif shape.groups > 1:
        fits = False
    return dense if fits else by_vector


def _reads_words(shape: ConvShape, machine: VectorMachine, data_block: int) -> bool:
    """Whether each vector of a grouped convolution reads whole words, the same in all tiles.

    Products of channels of two groups are zeros, but two products start in a packet.
    """
    merge = merged_groups(shape.in_channels, shape.out_channels, shape.groups, machine.lanes)
    width = -(-shape.out_channels // shape.groups * merge // machine.lanes)
    fits = merge == 1 or any(width == blocks for _, blocks in register_tiles(machine))
    if data_block != machine.lanes or shape.in_channels // shape.groups % WORD or not fits:
        return False
    config = ConvConfig(
        **vars(shape),
        lanes=machine.lanes,
        data_block=data_block,
        oc_blocks=width,
        pixels=1,
        merged_groups=merge,
    )
    return channel_runs(config, width) is not None


def integer_conv_cycles(config: IntegerConvConfig, machine: VectorMachine) -> float:
    """Cycles of one core by the model of `choose.py`."""
    pieces = config.way.parts * (1 if config.way.parts == 1 else 2)

    def step(pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        if config.way.offset:
            return _packets_of_word(pixels, blocks) / WORD
        if config.way.is_matrix:
            return _cycles_of_matrices(pixels, blocks, machine) / (2 * WORD)
        return pieces * step_cycles(pixels, blocks, slab // 4, machine) / WORD

    return cycles_of_tiles(config, machine, step)


def _cycles_of_matrices(pixels: int, blocks: int, machine: VectorMachine) -> float:
    """Cycles for eight channels: products, zipping of their pixels, and loads."""
    groups = -(-pixels // GROUP)
    computed = (4 * groups * blocks + 2 * groups) / machine.multiply_adds
    loads = (2 * groups + 2 * blocks) / machine.loads
    return max(computed, loads, machine.latency) + 0.04 * (pixels + blocks)


def _matrix_tiles(config: IntegerConvConfig, machine: VectorMachine) -> list[tuple[int, int]]:
    """Tiles (pixels, vectors of outputs) that fit into the registers.

    The first tile of a row has at least one whole group; groups of other tiles may begin earlier.
    """
    rows, width = config.out_size
    row = rows * width if config.pointwise else width
    return [
        (pixels, blocks)
        for pixels in range(GROUP, machine.registers)
        for blocks in range(1, machine.registers // GROUP)
        if (GROUP * blocks + 2) * -(-pixels // GROUP) + _MATRIX_OPERANDS <= machine.registers
        and tile_counts(row, pixels)[0][0] >= GROUP
    ]


def _packets_of_word(pixels: int, blocks: int) -> float:
    """HVX packets, each with up to two products, one load of weights and one of a pixel's word."""
    return max(pixels * blocks / 2, (pixels + blocks) / 2, blocks)


# --- packing --------------------------------------------------------------------------------------


def pack_integer_weight(cfg: IntegerConvConfig, weight: te.Tensor) -> te.Tensor:
    """OIHW -> `weight_shape`, zero for channels that do not exist."""
    in_group, out_group = cfg.in_channels // cfg.groups, cfg.out_channels // cfg.groups
    way = cfg.way

    def of_matrix(g: Expr, b: Expr, y: Expr, x: Expr, pair: Expr, place: Expr) -> Expr:
        out = g * (cfg.oc_blocks * cfg.lanes) + pair * 2 + place // (2 * WORD)
        row = b * (2 * WORD) + place % (2 * WORD)
        exists = tirx.all(out < cfg.out_channels, row < in_group)
        return tirx.if_then_else(exists, weight[out, row, y, x], tirx.const(0, way.weight))

    if way.is_matrix:
        return te.compute(cfg.weight_shape, of_matrix, name="pack_integer_weight")

    def element(g: Expr, b: Expr, y: Expr, x: Expr, word: Expr, part: Expr, place: Expr) -> Expr:
        o = place // way.together
        out = (g * cfg.oc_blocks) * cfg.lanes + o
        lane = word * WORD + way.channel(part, place % way.together)
        first = cfg.first_block(g * cfg.oc_blocks + o // cfg.lanes)
        row = (first + b) * cfg.data_block + lane - out // out_group * in_group
        exists = tirx.all(out < cfg.out_channels, row >= 0, row < in_group)
        return tirx.if_then_else(
            exists, way.packed(weight[out, row, y, x]), tirx.const(way.offset, way.weight)
        )

    return te.compute(cfg.weight_shape, element, name="pack_integer_weight")


# --- meaning --------------------------------------------------------------------------------------


def shifted(data: te.Tensor, shift: int) -> te.Tensor:
    """Pixels as int32, shifted to the range of the instruction's type."""
    return te.compute(
        data.shape, lambda *i: data[i].astype("int32") + tirx.const(shift, "int32"), name="shifted"
    )


def integer_conv_sums(
    cfg: IntegerConvConfig, data: te.Tensor, weight: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """The sums as a plain reduction over packed operands."""
    top, left, bottom, right = cfg.padding
    wide = shifted(data, cfg.way.shift(cfg.dtype))
    if any(cfg.padding):
        wide = topi.nn.pad(wide, (0, 0, top, left, 0), (0, 0, bottom, right, 0), 0)
    blocks = te.reduce_axis((0, cfg.reduce_blocks), "ic")
    inner = te.reduce_axis((0, cfg.data_block), "ii")
    ky, kx = (te.reduce_axis((0, k), n) for k, n in zip(cfg.kernel, ("ky", "kx"), strict=True))
    last, way = cfg.in_blocks - 1, cfg.way

    def element(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
        row = y * cfg.stride[0] + ky * cfg.dilation[0]
        column = x * cfg.stride[1] + kx * cfg.dilation[1]
        # a partly empty last merged group must not read past the input; its weights are zero there
        channel = tirx.min(cfg.first_block(o) + blocks, const(last))
        width = (o % cfg.oc_blocks) * cfg.lanes + lane
        word, of_word = inner // WORD, inner % WORD
        if way.is_matrix:
            place = (width % 2 * 2 + blocks % 2) * WORD + inner
            taken = weight[o // cfg.oc_blocks, blocks // 2, ky, kx, width // 2, place]
        else:
            place = width * way.together + of_word // way.parts
            taken = weight[o // cfg.oc_blocks, blocks, ky, kx, word, of_word % way.parts, place]
        factor = taken.astype("int32") - tirx.const(way.offset, "int32")
        product = wide[n, channel, row, column, inner] * factor
        return te.sum(product, axis=[blocks, ky, kx, inner])

    shape = (cfg.batch, cfg.out_blocks, *cfg.out_size, cfg.lanes)
    return te.compute(shape, element, name="integer_conv2d", attrs=annotation)


# --- the template ---------------------------------------------------------------------------------


def write_integer_conv(
    cfg: IntegerConvConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """The loop nest of one (fused) convolution; ``operands`` are data and weight."""
    cut = integer_blocking(cfg, machine)
    return write_nest(IntegerNest(cfg, cut, operands[0], operands[1], epilogue, machine))


def integer_blocking(cfg: IntegerConvConfig, machine: VectorMachine) -> Blocking:
    """As for float32, with a quarter of the bytes per number; the reduction is never split."""
    cut = blocking(cfg, replace(machine, l2_bytes=4 * machine.l2_bytes))
    return replace(cut, chunk=cfg.reduce_blocks, chunks=1)


class IntegerNest(ConvNest):
    """Multiplies words instead of single channels."""

    cfg: IntegerConvConfig

    def begin(self, _tile: Tile) -> Callable[[Expr, Expr], Expr]:
        """The initial sums of each pixel and vector of channels."""
        return lambda _p, _o: tirx.const(0, "int32")

    def tile(
        self,
        tile: Tile,
        reduce: Sequence[Reduction],
        start: Callable[[Expr, Expr, Expr], Expr] | None,
        finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """Sums in registers: zero, reduction over channel blocks, finish."""
        acc = Accumulators(len(tile.taps), tile.blocks, self.cfg.lanes, dtype="int32")
        begin = self.begin(tile)
        return within(
            acc.buffers,
            [
                *acc.start(lambda p, o, _v: begin(p, o)),
                *self.reduction(tile, reduce, acc),
                *self.finished(acc, finish),
            ],
        )

    def finished(
        self, acc: Accumulators, finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Finish all sums; words without loops, so that stores of neighbours can be packed."""
        return acc.written_out(finish) if self.cfg.way.words else acc.each(finish)

    def reduction(
        self, tile: Tile, reduce: Sequence[Reduction], acc: Accumulators
    ) -> list[tirx.Stmt]:
        """All products of a tile."""
        cfg, way = self.cfg, self.cfg.way
        first_block = cfg.first_block(tile.group * cfg.oc_blocks)
        segments = column_segments(tile.taps)
        fenced = span if cfg.way.words else fenced_span  # fences make LLVM for Hexagon hang
        columns = fenced if cfg.kernel[1] > 1 else span
        low, count = kernel_rows(cfg, tile.y)

        def word(ic: Expr, tap: tuple[Expr, Expr], at: Expr, p: Expr) -> list[Expr]:
            def pixel(channel: Expr | int) -> Expr:
                lane = at * WORD + channel
                place = self.input_place(tile, (p, *tap), first_block + ic, lane)
                return load(self.data, *place)

            return way.pieces(pixel, cfg.dtype, cfg.lanes)

        def products(
            run: ChannelRun, ic: Expr, tap: tuple[Expr, Expr], active: Sequence[int], at: Expr
        ) -> tirx.Stmt:
            def step(part: int, one: Sum, lane: Expr, count: int) -> tirx.Stmt:
                place = way.weights(lane, one.block * cfg.lanes, count)
                weight = load(self.weight, tile.group, ic, *tap, at, part, place)
                piece = word(ic, tap, at, one.pixel)[part]
                return one.set(lane, way.add(one.value(lane), piece, weight, count))

            def every_lane(part: int, one: Sum) -> tirx.Stmt:
                return way.each(cfg.lanes, partial(step, part, one))

            vectors = range(*run.vectors)
            parts = [acc.sums(partial(every_lane, i), active, vectors) for i in range(way.parts)]
            return block([statement for part in parts for statement in part])

        def tap(run: ChannelRun, ic: Expr, ky: Expr, kx: Expr, active: Sequence[int]) -> tirx.Stmt:
            first, end = run.lanes[0] // WORD, -(-run.lanes[1] // WORD)
            ahead = [] if first or way.words else self.weights_ahead(tile, ic, ky, kx)
            words = unrolled(
                first, end - first, lambda at: products(run, ic, (ky, kx), active, at), "word"
            )
            return block([*ahead, words])

        def rows(run: ChannelRun, ic: Expr) -> tirx.Stmt:
            def row(ky: Expr) -> tirx.Stmt:
                return block(
                    [
                        columns(lo, hi - lo, lambda kx, a=active: tap(run, ic, ky, kx, a), "kx")
                        for lo, hi, active in segments
                    ]
                )

            return span(low, count, row, "ky")

        apart = fenced if len(reduce) > 1 else span
        return [
            apart(begin, blocks, lambda ic, run=run: rows(run, ic), "ic")
            for run, begin, blocks in (reduce if segments else [])
        ]

    def runs(self, vectors: int) -> list[ChannelRun] | None:
        """Only whole words; channels of two groups in one word are multiplied by zeros."""
        return integer_runs(self.cfg, vectors)


def integer_runs(cfg: IntegerConvConfig, vectors: int) -> list[ChannelRun] | None:
    """The runs that ``vectors`` of a tile read, in whole words; None if tiles differ."""
    found = channel_runs(cfg, vectors) if cfg.data_block > WORD else None
    if found is None or cfg.data_block != cfg.lanes:
        return None
    inner = [lane for run in found for lane in run.lanes]
    whole = all(lane % WORD == 0 for lane in inner) or cfg.groups == 1
    return found if whole else [whole_run(cfg, vectors)]
