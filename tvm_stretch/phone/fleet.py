"""``ts.tune.Fleet``: many phones of one tracker, measured at the same time.

    fleet = ts.tune.Fleet("192.0.2.7:9190", keys=["pixel-8", "mi-9"])
    models = ts.tune.measure(device=fleet, budget=480)    # {"pixel-8/cpu": ..., "mi-9/cpu": ...}

There is a thread for each phone that the tracker knows. The thread requests any phone of its key
from the tracker and measures one batch after the other. All phones of a key fill one dataset. A
batch is assigned to one phone at a time; if the phone drops, the batch returns to the queue. Rows
of a batch are written together, so none is lost or doubled. A batch that fails repeatedly is
skipped until the campaign is resumed. Phones may come and go.
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

from tvm_stretch.base.errors import DeviceError, InputError, last_line
from tvm_stretch.base.progress import say, step
from tvm_stretch.phone.description import Description
from tvm_stretch.phone.device import Device, connect
from tvm_stretch.phone.device_processors import Targets, processors_of
from tvm_stretch.phone.wire import Deadline, offered, parse_address
from tvm_stretch.plan.cost.fingerprint import chosen_folder
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.campaign import (
    Campaign,
    batches_ahead,
    learn,
    measure_together,
    measuring_into,
    open_dataset,
)
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.targets.processor import Processor

_HEARTBEAT = 0.2
_CENSUS_SECONDS = 5.0
"""The interval at which the tracker is asked for its phones, and the timeout of its answer."""

_HOT = 1.25
"""A phone whose reference kernel takes this many times its best is too hot to be measured."""

_COOLING_SECONDS = 10.0
_PAUSE = 1.0  # seconds before requesting a phone again after one dropped
_ATTEMPTS = 3  # failures after which a batch is skipped, as it is not the phones' fault


class Batches:
    """A queue of batch numbers; each is assigned to one phone at a time, and done once.

    Args:
        first: the first number from which all are to be measured.
        missing: earlier numbers that are to be measured, too.
    """

    def __init__(self, first: int, missing: Iterable[int] = ()) -> None:
        self._next = first
        self._returned = sorted(missing)
        self._failures = Counter[int]()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Assign a number: the lowest one that was given back, or a new one."""
        with self._lock:
            if self._returned:
                return heapq.heappop(self._returned)
            self._next += 1
            return self._next - 1

    def give_back(self, number: int) -> bool:
        """Return a number that was not measured; False if it failed too often to try again."""
        with self._lock:
            self._failures[number] += 1
            again = self._failures[number] < _ATTEMPTS
            if again:
                heapq.heappush(self._returned, number)
            return again


@dataclass
class Crew:
    """The phones of one key, which measure one processor's batches."""

    key: str  # the key of the phones
    open: Callable[[], Post]  # begins a session with a phone, and returns its `Post`
    batches: Batches  # the batches to measure
    count: int = 0  # the number of phones at the last census
    fault: str = ""  # the last error of a phone
    measured: int = 0  # the number of batches that are done
    broken: BaseException | None = None  # an error that is not a phone's fault
    _threads: list[threading.Thread] = field(default_factory=list)

    def enlist(self, count: int, end: float, stop: threading.Event) -> None:
        """Start a thread for each phone; threads of phones that left keep requesting one."""
        self.count = count
        while len(self._threads) < count:
            context = contextvars.copy_context()  # carries the progress listener
            thread = threading.Thread(
                target=context.run, args=(self._guard, end, stop), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    @property
    def is_at_work(self) -> bool:
        """Whether a thread is still running."""
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
    """One phone that measures batches.

    Args:
        device: the phone.
        bench: times kernels on it.
        campaign: prepares each batch, and stores its measurements.
    """

    def __init__(self, device: Device, bench: Bench, campaign: Campaign) -> None:
        self._device = device
        self._bench = bench
        self._campaign = campaign

    def measure(self, number: int, end: float) -> None:
        """Measure a batch; its rows are stored together."""
        self._campaign.measure_batch(number, self._bench, end)

    def is_hot(self) -> bool:
        """Whether the phone's reference kernel is much slower than its best."""
        return self._bench.stopwatch.slowdown > _HOT

    def close(self) -> None:
        """End the session, so that others can use the phone."""
        self._device.close()


def carry_out(
    crews: Sequence[Crew],  # the crew of each key
    # returns the number of phones of each key; called repeatedly
    census: Callable[[], Mapping[str, int]],
    seconds: float,  # the time after which no batch is begun
) -> None:
    """Measure with all phones until the time is over."""
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
                counts = census()
                for crew in crews:
                    crew.enlist(counts.get(crew.key, 0), end, stop)
            step()
            time.sleep(_HEARTBEAT if seconds > 1 else 0.01)
    finally:
        stop.set()
    for crew in crews:
        if crew.broken is not None:
            raise crew.broken


class Fleet:
    """Phones of several keys of one tracker; for ``device=`` of ``ts.tune.measure``.

    Args:
        tracker: the tracker's address and port.
        keys: the keys of the phones.
        timeout: as for ``ts.connect``.
        wait: as for ``ts.connect``.
        secret: as for ``ts.connect``.

    Examples:
        >>> with ts.tune.Fleet("192.0.2.7:9190", ["pixel-8"]) as fleet:  # doctest: +SKIP
        ...     ts.tune.measure(device=fleet)
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
        """Connect to one phone of a key.

        Raises:
            DeviceError: there is none, or none is free in time.
        """
        return connect(self.tracker, key, secret=self._secret, **self._options)

    def count(self) -> dict[str, int]:
        """The number of phones of each key that the tracker knows; 0 if it does not answer."""
        try:
            offers = offered(self._address, Deadline(_CENSUS_SECONDS))
        except (OSError, ValueError, TypeError, KeyError) as error:
            say(f"no tracker: {last_line(error)}")
            offers = {}
        return {key: offers.get(key, 0) for key in self.keys}


@dataclass
class _Kind:
    """The phones of a key: their processors, and the folder of their measurements."""

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
    """Like ``ts.tune.measure``, on all phones of a fleet at the same time."""
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
    """Measure the processors of each kind in turn, the CPU first."""
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
    first = threading.Lock()  # one phone of the kind measures transfers and networks

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
    """Learn the model from the measurements of all phones of a kind."""
    dataset = open_dataset(kind.folder, processor)
    if not dataset.rows:
        raise DeviceError(
            f"expected phones of {kind.key} that measure {processor.name}, got "
            f"{crew.fault or 'none'!r}; bring one back and measure again"
        )
    below = kind.models.get(kind.processors[0].name) if processor.hardware.on_host_cores else None
    model = learn(dataset, processor, [below] if below else [])
    model.save(kind.folder / f"{processor.name}.json")
    kind.models[processor.name] = model
    say(f"{kind.key}: {processor.name}: {len(dataset.rows)} kernels of {crew.count} phones")
