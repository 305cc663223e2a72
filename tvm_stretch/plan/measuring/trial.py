"""Tries candidates: compiles each, runs it, checks its answer and perhaps times it.

    attempt(build, inputs, judge)    ->    what judge returns, or "compile: no such ..."

Candidates are an operator on a device (`probe.py`), and forms of layers and of pairs of layers on a
GPU (`tune_gpu.py`, `tune_pairs.py`), of which `tune` compiles the next ones meanwhile.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from tvm_stretch.base.errors import last_line
from tvm_stretch.base.progress import count as progress
from tvm_stretch.base.progress import say, step
from tvm_stretch.phone.device import Device
from tvm_stretch.plan.cost.tuned import Tuned
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.run.model import Model

Made = TypeVar("Made")
Found = TypeVar("Found")
Array = np.ndarray[Any, Any]
Build = Callable[[], Model]
Failure = str

_HEARTBEAT = 0.2  # seconds
_LONGEST = 200  # characters of a failure


def attempt(
    build: Build,  # compiles the candidate
    inputs: Sequence[Array],
    # of the model, the model on the device and its answers: the result, or a failure
    judge: Callable[[Model, Any, list[Array]], Found | Failure],
    device: Device | None = None,  # where to run; None for this process
) -> Found | Failure:
    """Compile, run and judge a candidate; any error of a compiler or driver is a failure."""
    try:
        model = build()
    except Exception as error:
        return f"compile: {last_line(error)[:_LONGEST]}"
    try:
        loaded = model if device is None else device.load(model)
        return judge(model, loaded, as_arrays(loaded(*inputs)))
    except Exception as error:
        return f"run: {last_line(error)[:_LONGEST]}"


def as_arrays(answers: Any) -> list[Array]:
    """The outputs of a model, or of TVM's virtual machine."""
    fields: Sequence[Any] = [answers] if hasattr(answers, "__dlpack__") else list(answers)
    return [f if isinstance(f, np.ndarray) else f.numpy() for f in fields]


class Forms(ABC):
    """Forms of some layers on a GPU, which are compared with each other."""

    what: ClassVar[str]  # their layers, for people
    builds: Sequence[Build]  # each compiles a form of each layer

    def __init__(
        self, layers: Any, workshop: Workshop, bench: Bench, tuned: Tuned, count: int | None
    ) -> None:
        """Up to ``count`` forms of each layer, the model's best ones."""
        self.layers, self.workshop, self.bench, self.tuned = layers, workshop, bench, tuned
        gpu = workshop.processor.machine.gpu
        assert gpu is not None
        self.gpu = gpu
        self.choose(count)

    @classmethod
    @abstractmethod
    def unmeasured(
        cls, networks: Iterable[object], workshop: Workshop, tuned: Tuned, end: float
    ) -> list[Any]:
        """The layers of networks that are not measured yet, in groups."""

    @abstractmethod
    def choose(self, count: int | None) -> None:
        """Choose what `builds` compiles: forms that did not fail before."""

    @abstractmethod
    def decide(self, builds: Sequence[Build]) -> bool:
        """Try what these functions compiled, and add the best; whether one failed."""

    def drop(self, form: str, reason: Failure) -> None:
        """Never try a form again."""
        self.tuned.dropped[form] = reason
        say(f"{self.workshop.processor.name}: a form of {self.what} is dropped: {reason}")


def tune(
    kinds: Sequence[type[Forms]],  # of layers: those of one are tuned before the next ones
    workshop: Workshop,  # of the GPU
    bench: Bench,  # where it runs
    networks: Iterable[object],
    path: Path,  # of the table of winners, which is written after every few layers
    end: float,  # no further layers are begun after this time of ``time.monotonic``
    count: int | None = None,  # how many forms of a layer are tried
    ahead: int = 0,  # builds that run while other forms are measured
) -> Workshop:
    """Measure forms of the networks' layers that are not measured yet.

    Returns:
        A workshop whose kernels have the forms that won.
    """
    tuned, name = Tuned.read(path, workshop.processor), workshop.processor.name
    for kind in kinds:
        groups = [
            kind(layers, workshop, bench, tuned, count)
            for layers in kind.unmeasured(networks, workshop, tuned, end)
        ]
        builds: list[Any] = [build for group in groups for build in group.builds]
        builds += [lambda: None] * ahead  # beyond the last one
        with Ahead(lambda number: builds[number](), 0, ahead) as coming:  # noqa: B023  it ends here
            takes = (partial(coming.take, number) for number in itertools.count())
            for place, group in enumerate(groups):
                if time.monotonic() > end:
                    say(f"{name}: {len(groups) - place} groups of {kind.what} are not tuned")
                    break
                progress(kind.what, place + 1, len(groups))
                has_failed = group.decide(list(itertools.islice(takes, len(group.builds))))
                tuned.write(path)
                if has_failed:
                    bench.require_device()
        workshop = workshop.on(tuned.apply(workshop.processor))
    if not tuned.table:
        return workshop
    joined = sum(any(tile) for tile in tuned.pairs.values())
    say(
        f"{name}: {len(tuned.winners)} layers tuned, {joined} of {len(tuned.pairs)} pairs are one "
        f"kernel, {len(tuned.dropped)} forms dropped"
    )
    return workshop


class Ahead(Generic[Made]):
    """Makes things on a background thread before they are requested, roughly in order.

        with Ahead(compiled, first=7, most=2) as ahead:
            ahead.take(7)       # waits for compiled(7); 8 and 9 are made next

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
