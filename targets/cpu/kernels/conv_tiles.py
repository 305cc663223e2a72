"""Cut the image of a direct convolution into bands of rows, and rows into register tiles.

    28 pixels, at most 6 in a tile  ->  6 (left border), 6 + 6, 5, 5 (right border)

Everything is known before the loop nest is written, so tiles do not test their position.

A long single row, as in networks of speech, is computed in pieces:

    for piece of the row:                       # of an image: for band of rows
      for oc_group:                             # parallel
        for tile of the piece:  acc = 0; for ic_block, kx: acc += data * weight; out = acc

Each output group reads the inputs of all pixels that it computes. The inputs of a whole row, 13 MB
in wav2vec2's second layer, come from memory, in short runs of every channel block; a piece's inputs
stay in a cache. So sums need no memory between chunks of the reduction, which weights of one group
would ask for, and that layer takes 0.42 of the time (AMD Zen 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.channel_runs import ChannelRun
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    Index,
    TileRun,
    block,
    const,
    loop,
    span,
    tile_runs,
)
from tvm_stretch.targets.kernels.machine import VectorMachine

if TYPE_CHECKING:
    from .conv import ConvConfig
    from .conv_nest import ConvNest

Taps: TypeAlias = tuple[range, ...]
"""For each pixel of a tile the range of kernel columns that lie inside the image."""


def row_tiles(cfg: ConvConfig, width: int) -> list[TileRun[Taps]]:
    """Cut a row of ``width`` output pixels into runs of tiles with the same taps."""

    def taps(start: int, count: int) -> Taps:
        if cfg.pointwise:  # rows are joined
            return (range(1),) * count
        return tuple(cfg.taps(1, start + p) for p in range(count))

    return tile_runs(width, cfg.pixels, taps)


@dataclass(frozen=True)
class Blocking:
    """The blocking of a nest, chosen so that repeated reads hit the cache.

    ``rows`` rows of ``width`` pixels; the input of a band of ``band`` rows stays in the
    second-level cache while all output groups are computed; the reduction runs in ``chunks`` of
    ``chunk`` channel blocks so that the weights of one group stay there too.
    """

    rows: int
    width: int
    band: int
    chunk: int
    chunks: int
    # pixels of such a row, and of a row of the image, where rows are joined and a call may compute
    # only some of them
    joined: tuple[int, int] = (1, 1)

    def rows_of(self, band: Expr) -> tuple[Expr, int | Expr]:
        """The first row of a band, and the number of its rows."""
        first = band * self.band
        if self.rows % self.band == 0:
            return first, self.band
        return first, tirx.min(const(self.band), const(self.rows) - first)


def _cuts(area: int, least: int) -> list[int]:
    """The numbers of equal rows into which an image of ``area`` pixels can be cut."""
    return [r for r in range(1, area + 1) if area % r == 0 and (r == 1 or area // r >= least)]


def blocking(cfg: ConvConfig, machine: VectorMachine) -> Blocking:
    """Bands and chunks that fit the caches of ``machine``."""
    height, width = cfg.out_size
    channels = cfg.reduce_blocks * cfg.data_block
    weights = cfg.oc_blocks * cfg.lanes * channels * cfg.kernel[0] * cfg.kernel[1] * 4
    chunk = -(-cfg.reduce_blocks // -(-weights // (machine.l2_bytes // 4)))
    chunks = -(-cfg.reduce_blocks // chunk)
    in_row = channels * 4 * (1 if cfg.pointwise else cfg.in_size[1] * cfg.stride[0])
    budget = machine.l2_bytes * 3 // 4
    if cfg.pointwise:
        cuts = _cuts(height * width, 8 * cfg.pixels)
        fits = [r for r in cuts if height * width // r * in_row <= budget] or cuts[-1:]
        even = [r for r in fits if cfg.out_groups * r % machine.threads == 0] or fits
        return Blocking(even[0], height * width // even[0], 1, chunk, chunks)
    band = max(1, min(height, budget // in_row))
    if chunks > 1:
        band = max(1, min(band, 2**15 // (width * cfg.oc_blocks * cfg.lanes * 4)))
    return Blocking(height, width, -(-height // -(-height // band)), chunk, chunks)


def cut_for_parts(cfg: ConvConfig, cut: Blocking) -> Blocking:
    """About the same bands for calls that compute a rectangle.

    Long rows of the image are not joined; joined ones are as short as register tiles allow.
    """
    if not cfg.pointwise:
        return cut
    height, width = cfg.out_size
    band = -(-height // cut.rows)
    if width >= 2 * cfg.pixels:
        return replace(cut, rows=height, width=width, band=band)
    rows = max(r for r in _cuts(height * width, 8 * cfg.pixels) if r % cut.rows == 0)
    joined = height * width // rows, width
    return replace(cut, rows=rows, width=joined[0], band=rows // cut.rows, joined=joined)


def column_segments(taps: Sequence[range]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Ranges of kernel columns with the same active pixels.

    >>> column_segments([range(1, 3), range(3), range(2)])
    [(0, 1, (1, 2)), (1, 2, (0, 1, 2)), (2, 3, (0, 1))]
    """
    edges = sorted({edge for tap in taps for edge in (tap.start, tap.stop)})
    segments = [
        (lo, hi, tuple(p for p, tap in enumerate(taps) if tap.start <= lo and hi <= tap.stop))
        for lo, hi in pairwise(edges)
    ]
    return [segment for segment in segments if segment[2]]


@dataclass(frozen=True)
class Tile:
    """The position of a register tile (image, output group, row, first pixel) and its taps.

    ``turn`` numbers the tiles that read the same weights.
    """

    n: Expr
    group: Expr
    y: Expr
    x: Expr
    blocks: int
    taps: Taps
    turn: Expr


Reduction = tuple[ChannelRun, Expr, int | Expr]
"""Lanes and vectors, the first block of input channels, and the number of blocks."""


Tap = tuple[Expr, Expr, Sequence[int]]
"""Row and column of a kernel, and the pixels of a tile for which it lies inside the image."""

RunOfTiles = Callable[[Index, Callable[[Expr], Tile]], tirx.Stmt]
"""Statements of consecutive tiles with the same work."""

RowOfTiles = Callable[[Expr, RunOfTiles], tirx.Stmt]
"""Statements of all tiles of a row."""


_LEAST = 4
"""Tiles of a piece, which share the weights of a group."""


def tiles_of_piece(nest: ConvNest) -> int:
    """The number of tiles of a piece; 0 if the row is short, or there are several."""
    cfg, cut = nest.cfg, nest.cut
    if cfg.pointwise or cut.rows > 1 or nest.part is not None:
        return 0
    channels = cfg.reduce_blocks * cfg.data_block
    tile_bytes = channels * 4 * cfg.stride[1] * cfg.pixels
    # Measured: 0.5 to 3 times the second-level cache are about as fast.
    tiles = max(_LEAST, nest.machine.l2_bytes * 3 // 2 // tile_bytes)
    return tiles if tiles * cfg.pixels < cut.width else 0


def write_in_pieces(nest: ConvNest, tiles: int) -> tirx.Stmt:
    """All pieces of ``tiles`` tiles, and the rests of runs that are not divisible by that."""
    whole = replace(nest.cut, chunks=1, chunk=nest.cfg.reduce_blocks)
    nest = replace(nest, cut=whole)

    def image(n: Expr) -> tirx.Stmt:
        written = []
        for run in row_tiles(nest.cfg, nest.cut.width):
            pieces, rest = divmod(run.count, tiles)
            if rest:
                written.append(_pieces(nest, n, run, pieces * tiles, 1, rest))
            if pieces:
                written.append(_pieces(nest, n, run, 0, pieces, tiles))
        return block(*written)

    return loop(nest.cfg.batch, image, "n")


def _pieces(
    nest: ConvNest, n: Expr, run: TileRun[Taps], first: int, pieces: int, tiles: int
) -> tirx.Stmt:
    """Equal pieces of a run of tiles, from tile ``first`` on, for all output groups."""
    cfg = nest.cfg
    full, tail = divmod(cfg.out_blocks, cfg.oc_blocks)

    def group(piece: Expr, g: Expr, blocks: int) -> tirx.Stmt:
        def tile_at(t: Expr) -> Tile:
            x = (piece * tiles + first + t) * run.width + run.start
            return Tile(n, g, const(0), x, blocks, run.work, t)

        return nest.run(tiles, tile_at)

    def groups(first: int, count: int, blocks: int) -> tirx.Stmt:
        if nest.machine.threads > 1:
            return loop(
                count * pieces,
                lambda t: group(t // count, t % count + first, blocks),
                "task",
                PARALLEL,
            )
        return loop(
            pieces, lambda p: span(first, count, lambda g: group(p, g, blocks), "g"), "piece"
        )

    written = [groups(0, full, cfg.oc_blocks)] if full else []
    return block(*written, *([groups(full, 1, tail)] if tail else []))
