"""Splits that a search may request: segments in bands of rows, or in shares of channels.

    [{"by": "rows", "start": "max_pool2d", "end": "relu4", "ratios": [3, 2]},
     {"by": "channels", "start": "relu4", "end": "relu6", "ratios": [1, 1], "block": 16}]

They are plain data, so that a plan can hold them without a compiler. In a plan there is one ratio
per processor, 0 for processors that take no part; passes receive the other ratios (`taking_part`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar


@dataclass(frozen=True)
class RowSplit:
    """All operators between two tensors, in bands of rows in the given ratios."""

    by: ClassVar[str] = "rows"

    start: str
    end: str
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class ChannelSplit:
    """All operators between two tensors, in shares of channels."""

    by: ClassVar[str] = "channels"

    start: str  # the tensor that the segment reads
    end: str  # the tensor that the segment computes
    ratios: tuple[float, ...]  # share of each branch
    block: int = 8  # shares are multiples of this number of channels, and of convolutions' groups
    # whether branches repeat or split the convolutions before the last two
    first: Literal["repeat", "split"] = "repeat"


Split: TypeAlias = RowSplit | ChannelSplit
AnySplit = TypeVar("AnySplit", RowSplit, ChannelSplit, RowSplit | ChannelSplit)


def taking_part(split: AnySplit) -> tuple[AnySplit, tuple[int, ...]]:
    """The split without ratios of 0, and the positions of the other ratios."""
    owners = tuple(index for index, ratio in enumerate(split.ratios) if ratio)
    return replace(split, ratios=tuple(split.ratios[index] for index in owners)), owners


def splits_to_data(splits: Sequence[Split]) -> list[dict[str, Any]]:
    """The splits as data for JSON."""
    return [{"by": split.by, **asdict(split)} for split in splits]
