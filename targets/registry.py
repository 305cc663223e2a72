"""The kinds of processors, by the words that occur in ``targets``.

    register(ProcessorKind("npu", npu))    ->    ts.compile(network, targets=["llvm", "npu"])
                                                 ts.compile(network, targets=[{"kind": "npu", ...}])

Each file of this folder registers its own kinds. Processors outside of tvm_stretch register theirs
the same way (tutorials/04_adding_a_processor.py).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm.target import Target

from tvm_stretch.base.errors import TargetError
from tvm_stretch.network.codec import target_data

from .processor import Processor

TargetLike: TypeAlias = str | Mapping[str, object] | Target | Processor
Attributes: TypeAlias = Mapping[str, Any]
"""The attributes of a target, including ``kind``."""


@dataclass(frozen=True)
class ProcessorKind:
    """One kind of processors. Its functions receive the attributes of a target."""

    name: str  # the word in ``targets``: a kind of TVM targets, or one that TVM does not know
    # makes the processor that a target describes, beside this CPU. Raises TargetError if an
    # attribute is invalid or this machine lacks the device.
    make: Callable[[Attributes, Processor], Processor]
    # why this machine lacks the target's device; empty if it has it, and for targets of other
    # machines
    why_absent: Callable[[Attributes], str] = lambda _target: ""
    # number of the CPU's cores that its driver uses
    host_cores: Callable[[Attributes], int] = lambda _target: 0
    cost: str = ""  # the sizes of the downloads that it needs, for who lacks it
    by_default: bool = True  # whether it is used if no targets are given
    nickname: str = ""  # another word that people write for it; an error then tells the name
    # another kind, whose word means this one on devices that have this one instead
    stands_for: str = ""
    # makes the processor that a target describes on a device that has described itself
    # (native/machine.cc), beside its CPU. Raises TargetError if the device has none. None for kinds
    # that devices do not describe.
    on_device: Callable[[Attributes, Mapping[str, Any], Processor], Processor] | None = None


_KINDS: dict[str, ProcessorKind] = {}


def register(kind: ProcessorKind) -> None:
    """Make a kind of processors known."""
    if kind.name in _KINDS:
        raise TargetError(
            f"expected a new name for a kind of processors, got {kind.name!r} again; choose another"
        )
    _KINDS[kind.name] = kind


def registered() -> tuple[str, ...]:
    """Names of all kinds."""
    return tuple(_KINDS)


def used_unasked() -> tuple[str, ...]:
    """Names of the kinds that are used if no targets are given."""
    return tuple(name for name, kind in _KINDS.items() if kind.by_default)


def nicknames() -> dict[str, str]:
    """Names of kinds by their nicknames."""
    return {kind.nickname: name for name, kind in _KINDS.items() if kind.nickname}


def stand_ins(name: str) -> tuple[str, ...]:
    """Names of the kinds that some devices have instead of a kind."""
    return tuple(kind.name for kind in _KINDS.values() if kind.stands_for == name)


def kind_of(target: Attributes) -> ProcessorKind:
    """The kind of processors that a target names."""
    kind = target["kind"]
    if kind not in _KINDS:
        raise TargetError(
            f"expected target {_names()}, got {kind!r}; choose one of these, or register its kind "
            "first (tvm_stretch.targets.registry)"
        )
    return _KINDS[kind]


def attributes(item: str | Attributes | Target) -> Attributes:
    """The attributes of a target in any notation.

    Registered kinds read their attributes themselves; TVM resolves tags and everything else.

    Raises:
        TargetError: it is no target.
    """
    if isinstance(item, str) and item in _KINDS:
        return {"kind": item}
    if isinstance(item, Mapping) and item.get("kind") in [*_KINDS]:  # it may be a list
        return item
    return target_data(tvm_target(item))


def tvm_target(item: str | Attributes | Target) -> Target:
    """The target as TVM's own object."""
    if not isinstance(item, Target):
        _refuse_foreign(item)
    try:
        return Target(dict(item) if isinstance(item, Mapping) else item)
    except (ValueError, TypeError, RuntimeError) as error:
        kind = str(item.get("kind", "") if isinstance(item, Mapping) else item)
        named = [name for name, entry in _KINDS.items() if entry.nickname == kind.lower() != ""]
        alike = named or difflib.get_close_matches(kind.lower(), _KINDS, 1)
        if alike and kind not in _KINDS:
            raise TargetError(
                f"expected target {_names()}, got {kind!r}; write {alike[0]!r}"
            ) from error
        raise TargetError(
            f"expected a TVM target for targets, got {item!r}; "
            f"use a kind such as 'llvm', a dict, a tag or a Target ({_last_line(error)})"
        ) from error


def _refuse_foreign(item: str | Attributes) -> None:
    """Refuse TVM's kinds that are not registered: TVM would search for their drivers, and warn."""
    target: Any = item
    if isinstance(item, str) and item.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):  # for invalid JSON TVM has an error message
            target = json.loads(item)
    kind = target.get("kind") if isinstance(target, Mapping) else target
    if isinstance(kind, str) and kind not in _KINDS and kind in Target.list_kinds():
        kind_of({"kind": kind})


def _names() -> str:
    *others, last = sorted(_KINDS)
    return f"{', '.join(others)} or {last}"


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
