"""Cut the image of a direct convolution into bands of rows, and rows into register tiles.

    28 pixels, at most 6 in a tile  ->  6 (left border), 6 + 6, 5, 5 (right border)

Everything is known before the loop nest is written, so tiles do not test their position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.channel_runs import ChannelRun
from tvm_stretch.targets.kernels.loops import Index, TileRun, const, tile_runs
from tvm_stretch.targets.kernels.machine import VectorMachine

if TYPE_CHECKING:
    from .conv import ConvConfig

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
