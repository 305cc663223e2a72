"""Long work shows itself: what compile, measure and probe are doing, in lines of text.

    with reporting(progress):       # compile(..., progress=print)
        say("searching for plans")
        count("kernel", 17, 63)     # kernel 17 of 63

Whoever gives no callback sees one line that changes, on a terminal, and nothing where the output is
piped. The same lines go to the logger ``tvm_stretch``. Each thread, more precisely each context of
`contextvars`, has its own listener, so that compiles in two threads do not hear each other.

Ctrl-C is answered between two steps: C++ that calls Python, as TVM does everywhere, does not
survive what Python raises then (the heap is damaged, or the process ends). A terminal says at once
that it was heard. Pressed again, it is answered at once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, TextIO

from tvm_stretch.errors import InputError

Progress = Callable[[str], None]
"""Receives a line of text after every step."""

LOGGER = logging.getLogger("tvm_stretch")
_CLEARED = "\r\x1b[K"
_HEARD = "Ctrl-C: ends after this step; press it again to end at once"
_HEARTBEAT = 0.2  # seconds


def _unheard(_line: str) -> None:
    """Nobody listens."""


_listener: ContextVar[Progress] = ContextVar("listener", default=_unheard)


@contextlib.contextmanager
def reporting(progress: Progress | None) -> Iterator[None]:
    """Within, what is said goes to the callback; to the terminal, if there is one, without it."""
    _require_function(progress)
    terminal = sys.stderr if progress is None and _is_terminal(sys.stderr) else None
    shown = progress or (_on_one_line(terminal) if terminal else _unheard)
    token = _listener.set(shown)
    try:
        with ctrl_c_waits():
            yield
    finally:
        _listener.reset(token)
        if terminal:
            terminal.write(_CLEARED)
            terminal.flush()


def _require_function(progress: Any) -> None:
    if progress is not None and not callable(progress):
        raise InputError(
            f"expected a function of a line of text for progress, got {progress!r}; give print, "
            "for example"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, nobody hears the steps, which are details of a larger one; the logger still does."""
    token = _listener.set(_unheard)
    try:
        yield
    finally:
        _listener.reset(token)


class _Waiting:
    """A handler that keeps Ctrl-C for later."""

    def __init__(self, usual: Callable[[int, FrameType | None], Any]) -> None:
        self.usual = usual
        self.pressed = False
        self.closing = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.pressed and not self.closing:
            self.usual(number, frame)
        elif not self.pressed:
            _say_heard()
        self.pressed = True

    def answer(self) -> None:
        if self.pressed:
            self.pressed = False
            self.usual(signal.SIGINT, None)


def _say_heard() -> None:
    """On the terminal, past Python's buffers: their owner may be the one who was interrupted."""
    if _is_terminal(sys.stderr):
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"{_CLEARED}{_HEARD}\n".encode())


@contextlib.contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Within, Ctrl-C is answered at the next `step`, and at the end."""
    usual = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not callable(usual) or isinstance(usual, _Waiting) or not in_main_thread:
        yield
        return
    waiting = _Waiting(usual)
    signal.signal(signal.SIGINT, waiting)
    try:
        yield
    finally:
        waiting.closing = True  # or a second press, raised here, would leave this handler behind
        signal.signal(signal.SIGINT, usual)
        waiting.answer()


def step() -> None:
    """Nothing is half done here: answer Ctrl-C."""
    waiting = signal.getsignal(signal.SIGINT)
    if isinstance(waiting, _Waiting) and threading.current_thread() is threading.main_thread():
        waiting.answer()


def ended(thread: threading.Thread, seconds: float = math.inf) -> bool:
    """Whether a thread ends within that time; Ctrl-C is answered while it goes on."""
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        thread.join(_HEARTBEAT)
        step()
    return not thread.is_alive()


def say(line: str) -> None:
    """Tell what is being done now."""
    step()
    LOGGER.info(line)
    _listener.get()(line)


def count(what: str, number: int, total: int) -> None:
    """Tell how far a step has come."""
    step()
    line = f"{what} {number} of {total}"
    LOGGER.debug(line)
    _listener.get()(line)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether lines can be written over; there is no stream at all without a console."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _on_one_line(stream: TextIO) -> Progress:
    """Writes each line over the one before."""

    def show(line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        stream.write(_CLEARED + line.splitlines()[0][:width])
        stream.flush()

    return show
