"""Whether an action that is repeated holds more memory each time."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

MEBI = 1 << 20
_REPEATS = 4


def keeps_growing(action: Callable[[], object], allowed: int = MEBI) -> bool:
    """Whether each repeat adds more than `allowed` bytes to this process.

    A leak shows in every repeat. Resident memory also grows when an allocator asks for another
    arena or a thread touches its stack for the first time, which happens now and then, so one
    repeat without growth is enough.
    """
    return all(_growth(action) > allowed for _ in range(_REPEATS))


def _growth(action: Callable[[], object]) -> int:
    before = _resident_bytes()
    action()
    gc.collect()
    return _resident_bytes() - before


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
