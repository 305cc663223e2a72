"""From the targets that a user gives to the processors that the compiler knows."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tvm.target import Target
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.opencl import opencl_processor
from tvm_stretch.targets.opencl_device import device_of, find_device, names_device
from tvm_stretch.targets.processor import Processor

from tvm_stretch.errors import InputError, TargetError

TargetLike: TypeAlias = str | Mapping[str, Any] | Target | Processor


def drop_absent(
    targets: Sequence[TargetLike] | TargetLike,
) -> tuple[Sequence[TargetLike], str]:
    """The targets without those for a device that this machine lacks, and why they are missing.

    All of them where nothing else would be left; ``make_processors`` then says what to install.
    """
    listed = _as_list(targets)
    left = [item for item in listed if not _is_local_opencl(_parse(item))]
    try:
        if left and len(left) < len(listed):
            find_device()
    except TargetError as error:
        return left, f"opencl left out: {error}"
    return listed, ""


def make_processors(
    targets: Sequence[TargetLike] | TargetLike, cpu_threads: int | None
) -> tuple[list[Processor], list[Processor]]:
    """The processors of these targets.

    Returns:
        All processors of the model: the CPU, which is always there for work done at load, and the
        others. Then those that operators may be placed on, in the order of `targets`.

    Raises:
        TargetError: a target is unknown, this machine lacks its device, or the same processor is
            named twice.
        InputError: `cpu_threads` is no number of cores.
    """
    listed = [_parse(item) for item in _as_list(targets)]
    if not listed:
        raise TargetError("expected at least one target, got none; name one, such as 'llvm'")
    local = find_device() if any(map(_is_local_opencl, listed)) else None
    taken = local.compute_units if local is not None and local.type == "cpu" else 0
    threads = _thread_count(cpu_threads, taken)
    host_target = next((t for t in listed if _is_host(t)), Target("llvm"))
    given = [p for p in listed if isinstance(p, Processor) and p.kind == "cpu"]
    host = given[0] if given else cpu_processor(host_target, threads)
    placeable: list[Processor] = []
    for item in listed:
        if isinstance(item, Processor):
            placeable.append(item)
        elif _is_host(item):
            placeable.append(host)
        elif item.kind.name == "opencl":
            placeable.append(opencl_processor(item, host, device_of(item)))
        else:
            raise TargetError(
                f"expected target llvm or opencl, got {item.kind.name!r}; choose one of these"
            )
    names = [processor.name for processor in placeable]
    if len(set(names)) != len(names):
        raise TargetError(
            f"expected every processor once in targets, got {', '.join(names)}; remove one"
        )
    return [host, *(p for p in placeable if p is not host)], placeable


def _as_list(targets: Sequence[TargetLike] | TargetLike) -> Sequence[TargetLike]:
    return [targets] if isinstance(targets, str | Mapping | Target | Processor) else targets


def _is_local_opencl(item: Target | Processor) -> bool:
    return isinstance(item, Target) and item.kind.name == "opencl" and not names_device(item)


def _is_host(item: Target | Processor) -> bool:
    return isinstance(item, Target) and item.kind.name == "llvm"


def _parse(item: TargetLike) -> Target | Processor:
    if isinstance(item, Processor):
        return item
    try:
        return Target(item)
    except (ValueError, TypeError, RuntimeError) as error:
        kind = str(item.get("kind", "") if isinstance(item, Mapping) else item)
        alike = difflib.get_close_matches(kind.lower(), ("llvm", "opencl"), 1)
        if alike:
            raise TargetError(
                f"expected target llvm or opencl, got {kind!r}; write {alike[0]!r}"
            ) from error
        raise TargetError(
            f"expected a TVM target for targets, got {item!r}; "
            f"use a kind such as 'llvm', a dict, a tag or a Target ({_first_line(error)})"
        ) from error


def _thread_count(requested: int | None, taken: int) -> int:
    """Cores for the CPU's kernels; a driver that runs on the host's cores has `taken` some.

    TVM runs no more threads than its variable TVM_NUM_THREADS says.
    """
    available = len(os.sched_getaffinity(0))
    if requested is None:
        limit = os.environ.get("TVM_NUM_THREADS", "")
        return max(1, min(available - taken, int(limit) if limit.isdigit() else available))
    if not isinstance(requested, int) or requested < 1:
        raise InputError(
            f"expected a positive number for cpu_threads, got {requested!r}; "
            f"this process may use {available} cores"
        )
    return requested


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
