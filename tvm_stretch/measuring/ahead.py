"""What is made on a thread of its own, before somebody asks for it.

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

from tvm_stretch.progress import step

Made = TypeVar("Made")

_HEARTBEAT = 0.2  # seconds


class Ahead(Generic[Made]):
    """Makes things by their numbers, which are asked for more or less in their order.

    Args:
        make: one thing; called on one thread only.
        first: those before it are only made when they are asked for.
        most: so many are made before; of 0, nothing is done on another thread.
    """

    def __init__(self, make: Callable[[int], Made], first: int, most: int) -> None:
        self._make = make
        self._most = most
        self._coming: dict[int, Future[Made]] = {}
        self._next = first  # that was never begun
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
        """What has begun is finished: TVM's compiler does not stop half-way."""
        self._thread.shutdown(cancel_futures=True)

    def take(self, number: int) -> Made:
        """What was made of a number, or is now; from any thread.

        Raises:
            BaseException: what making it raised.
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
