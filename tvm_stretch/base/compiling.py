"""Serialises compilation: TVM's compiler supports one thread at a time, compiled models many.

    with compiling():
        mod = relax.BlockBuilder() ...

TVM has one stack of builders, tags and pass contexts for the whole process. A thread that enters
waits for the others, and Ctrl-C interrupts the wait. Measuring and running need no lock.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

from tvm_stretch.base.progress import step

_HEARTBEAT = 0.2  # seconds
_turn = threading.RLock()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Context, or decorator, in which no other thread compiles; it is reentrant."""
    turn = _turn
    while not turn.acquire(timeout=_HEARTBEAT):
        step()
    try:
        yield
    finally:
        turn.release()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of cycles does not run meanwhile.

    A search makes many objects and no cycles among them; looking for some took a fifth of its time.
    Reading and building a network are short, and looking for cycles took a thirtieth of theirs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _renew() -> None:
    """Replace the lock in a forked child, where the thread that held it does not exist."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew)
