"""``ts.Fleet``: many phones behind one tracker, measured at the same time.

    fleet = ts.Fleet("192.0.2.7:9190", keys=["pixel-8", "mi-9"])
    models = ts.measure(device=fleet, budget=480)           # {"pixel-8/cpu": ..., "mi-9/cpu": ...}

The tracker spreads the work: there is a thread for each phone that it knows, which asks for any of
its kind and measures one batch after the other. All phones of a key fill one dataset. A batch is
out with one phone at a time; a phone that drops gives it back, and rows are written when they are
all there, so nothing is lost or doubled. A batch that fails again and again is left out, until the
campaign is resumed. Phones may come and go meanwhile.
"""

from __future__ import annotations

import contextvars
import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tvm_stretch.cost.device import chosen_folder
from tvm_stretch.cost.model import MeasuredModel
from tvm_stretch.errors import DeviceError, InputError, last_line
from tvm_stretch.measuring.bench import Bench
from tvm_stretch.measuring.campaign import (
    Campaign,
    batches_ahead,
    learn,
    measure_together,
    measuring_into,
    open_dataset,
)
from tvm_stretch.measuring.workshop import Workshop
from tvm_stretch.progress import say, step
from tvm_stretch.remote.description import Description
from tvm_stretch.remote.device import Device, connect
from tvm_stretch.remote.processors import Targets, processors_of
from tvm_stretch.remote.wire import Deadline, offered, parse_address
from tvm_stretch.targets.processor import Processor

_HEARTBEAT = 0.2
_CENSUS_SECONDS = 5.0
"""How often the tracker is asked which phones there are, and how long it may take to answer."""

_HOT = 1.25
"""A phone whose reference kernel takes this many times its best is too hot to be measured."""

_COOLING_SECONDS = 10.0
_PAUSE = 1.0  # seconds, before a phone that dropped is asked for again
_ATTEMPTS = 3  # until a batch is left out: it is not the phones that fail


class Batches:
    """Numbers of batches: each is out with one phone at a time, and done once.

    Args:
        first: from here on all are to be measured.
        missing: those before it that are, too.
    """

    def __init__(self, first: int, missing: Iterable[int] = ()) -> None:
        self._next = first
        self._returned = sorted(missing)
        self._failures = Counter[int]()
        self._lock = threading.Lock()

    def take(self) -> int:
        """One that nobody measures: the lowest that was given back, or a new one."""
        with self._lock:
            if self._returned:
                return heapq.heappop(self._returned)
            self._next += 1
            return self._next - 1

    def give_back(self, number: int) -> bool:
        """It was not measured; whether it is tried again, which is in vain after some failures."""
        with self._lock:
            self._failures[number] += 1
            again = self._failures[number] < _ATTEMPTS
            if again:
                heapq.heappush(self._returned, number)
            return again


@dataclass
class Crew:
    """The phones of one key at work on one processor's batches.

    Attributes:
        key: theirs.
        open: begins a session with one of them, and makes what measures batches there.
        batches: those to measure.
        count: how many phones there were at the last census.
        fault: what went wrong last.
        measured: how many batches are done.
        broken: what is no fault of a phone, if there was such.
    """

    key: str
    open: Callable[[], Post]
    batches: Batches
    count: int = 0
    fault: str = ""
    measured: int = 0
    broken: BaseException | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    def enlist(self, count: int, end: float, stop: threading.Event) -> None:
        """A thread for each phone; those that went are still asked for."""
        self.count = count
        while len(self._threads) < count:
            context = contextvars.copy_context()  # who listens to progress
            thread = threading.Thread(
                target=context.run, args=(self._guard, end, stop), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether one of them is not done yet."""
        return any(thread.is_alive() for thread in self._threads)

    def _guard(self, end: float, stop: threading.Event) -> None:
        try:
            self._work(end, stop)
        except BaseException as error:  # `carry_out` raises it
            self.broken = error
            stop.set()

    def _work(self, end: float, stop: threading.Event) -> None:
        post: Post | None = None
        while time.monotonic() < end and not stop.is_set():
            try:
                if post is None:
                    post = self.open()
                self._one_batch(post, end)
                if post.is_hot():
                    say(f"{self.key}: a phone is hot, and rests")
                    stop.wait(min(_COOLING_SECONDS, max(0.0, end - time.monotonic())))
            except (DeviceError, RuntimeError, OSError) as error:  # RuntimeError: of TVM
                self.fault = last_line(error)
                say(f"{self.key}: a phone dropped: {self.fault}")
                if post is not None:
                    post.close()
                post = None
                stop.wait(min(_PAUSE, max(0.0, end - time.monotonic())))
        if post is not None:
            post.close()

    def _one_batch(self, post: Post, end: float) -> None:
        number = self.batches.take()
        try:
            post.measure(number, end)
        except BaseException:
            if not self.batches.give_back(number):
                say(f"{self.key}: batch {number} failed {_ATTEMPTS} times, and is left out")
            raise
        self.measured += 1


class Post:
    """One phone at work; `is_hot` and `close` are of the phone.

    Args:
        device: the phone.
        bench: times kernels on it.
        campaign: knows what is in each batch, and keeps what was measured.
    """

    def __init__(self, device: Device, bench: Bench, campaign: Campaign) -> None:
        self._device = device
        self._bench = bench
        self._campaign = campaign

    def measure(self, number: int, end: float) -> None:
        """Measure a batch; its rows are kept when they are all there."""
        self._campaign.measure_batch(number, self._bench, end)

    def is_hot(self) -> bool:
        """Whether its reference kernel has become slower than it was."""
        return self._bench.stopwatch.slowdown > _HOT

    def close(self) -> None:
        """Let others have it."""
        self._device.close()


def carry_out(
    crews: Sequence[Crew], census: Callable[[], Mapping[str, int]], seconds: float
) -> None:
    """Let all phones work until the time is over.

    Args:
        crews: one for each key.
        census: how many phones there are of each key; asked again and again.
        seconds: until no batch is begun any more.
    """
    end, stop = time.monotonic() + seconds, threading.Event()
    asked = -_CENSUS_SECONDS
    try:
        while (time.monotonic() < end and not stop.is_set()) or any(c.is_at_work for c in crews):
            if (
                time.monotonic() < end
                and not stop.is_set()
                and time.monotonic() - asked >= _CENSUS_SECONDS
            ):
                asked = time.monotonic()
                known = census()
                for crew in crews:
                    crew.enlist(known.get(crew.key, 0), end, stop)
            step()
            time.sleep(_HEARTBEAT if seconds > 1 else 0.01)
    finally:
        stop.set()
    for crew in crews:
        if crew.broken is not None:
            raise crew.broken


class Fleet:
    """Phones of several keys behind one tracker; for ``device=`` of ``ts.measure``.

    Args:
        tracker: its address and port.
        keys: of the phones.
        timeout: as for ``ts.connect``.
        wait: as for ``ts.connect``.
        secret: as for ``ts.connect``.
    """

    def __init__(
        self,
        tracker: str,
        keys: Sequence[str],
        *,
        timeout: float = 120.0,
        wait: float = 60.0,
        secret: str = "",
    ) -> None:
        address = parse_address(tracker)
        listed = [keys] if isinstance(keys, str) else [*keys] if isinstance(keys, Iterable) else []
        are_names = bool(listed) and all(isinstance(key, str) for key in listed)
        if address is None or not are_names or len(set(listed)) < len(listed):
            raise InputError(
                f"expected HOST:PORT of a tracker and different keys for Fleet, got {tracker!r} "
                f"and {keys!r}; name each kind of phones once"
            )
        self.tracker = tracker
        self.keys = tuple(listed)
        self._address = address
        self._options = {"timeout": timeout, "wait": wait}
        self._secret = secret

    def connect(self, key: str) -> Device:
        """One of the phones of a key.

        Raises:
            DeviceError: there is none, or none is free in time.
        """
        return connect(self.tracker, key, secret=self._secret, **self._options)

    def count(self) -> dict[str, int]:
        """How many phones of each key the tracker knows now; none while it is away."""
        try:
            known = offered(self._address, Deadline(_CENSUS_SECONDS))
        except (OSError, ValueError, TypeError, KeyError) as error:
            say(f"no tracker: {last_line(error)}")
            known = {}
        return {key: known.get(key, 0) for key in self.keys}


@dataclass
class _Kind:
    """The phones of a key: their processors, and where what is measured of them is kept."""

    key: str
    description: Description
    processors: list[Processor]
    in_order: list[Processor]
    folder: Path
    models: dict[str, MeasuredModel] = field(default_factory=dict)


def measure_fleet(
    fleet: Fleet,
    targets: Targets,
    budget: float,
    resume: bool,
    folder: Path | None,
    networks: Mapping[str, object],
    cpu_threads: int | None,
    seed: int,
) -> dict[str, MeasuredModel]:
    """As ``ts.measure``, of all phones of a fleet at the same time; see there."""
    kinds = [_kind(fleet, key, targets, folder, cpu_threads) for key in fleet.keys]
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(measuring_into(kind.folder))
        _measure_kinds(fleet, kinds, budget, resume, networks, seed)
    return {f"{kind.key}/{name}": model for kind in kinds for name, model in kind.models.items()}


def _measure_kinds(
    fleet: Fleet,
    kinds: Sequence[_Kind],
    budget: float,
    resume: bool,
    networks: Mapping[str, object],
    seed: int,
) -> None:
    """One processor of each kind after the other, the CPU first."""
    stages = max(len(kind.in_order) for kind in kinds)
    for stage in range(stages):
        began = time.monotonic()
        at_work = [kind for kind in kinds if stage < len(kind.in_order)]
        with ExitStack() as stack:
            crews = [_crew(fleet, kind, stage, resume, networks, seed, stack) for kind in at_work]
            carry_out(crews, fleet.count, budget / (stages - stage))
        budget = max(1.0, budget - (time.monotonic() - began))
        for kind, crew in zip(at_work, crews, strict=True):
            _learn(kind, kind.in_order[stage], crew)


def _kind(
    fleet: Fleet, key: str, targets: Targets, folder: Path | None, cpu_threads: int | None
) -> _Kind:
    with fleet.connect(key) as phone:
        description = phone.describe()
        processors, placeable = processors_of(phone, targets, cpu_threads)
    in_order = sorted(placeable, key=lambda p: p is not processors[0])
    kept_in = chosen_folder(None if folder is None else folder / key, processors[0])
    return _Kind(key, description, processors, in_order, kept_in)


def _crew(
    fleet: Fleet,
    kind: _Kind,
    stage: int,
    resume: bool,
    networks: Mapping[str, object],
    seed: int,
    stack: ExitStack,
) -> Crew:
    processor, host = kind.in_order[stage], kind.processors[0]
    workshop = Workshop([processor] if processor is host else [processor, host])
    dataset = open_dataset(kind.folder, processor, resume)
    campaign = Campaign(workshop, dataset, random.Random(f"{seed}/{kind.key}"))
    stack.enter_context(campaign.compiling_ahead(batches_ahead(processor, kind.description)))
    first = threading.Lock()  # one phone of the kind measures what is measured once

    def begin() -> Post:
        phone = fleet.connect(kind.key)
        try:
            bench = Bench(workshop, phone)
            with first:
                if processor is not host:
                    measure_together(dataset, host, processor, bench)
                campaign.measure_networks(bench, networks)
        except BaseException:
            phone.close()
            raise
        return Post(phone, bench, campaign)

    return Crew(kind.key, begin, Batches(campaign.first_batch, campaign.missing_batches))


def _learn(kind: _Kind, processor: Processor, crew: Crew) -> None:
    """The model of what all phones of a kind have measured.

    Raises:
        DeviceError: they have measured nothing, ever.
    """
    dataset = open_dataset(kind.folder, processor)
    if not dataset.rows:
        raise DeviceError(
            f"expected phones of {kind.key} that measure {processor.name}, got "
            f"{crew.fault or 'none'!r}; bring one back and measure again"
        )
    below = kind.models.get(kind.processors[0].name) if processor.on_host_cores else None
    model = learn(dataset, processor, below)
    model.save(kind.folder / f"{processor.name}.json")
    kind.models[processor.name] = model
    say(f"{kind.key}: {processor.name}: {len(dataset.rows)} kernels of {crew.count} phones")
