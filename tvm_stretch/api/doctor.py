"""What of this machine works with tvm_stretch, and what a fix costs: `tvm-stretch doctor`.

    ok       opencl   pthread-znver3 (3.1), 1 thread, 8 float lanes
    note     OpenCL   pthread-znver3; it computes on the CPU's own cores ..
    missing  adb      expected adb in $PATH ..; install Android's platform tools ..; 0.2 MB

The processors are those of `tvm-stretch devices`; the machine describes itself as a phone does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import tvm

from tvm_stretch.base.errors import StretchError
from tvm_stretch.base.files import named_folder, why_not_trusted
from tvm_stretch.base.words import counted
from tvm_stretch.phone.adb import find_adb
from tvm_stretch.plan.search.remembered import is_busy
from tvm_stretch.run.linking import ANDROID_API, clang_of_ndk
from tvm_stretch.targets.opencl.opencl import oddities
from tvm_stretch.targets.processors import describe, processors_here
from tvm_stretch.targets.registry import kind_of

_GIB = 1 << 30
_LITTLE_MEMORY, _LITTLE_DISK = 4 * _GIB, 2 * _GIB
"""A compile of a large network with search needs up to 4 GiB; torch and its wheels 2 GiB."""


@dataclass(frozen=True)
class Finding:
    """One line: a thing, its state, and the reason or the details."""

    # ``ok``, ``note`` for what makes runs slower or measurements worse, ``missing`` for what does
    # not work without it
    state: Literal["ok", "note", "missing"]
    what: str  # the thing
    found: str  # details, or the error that says what to do

    def __str__(self) -> str:
        """The line."""
        return f"{self.state:9}{self.what:14}{self.found}"


def examine() -> list[Finding]:
    """Everything that was found out about this machine; it takes seconds, and changes nothing."""
    machine = json.loads(tvm.get_global_func("tvm_stretch.describe_machine")())
    return [
        *_packages(),
        *_cores(machine),
        *_processors(),
        *_drivers(machine),
        *_tools(),
        *_room(machine),
    ]


def _packages() -> Iterator[Finding]:
    names = ("tvm-stretch", "apache-tvm", "apache-tvm-ffi")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    yield Finding("ok", "packages", f"Python {platform.python_version()}, {versions}")


def _cores(machine: Mapping[str, Any]) -> Iterator[Finding]:
    """The CPU, its clocks, and who else uses it."""
    cores = counted(len(os.sched_getaffinity(0)), "core")
    yield Finding("ok", "cpu", f"{machine['name']}, {cores}: {', '.join(machine['features'])}")
    governors = {
        text.strip()
        for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
        if (text := _text_of(path))
    }
    if slow := governors - {"performance"}:
        yield Finding(
            "note",
            "clocks",
            f"the governor {', '.join(sorted(slow))} changes them, so measured times scatter; "
            "cpupower frequency-set -g performance keeps them",
        )
    elif not governors:
        yield Finding("note", "clocks", "this system hides them, as virtual machines do")
    else:
        yield Finding("ok", "clocks", "the governor keeps them at the most")
    load = f"{os.getloadavg()[0]:.1f} threads wanted to run in the last minute"
    if is_busy():
        load += "; plans that are measured now are worse: end other programs first"
    yield Finding("note" if is_busy() else "ok", "load", load)


def _processors() -> Iterator[Finding]:
    for kind, processor in processors_here():
        if isinstance(processor, StretchError):
            cost = kind_of({"kind": kind}).cost
            text = f"{processor}; {cost}" if cost else str(processor)
            yield Finding("missing" if cost else "note", kind, text)
        else:
            yield Finding("ok", kind, describe(processor))


def _drivers(machine: Mapping[str, Any]) -> Iterator[Finding]:
    """Oddities of OpenCL devices."""
    for name, oddity in oddities(machine):
        yield Finding("note" if oddity else "ok", "OpenCL", "; ".join([name, *oddity]))


def _tools() -> Iterator[Finding]:
    has_zig = importlib.util.find_spec("ziglang") is not None
    checks: dict[str, tuple[Callable[[], object], str]] = {
        "adb": (find_adb, "phones on the cable; 0.2 MB"),
        "NDK": (
            lambda: clang_of_ndk("aarch64"),
            f"apps and GPUs of Android {ANDROID_API}; set ANDROID_NDK_HOME to one, 2 GB",
        ),
        "zig": (
            lambda: "the package ziglang" if has_zig else None,
            "Hexagon, artifacts for phones; pip install ziglang, 100 MB",
        ),
        "C++ compiler": (
            lambda: shutil.which("g++") or shutil.which("clang++"),
            "export of artifacts, processors of your own; Debian: g++",
        ),
    }
    for name, (find, purpose) in checks.items():
        try:
            tool, reason = find(), ""
        except StretchError as error:
            tool, reason = None, f"{error}; "
        state: Literal["ok", "missing"] = "ok" if tool else "missing"
        yield Finding(state, name, str(tool) if tool else f"{reason}for {purpose}")


def _room(machine: Mapping[str, Any]) -> Iterator[Finding]:
    """Memory, disk, and the cache."""
    free, total = machine["free"], machine["memory"]
    little: Literal["ok", "note"] = "note" if free < _LITTLE_MEMORY else "ok"
    yield Finding(little, "memory", f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free")
    cache = named_folder("")
    if cache is None:
        yield Finding("note", "cache", "switched off: each compile measures and compiles again")
        return
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    left = shutil.disk_usage(there).free
    state: Literal["ok", "note"] = "note" if left < _LITTLE_DISK else "ok"
    yield Finding(state, "disk", f"{left / _GIB:.1f} GiB are free for {cache}")
    if reason := why_not_trusted(cache):
        yield Finding("missing", "cache", reason)
        return
    files = [path.stat().st_size for path in cache.rglob("*") if path.is_file()]
    yield Finding(
        "ok", "cache", f"{cache}: {counted(len(files), 'file')}, {sum(files) / 1e6:.0f} MB"
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # a core that was switched off meanwhile
        return ""
