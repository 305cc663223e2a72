"""Dataclasses as text in attributes of Relax and annotations of PrimFuncs, and back.

    Rounding("uint8", 3, 0, 255)   <->   {"dtype": "uint8", "zero": 3, "low": 0, "high": 255}

TVM's attributes hold strings, numbers and lists of them. JSON has no tuples, so types of fields
decide what its lists become.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeVar

import tvm

from tvm_stretch.base.errors import ModelError
from tvm_stretch.base.formats import Format

T = TypeVar("T")

_TEXTS = Format("tvm_stretch.text", 1, "an attribute", ModelError, "compile the network again")


def to_text(value: object) -> str:
    """The text of a dataclass, or of dictionaries and tuples of dataclasses."""
    return json.dumps(value, default=asdict)


def from_text(kind: type[T], text: str | bytes) -> T:
    """The value that `to_text` wrote; ``kind`` is its type, such as ``tuple[int, str]``."""
    value: T = _TEXTS.value(kind, json.loads(text), "content", "an attribute")
    return value


def target_data(target: tvm.target.Target) -> dict[str, Any]:
    """The attributes of a target, from which ``Target`` makes the same one."""
    data: dict[str, Any] = json.loads(str(target))
    return data
