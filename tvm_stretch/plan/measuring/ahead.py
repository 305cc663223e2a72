"""Makes things on a background thread before they are requested.

with Ahead(compiled, first=7, most=2) as ahead:
ahead.take(7)       # waits for compiled(7); 8 and 9 are made next
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Generic, TypeVar

from tvm_stretch.base.progress import step

Made = TypeVar("Made")

_HEARTBEAT = 0.2  # seconds


class Ahead(Generic[Made]):
    """Makes things by number, for callers that request them roughly in order.

    Args:
        make: makes the thing of a number; called on one thread only.
        first: the first number to make ahead; earlier ones are made when requested.
        most: how many things are made ahead; with 0 there is no background thread.
    """

    def __init__(self, make: Callable[[int], Made], first: int, most: int) -> None:
        self._make = make
        self._most = most
        self._coming: dict[int, Future[Made]] = {}
        self._next = first  # the first number not begun yet
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tvm_stretch_ahead")

    def __enter__(self) -> Ahead[Made]:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Finish what has begun, because TVM's compiler cannot be interrupted."""
        self._thread.shutdown(cancel_futures=True)

    def take(self, number: int) -> Made:
        """The thing of a number, made now if it was not made ahead; from any thread.

        Raises:
            BaseException: the error of making it.
        """
        if self._most == 0:
            return self._make(number)
        with self._lock:
            coming = self._coming.pop(number, None) or self._begin(number)
            for later in range(max(number + 1, self._next), number + 1 + self._most):
                self._coming[later] = self._begin(later)
            self._next = max(self._next, number + 1 + self._most)
        while not coming.done():
            wait([coming], _HEARTBEAT)
            step()
        return coming.result()

    def _begin(self, number: int) -> Future[Made]:
        return self._thread.submit(contextvars.copy_context().run, self._make, number)
