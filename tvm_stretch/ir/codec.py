"""Dataclasses as text in attributes of Relax and annotations of PrimFuncs, and back.

    Rounding("uint8", 3, 0, 255)   <->   {"dtype": "uint8", "zero": 3, "low": 0, "high": 255}

TVM's attributes hold strings, numbers and lists of them. JSON has no tuples, so types of fields
decide what its lists become.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import tvm

T = TypeVar("T")


def to_text(value: object) -> str:
    """The text of a dataclass, or of dictionaries and tuples of dataclasses."""
    return json.dumps(value, default=asdict)


def from_text(kind: type[T], text: str | bytes) -> T:
    """The value that `to_text` wrote; ``kind`` is its type, such as ``tuple[int, str]``."""
    return _read(kind, json.loads(text))


def target_data(target: tvm.target.Target) -> dict[str, Any]:
    """The attributes of a target, from which ``Target`` makes the same one."""
    data: dict[str, Any] = json.loads(str(target))
    return data


def _read(kind: Any, data: Any) -> Any:
    arguments = get_args(kind)
    if get_origin(kind) is UnionType:  # an optional value
        return None if data is None else _read(arguments[0], data)
    if get_origin(kind) is tuple:
        kinds = arguments[:1] * len(data) if arguments[-1] is ... else arguments
        return tuple(map(_read, kinds, data))
    if get_origin(kind) is dict:
        return {key: _read(arguments[1], value) for key, value in data.items()}
    if not hasattr(kind, "__dataclass_fields__"):
        return data
    types = _types(kind)
    return kind(**{name: _read(types[name], value) for name, value in data.items()})


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
