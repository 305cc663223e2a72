"""One thread at a time works with TVM's compiler; what is compiled runs on as many as there are.

    with compiling():
        mod = relax.BlockBuilder() ...

TVM keeps one stack of builders for the process, one of tags, one of pass contexts. Whoever enters
waits for the others, and answers Ctrl-C meanwhile. Measuring and running need no such care.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from tvm_stretch.progress import step

_HEARTBEAT = 0.2  # seconds
_turn = threading.RLock()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Within, no other thread compiles; it may be entered again. A decorator, too."""
    turn = _turn
    while not turn.acquire(timeout=_HEARTBEAT):
        step()
    try:
        yield
    finally:
        turn.release()


def _renew() -> None:
    """A process that was forked has no other threads, and would wait for one for ever."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew)
