"""Runs of output rows whose windows contain the same kernel rows inside the image.

3x3, padding 1, 14 rows:   row 0: kernel rows 1 and 2;   1 to 12: all three;   13: 0 and 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conv import ConvConfig
    from .window import WindowConfig

MOST_RUNS = 3
"""Above, inside and below the image; more runs make too much code."""


@dataclass(frozen=True)
class RowRun:
    """Output rows from ``start`` to ``end`` with the same kernel rows in the image."""

    start: int
    end: int
    low: int
    count: int


def row_runs(cfg: WindowConfig | ConvConfig) -> list[RowRun]:
    """All output rows."""
    step, runs = cfg.dilation[0], list[RowRun]()
    for y in range(cfg.out_size[0]):
        top = y * cfg.stride[0] - cfg.padding[0]
        taps = [k for k in range(cfg.kernel[0]) if 0 <= top + k * step < cfg.in_size[0]]
        low, count = (taps[0], len(taps)) if taps else (0, 0)
        start = y
        if runs and (runs[-1].low, runs[-1].count) == (low, count):
            start = runs.pop().start
        runs.append(RowRun(start, y + 1, low, count))
    return runs
