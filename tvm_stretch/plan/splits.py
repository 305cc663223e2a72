"""What a search may ask for: segments in bands of rows, or in shares of channels.

    [{"by": "rows", "start": "max_pool2d", "end": "relu4", "ratios": [3, 2]},
     {"by": "channels", "start": "relu4", "end": "relu6", "ratios": [1, 1], "block": 16}]

Plain data, so that a plan can hold it where there is no compiler. In a plan there is one ratio for
each processor, 0 for those that take no part; passes get the others (`taking_part`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from tvm_stretch.errors import PlanError


@dataclass(frozen=True)
class RowSplit:
    """Everything between two tensors, in bands of rows as high as the ratios say."""

    start: str
    end: str
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class ChannelSplit:
    """Everything between two tensors, in shares of channels.

    Attributes:
        start: the tensor that the segment reads.
        end: the tensor that it computes.
        ratios: share of each branch.
        block: shares are multiples of so many channels, and of the groups of convolutions.
        first: what becomes of convolutions before the last two.
    """

    start: str
    end: str
    ratios: tuple[float, ...]
    block: int = 8
    first: Literal["repeat", "split"] = "repeat"


Split: TypeAlias = RowSplit | ChannelSplit
AnySplit = TypeVar("AnySplit", RowSplit, ChannelSplit, RowSplit | ChannelSplit)

_KINDS: dict[str, type[RowSplit] | type[ChannelSplit]] = {
    "rows": RowSplit,
    "channels": ChannelSplit,
}


def taking_part(split: AnySplit) -> tuple[AnySplit, tuple[int, ...]]:
    """The split without the ratios that are 0, and the places of the others."""
    owners = tuple(index for index, ratio in enumerate(split.ratios) if ratio)
    return replace(split, ratios=tuple(split.ratios[index] for index in owners)), owners


def splits_to_data(splits: Sequence[Split]) -> list[dict[str, Any]]:
    """What JSON can hold of them."""
    names = {kind: name for name, kind in _KINDS.items()}
    return [{"by": names[type(split)], **asdict(split)} for split in splits]


def splits_from_data(data: Any, where: str) -> tuple[Split, ...]:
    """The splits in parsed JSON.

    Raises:
        PlanError: a field is missing, unknown, or of another type.
    """
    if not isinstance(data, list | tuple):
        raise PlanError(f"expected a list for splits of {where}, got {data!r}; correct it")
    return tuple(_split(item, f"splits[{index}] of {where}") for index, item in enumerate(data))


def _split(item: Any, where: str) -> Split:
    kind = _KINDS.get(str(item.get("by"))) if isinstance(item, Mapping) else None
    if kind is None:
        raise PlanError(
            f"expected an object with by = rows or channels for {where}, got {item!r}; correct it"
        )
    fields = {key: value for key, value in item.items() if key != "by"}
    ratios = fields.get("ratios")
    numbers = isinstance(ratios, list | tuple) and all(type(r) in (int, float) for r in ratios)
    names = all(isinstance(fields.get(key), str) for key in ("start", "end"))
    known = set(fields) <= set(kind.__dataclass_fields__)
    block, first = fields.get("block", 8), fields.get("first", "repeat")
    options = type(block) is int and block > 0 and first in ("repeat", "split")
    if not (numbers and names and known and options):
        raise PlanError(
            f"expected start and end as names, ratios as numbers, block as a positive number, "
            f"first as repeat or split, and only fields of {kind.__name__} for {where}, got "
            f"{dict(item)!r}; correct it"
        )
    return kind(**{**fields, "ratios": tuple(fields["ratios"])})
