"""Reports progress of long work (compile, measure, probe) as lines of text.

    with reporting(progress):       # compile(..., progress=print)
        say("searching for plans")
        count("kernel", 17, 63)     # kernel 17 of 63

Without a callback, a terminal shows the last line, and a pipe gets a line every ten seconds, so
that no log of long work is silent. The lines also go to the logger ``tvm_stretch``. Each context of
`contextvars`, so each thread, has its own listener, and compiles in two threads do not mix.

Ctrl-C takes effect between two steps: if Python raises KeyboardInterrupt in a callback of C++,
which TVM has everywhere, the heap is damaged or the process ends. A terminal acknowledges the key
at once. The second Ctrl-C takes effect immediately.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, TextIO

from tvm_stretch.base.errors import InputError

Progress = Callable[[str], None]
"""Receives a line of text after every step."""

LOGGER = logging.getLogger("tvm_stretch")
_CLEARED = "\r\x1b[K"
_HEARD = "Ctrl-C: ends after this step; press it again to end at once"
_HEARTBEAT = 0.2  # seconds
_PERIOD = 10.0
"""Seconds between two lines where the output is piped."""
_COUNTED = re.compile(r" \d+ of \d+$")


def _unheard(_line: str) -> None:
    """The default listener, which ignores lines."""


_listener: ContextVar[Progress] = ContextVar("listener", default=_unheard)


@contextlib.contextmanager
def reporting(progress: Progress | None) -> Iterator[None]:
    """Context in which lines go to the callback; without one, to the standard error."""
    _require_function(progress)
    terminal = sys.stderr if progress is None and _is_terminal(sys.stderr) else None
    is_first = progress is None and _listener.get() is _unheard  # one in another only has details
    shown = progress or (_on_one_line(terminal) if terminal else _Seldom(sys.stderr, is_first))
    token = _listener.set(shown)
    try:
        with ctrl_c_waits():
            yield
    finally:
        _listener.reset(token)
        if isinstance(shown, _Seldom):
            shown.ended.set()
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
    """Context in which lines go only to the logger, because they are details of a larger step."""
    token = _listener.set(_unheard)
    try:
        yield
    finally:
        _listener.reset(token)


class _Waiting:
    """A signal handler that postpones Ctrl-C."""

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
    """Acknowledge Ctrl-C with a direct write: the signal may have interrupted a buffered one."""
    if _is_terminal(sys.stderr):
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), f"{_CLEARED}{_HEARD}\n".encode())


@contextlib.contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Context in which Ctrl-C takes effect at the next `step`, or at the end."""
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
        waiting.closing = True  # else a second Ctrl-C here would leave this handler installed
        signal.signal(signal.SIGINT, usual)
        waiting.answer()


def step() -> None:
    """A safe point: let a postponed Ctrl-C take effect."""
    waiting = signal.getsignal(signal.SIGINT)
    if isinstance(waiting, _Waiting) and threading.current_thread() is threading.main_thread():
        waiting.answer()


def ended(thread: threading.Thread, seconds: float = math.inf) -> bool:
    """Wait for a thread; False if it still runs after that time. Ctrl-C can interrupt the wait."""
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        thread.join(_HEARTBEAT)
        step()
    return not thread.is_alive()


def say(line: str) -> None:
    """Report the current step."""
    step()
    LOGGER.info(line)
    _listener.get()(line)


def count(what: str, number: int, total: int) -> None:
    """Report the progress of a step."""
    step()
    line = f"{what} {number} of {total}"
    LOGGER.debug(line)
    _listener.get()(line)


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether lines can be overwritten; without a console the stream is None."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _on_one_line(stream: TextIO) -> Progress:
    """A listener that overwrites the previous line."""

    def show(line: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        stream.write(_CLEARED + line.splitlines()[0][:width])
        stream.flush()

    return show


class _Seldom:
    """A listener of which a thread writes the present phase every ten seconds.

    building cpu alone, kernel 17 of 63 (20 s)
    """

    def __init__(self, stream: TextIO | None, is_heard: bool) -> None:
        self.ended = threading.Event()
        self._phase, self._part, self._stream = "", "", stream
        self._begin = time.monotonic()
        if stream is not None and is_heard:
            threading.Thread(target=self._write, daemon=True).start()

    def __call__(self, line: str) -> None:
        """Note a phase, or how far it is."""
        is_part = _COUNTED.search(line)
        self._phase, self._part = (self._phase, f", {line}") if is_part else (line, "")

    def _write(self) -> None:
        assert self._stream is not None
        while not self.ended.wait(_PERIOD):
            with contextlib.suppress(OSError, ValueError):  # the reader closed the pipe
                seconds = time.monotonic() - self._begin
                self._stream.write(f"{self._phase}{self._part} ({seconds:.0f} s)\n".lstrip(", "))
                self._stream.flush()
