"""Convolutions of long single rows, as in networks of speech: the row is computed in pieces.

    for piece of the row:                       # of an image: for band of rows
      for oc_group:                             # parallel
        for tile of the piece:  acc = 0; for ic_block, kx: acc += data * weight; out = acc

Each output group reads the inputs of all pixels that it computes. The inputs of a whole row, 13 MB
in wav2vec2's second layer, come from memory, in short runs of every channel block; a piece's inputs
stay in a cache. So sums need no memory between chunks of the reduction, which weights of one group
would ask for, and that layer takes 0.42 of the time (AMD Zen 3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.loops import PARALLEL, TileRun, block, const, loop, span

from .conv_tiles import Taps, Tile, row_tiles

if TYPE_CHECKING:
    from .conv_nest import ConvNest

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
        return block(written)

    return loop(nest.cfg.batch, image, "n")


def _pieces(
    nest: ConvNest, n: Expr, run: TileRun[Taps], first: int, pieces: int, tiles: int
) -> tirx.Stmt:
    """Equal pieces of a run of tiles, from tile ``first`` on, for all output groups."""
    cfg = nest.cfg
    full, tail = divmod(cfg.out_blocks, cfg.oc_blocks)

    def group(piece: Expr, g: Expr, blocks: int) -> tirx.Stmt:
        def at(t: Expr) -> Tile:
            x = (piece * tiles + first + t) * run.width + run.start
            return Tile(n, g, const(0), x, blocks, run.work, t)

        return nest.run(tiles, at)

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
    return block([*written, *([groups(full, 1, tail)] if tail else [])])
