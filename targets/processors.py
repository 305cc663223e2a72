"""Make processors from the targets that a user gives."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm.target import Target

from tvm_stretch import targets as _targets
from tvm_stretch.base.errors import InputError, StretchError, TargetError
from tvm_stretch.base.words import counted
from tvm_stretch.targets.cpu.cpu import HOST, cpu_processor
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.registry import (
    Attributes,
    TargetLike,
    attributes,
    kind_of,
    registered,
    tvm_target,
)

_MOST_THREADS = 1024
"""Most threads of the executor (graph.cc)."""

# Every folder of a processor registers its kinds in the files at its top.
for _folder in pkgutil.iter_modules(_targets.__path__, f"{_targets.__name__}."):
    if _folder.ispkg and not _folder.name.endswith(".kernels"):
        for _file in pkgutil.iter_modules(importlib.import_module(_folder.name).__path__):
            importlib.import_module(f"{_folder.name}.{_file.name}")


def drop_absent(
    targets: Sequence[TargetLike] | TargetLike,
) -> tuple[Sequence[TargetLike], str]:
    """The targets whose device this machine has, and why the others are missing.

    If none would be left, all are returned, and ``make_processors`` raises what to install.
    """
    listed = _as_list(targets)
    reasons = [_why_absent(_parse(item)) for item in listed]
    left = [item for item, reason in zip(listed, reasons, strict=True) if not reason]
    return (left, "; ".join(filter(None, reasons))) if left else (listed, "")


def describe_targets(targets: Sequence[TargetLike] | TargetLike | None) -> str:
    """The content of targets as text; empty if one of them is a user's `Processor`."""
    listed = [_parse(item) for item in _as_list(HOST if targets is None else targets)]
    described = [dict(item) for item in listed if not isinstance(item, Processor)]
    return repr(described) if len(described) == len(listed) else ""


def make_processors(
    targets: Sequence[TargetLike] | TargetLike, cpu_threads: int | None
) -> tuple[list[Processor], list[Processor]]:
    """The processors of these targets.

    Returns:
        All processors of the model: the CPU, which always runs the work at load, and the others.
        Then the processors on which operators may be placed, in the order of `targets`.

    Raises:
        TargetError: a target is unknown, this machine lacks its device, or the same processor is
            named twice.
        InputError: `cpu_threads` is no number of cores.
    """
    listed = [_parse(item) for item in _as_list(targets)]
    if not listed:
        raise TargetError("expected at least one target, got none; name one, such as 'llvm'")
    host = _host(listed, cpu_threads)
    placeable = [
        item if isinstance(item, Processor) else kind_of(item).make(item, host) for item in listed
    ]
    names = [processor.name for processor in placeable]
    if len(set(names)) != len(names):
        raise TargetError(
            f"expected every processor once in targets, got {', '.join(names)}; remove one"
        )
    return [host, *(p for p in placeable if p is not host)], placeable


def kinds() -> list[str]:
    """The words that may occur in ``targets``."""
    return sorted(registered())


def processors_here() -> Iterator[tuple[str, Processor | StretchError]]:
    """What each kind means on this machine, or why it is absent."""
    for kind in kinds():
        try:
            yield kind, make_processors(kind, None)[1][0]
        except StretchError as error:
            yield kind, error


def describe(processor: Processor) -> str:
    """A processor in words: ``znver3, 2 threads, 8 float lanes``."""
    name = processor.hardware.driver or processor.target.attrs.get("mcpu", processor.kind)
    lanes = processor.machine.lanes
    return f"{name}, {counted(processor.threads, 'thread')}, {counted(lanes, 'float lane')}"


def _as_list(targets: Any) -> Sequence[TargetLike]:
    if isinstance(targets, str | Mapping | Target | Processor):
        return [targets]
    if not isinstance(targets, Sequence):
        raise TargetError(
            f"expected a target or a list of them for targets, got {targets!r}; name them, such as "
            "['llvm', 'opencl']"
        )
    return targets


def _parse(item: TargetLike) -> Attributes | Processor:
    return item if isinstance(item, Processor) else attributes(item)


def _why_absent(item: Attributes | Processor) -> str:
    if isinstance(item, Processor):
        return ""
    reason = kind_of(item).why_absent(item)
    return reason and f"{item['kind']} left out: {reason}"


def _host(listed: Sequence[Attributes | Processor], cpu_threads: int | None) -> Processor:
    """The CPU that a target or `Processor` describes, or this machine's."""
    given = [item for item in listed if isinstance(item, Processor)]
    described = [item for item in listed if not isinstance(item, Processor)]
    taken = sum(kind_of(item).host_cores(item) for item in described)
    threads = _thread_count(cpu_threads, taken)
    for processor in given:
        if processor.is_host:
            return processor
    own = next((item for item in described if item["kind"] == HOST), {"kind": HOST})
    return cpu_processor(tvm_target(own), threads)


def _thread_count(requested: int | None, taken: int) -> int:
    """Cores for the CPU's kernels; drivers that run on the host's cores use `taken` others.

    TVM uses at most TVM_NUM_THREADS threads.
    """
    available = len(os.sched_getaffinity(0))
    if requested is not None:
        return require_threads(requested)
    limit = os.environ.get("TVM_NUM_THREADS") or str(available)
    if not limit.isdecimal() or int(limit) < 1:
        raise InputError(
            f"expected a positive number for TVM_NUM_THREADS, got {limit!r}; unset it, or give "
            "cpu_threads"
        )
    return max(1, min(available - taken, int(limit)))


def require_threads(requested: int) -> int:
    """The number of cores, if it is one."""
    is_number = isinstance(requested, int) and not isinstance(requested, bool)
    if not is_number or not 1 <= requested <= _MOST_THREADS:
        raise InputError(
            f"expected a number from 1 to {_MOST_THREADS} for cpu_threads, got {requested!r}; "
            f"this process may use {len(os.sched_getaffinity(0))} cores"
        )
    return requested
