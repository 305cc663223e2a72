"""Splits that a search may request: segments in bands of rows, or in shares of channels.

    [{"by": "rows", "start": "max_pool2d", "end": "relu4", "ratios": [3, 2]},
     {"by": "channels", "start": "relu4", "end": "relu6", "ratios": [1, 1], "block": 16}]

They are plain data, so that a plan can hold them without a compiler. In a plan there is one ratio
per processor, 0 for processors that take no part; passes receive the other ratios (`taking_part`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from tvm_stretch.errors import PlanError


@dataclass(frozen=True)
class RowSplit:
    """All operators between two tensors, in bands of rows in the given ratios."""

    start: str
    end: str
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class ChannelSplit:
    """All operators between two tensors, in shares of channels."""

    start: str  # the tensor that the segment reads
    end: str  # the tensor that the segment computes
    ratios: tuple[float, ...]  # share of each branch
    block: int = 8  # shares are multiples of this number of channels, and of convolutions' groups
    # whether branches repeat or split the convolutions before the last two
    first: Literal["repeat", "split"] = "repeat"


Split: TypeAlias = RowSplit | ChannelSplit
AnySplit = TypeVar("AnySplit", RowSplit, ChannelSplit, RowSplit | ChannelSplit)

_KINDS: dict[str, type[RowSplit] | type[ChannelSplit]] = {
    "rows": RowSplit,
    "channels": ChannelSplit,
}


def taking_part(split: AnySplit) -> tuple[AnySplit, tuple[int, ...]]:
    """The split without ratios of 0, and the positions of the other ratios."""
    owners = tuple(index for index, ratio in enumerate(split.ratios) if ratio)
    return replace(split, ratios=tuple(split.ratios[index] for index in owners)), owners


def splits_to_data(splits: Sequence[Split]) -> list[dict[str, Any]]:
    """The splits as data for JSON."""
    names = {kind: name for name, kind in _KINDS.items()}
    return [{"by": names[type(split)], **asdict(split)} for split in splits]


def splits_from_data(data: Any, where: str) -> tuple[Split, ...]:
    """The splits in parsed JSON."""
    if not isinstance(data, list | tuple):
        raise PlanError(f"expected a list for splits of {where}, got {data!r}; correct it")
    return tuple(_split(item, f"splits[{index}] of {where}") for index, item in enumerate(data))


def _split(item: Any, where: str) -> Split:
    kind = _KINDS.get(str(item.get("by"))) if isinstance(item, Mapping) else None
    if kind is None:
        raise PlanError(
            f"expected an object with by = rows or channels for {where}, got {item!r}; correct it"
        )
    given = {key: value for key, value in item.items() if key != "by"}
    known = kind.__dataclass_fields__
    if not set(given) <= set(known):
        raise PlanError(
            f"expected only the fields by, {', '.join(known)} for {where}, got {list(item)}; "
            "remove the others"
        )
    for key, (expected, fits) in _FIELDS.items():
        value = given.get(key, getattr(kind, key, None))  # defaults of fields are class attributes
        if key in known and not fits(value):
            raise PlanError(f"expected {expected} for {key} of {where}, got {value!r}; correct it")
    return kind(**{**given, "ratios": tuple(given["ratios"])})


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(ratio) in (int, float) for ratio in value)


_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "start": ("the name of a tensor", _is_name),
    "end": ("the name of a tensor", _is_name),
    "ratios": ("a list of numbers", _are_numbers),
    "block": ("a positive number", lambda value: type(value) is int and value > 0),
    "first": ("repeat or split", lambda value: value in ("repeat", "split")),
}
"""For each field of a split, the expected value in words and as a check."""
