"""What a band of an attention keeps in the cache while its loop nest runs (`attention_nest.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.loops import scratch

if TYPE_CHECKING:
    from .attention import AttentionConfig


@dataclass(frozen=True, eq=False)
class BandMemory:
    """Some queries of one stack, and the buffers of their scores and sums."""

    cfg: AttentionConfig
    fused: FusedKernel
    by_element: bool
    stack: list[Expr]
    first: Expr
    rows: int

    @cached_property
    def scores(self) -> tirx.Buffer:
        """The scores of a piece, then their exponentials; rows end with whole vectors."""
        return scratch("scores", self.rows, -(-self.cfg.piece // self.cfg.lanes) * self.cfg.lanes)

    @cached_property
    def top(self) -> tirx.Buffer:
        """By row, the greatest scores of each lane, then the greatest of all."""
        return scratch("top", self.rows, self.cfg.lanes)

    @cached_property
    def inverse(self) -> tirx.Buffer:
        """By row, the sum of the exponentials, at last its inverse."""
        return scratch("inverse", self.rows)

    @cached_property
    def earlier(self) -> tirx.Buffer:
        """By row, the greatest score of earlier pieces."""
        return scratch("earlier", self.rows)

    @cached_property
    def factor(self) -> tirx.Buffer:
        """By row, what sums of earlier pieces are multiplied by."""
        return scratch("factor", self.rows)

    @cached_property
    def sums(self) -> tirx.Buffer:
        """By row, the sums of earlier pieces."""
        return scratch("sums", self.rows, self.cfg.v[-1])

    @cached_property
    def shown(self) -> tirx.Buffer:
        """By lane, the greatest mask of some keys; at the end, the least of what rows see best."""
        return scratch("shown", self.cfg.lanes + 1)

    @property
    def skips(self) -> bool:
        """Whether pieces that a mask hides are left out."""
        return self.in_pieces and self.cfg.hides_pieces

    @property
    def packs(self) -> bool:
        """Whether keys and values of a piece are packed, which takes as long as a few rows do."""
        return self.in_pieces and not self.cfg.in_place

    @property
    def in_pieces(self) -> bool:
        """Whether the keys have several pieces."""
        return self.cfg.piece < self.cfg.v[-2]
