"""Which machine measurements belong to, and where they lie."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm_stretch.targets.processor import Processor


def fingerprint(processor: Processor, device: str | None = None) -> dict[str, Any]:
    """What makes measurements comparable: the machine, the processor, the compiler's version."""
    return {
        "machine": device or _local_machine(),
        "processor": processor.name,
        "target": json.loads(str(processor.target)),
        "threads": processor.threads,
        "lanes": processor.machine.lanes,
        "package": metadata.version("tvm-stretch"),
    }


def default_folder(host: Processor, device: str | None = None) -> Path:
    """The folder of this device in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    text = json.dumps(fingerprint(host, device), sort_keys=True)
    return cache / "tvm_stretch" / "costs" / hashlib.sha256(text.encode()).hexdigest()[:12]


def _local_machine() -> str:
    """The name of this machine's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
