"""Which device measurements belong to, and where they are stored."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_stretch.base.errors import CostModelError, InputError
from tvm_stretch.base.files import as_path, cache_folder
from tvm_stretch.base.formats import own_version
from tvm_stretch.network.codec import target_data
from tvm_stretch.targets.processor import Processor


def fingerprint(processor: Processor) -> dict[str, Any]:
    """What makes measurements comparable: machine, processor and version of the compiler."""
    driven = {"driver": processor.hardware.driver} if processor.hardware.driver else {}
    return driven | {
        "machine": processor.hardware.device or local_machine(),
        "processor": processor.name,
        "target": target_data(processor.target),
        "threads": processor.threads,
        "lanes": processor.machine.lanes,
        "package": own_version(),
    }


def default_folder(host: Processor) -> Path | None:
    """The folder of the CPU's device; None if the user wants no files."""
    folder = cache_folder("costs")
    text = json.dumps(fingerprint(host), sort_keys=True)
    return folder and folder / hashlib.sha256(text.encode()).hexdigest()[:12]


def chosen_folder(folder: str | os.PathLike[str] | None, host: Processor) -> Path:
    """The folder that a user named, or the default."""
    if folder is not None:
        return as_path(folder, "the folder for measurements")
    path = default_folder(host)
    if path is None:
        raise InputError(
            "expected a folder for measurements, got none, nor a cache to keep them in "
            "(TVM_STRETCH_CACHE_DIR is empty, or HOME is not set); name a folder"
        )
    return path


def check_device(device: Any, expected: Mapping[str, Any], where: str) -> None:
    """Refuse measurements of another device, and name the differences."""
    device = device if isinstance(device, dict) else {}
    differing = sorted(key for key in {*device, *expected} if device.get(key) != expected.get(key))
    if differing:
        pairs = ", ".join(f"{k} {device.get(k)!r} (here {expected.get(k)!r})" for k in differing)
        raise CostModelError(
            f"expected measurements of this device in {where}, got {pairs}; "
            "use another file, or measure again"
        )


def local_machine() -> str:
    """The name of this machine's CPU."""
    try:
        return name_of_cpu(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return platform.machine()


def name_of_cpu(cpuinfo: str) -> str:
    """The model name in ``/proc/cpuinfo``; most ARM boards only list numbers of their cores."""
    pairs = [line.partition(":") for line in cpuinfo.splitlines()]
    fields: dict[str, dict[str, None]] = {}
    for key, _, value in pairs:
        fields.setdefault(key.strip(), {})[value.strip()] = None
    if "model name" in fields:
        return next(iter(fields["model name"]))
    makers, parts = (sorted(fields.get(key, ())) for key in ("CPU implementer", "CPU part"))
    return " ".join(filter(None, (platform.machine(), "+".join(makers), "+".join(parts))))
