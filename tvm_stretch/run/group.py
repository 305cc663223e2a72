"""Several models that share processors: planned together, run by priorities and deadlines.

    group = ts.Group({"detector": detector, "classifier": classifier}, rates=[30, 10])
    future = group.submit("classifier", image)

    cpu     [detector ][detector ][detector ]        each model by the plan that leaves
    opencl  [classifier][classifier][classifier]     the others the most room

The members are models of several plans (``compile(..., plans=True)``). A run leases the processors
of its plan, so runs of different models never slow each other down, and a run of high priority
waits at most for the runs in progress. Which plan a member takes is decided once, for all members
(`group_plans.py`). A member whose plan's processors are leased takes other processors if it ends
earlier there.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import itertools
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tvm_stretch.base.errors import DeviceError, InputError, last_line
from tvm_stretch.base.files import as_path, cache_folder, is_finite, reason_of
from tvm_stretch.plan.considered import align
from tvm_stretch.run.group_plans import Member, Way, choose_plans, loads_of
from tvm_stretch.run.model import Model
from tvm_stretch.run.values import Answer


class Leases:
    """The leases in a folder; all processes that name it take turns."""

    def __init__(
        self,
        folder: object,  # the folder; True for one in the user's cache
        processors: Iterable[str],  # names
    ) -> None:
        """Open a file for each processor."""
        path = cache_folder("leases") if folder is True else as_path(folder, "the leases")
        if path is None:
            raise InputError("expected a folder for leases, got no usable cache; name a folder")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._files = {
                name: os.open(path / f"{quote(name, safe='')}.lock", flags, 0o600)
                for name in processors
            }
        except OSError as error:
            raise InputError(
                f"expected a folder for leases, got {path}: {reason_of(error)}; name one that "
                "this user may write to"
            ) from error

    @contextlib.contextmanager
    def held(self, processors: Iterable[str]) -> Iterator[None]:
        """Context in which no other process runs on these processors."""
        # all processes take them in one order, so none waits for one that waits for it
        own = [self._files[name] for name in sorted(processors)]
        try:
            for file in own:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            for file in own:
                fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])


_RUNS = 5
_REST = 16
"""A plan that failed is tried again after this number of runs of its member."""


@dataclass(eq=False)
class _Job:
    member: Member
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    due: float
    number: int
    future: Future[Any] = field(default_factory=Future)
    failed: set[Way] = field(default_factory=set)


def _urgency(job: _Job) -> tuple[float, float, int]:
    return -job.member.priority, job.due, job.number


class Group:
    """Models that share processors, by priorities and deadlines; several threads may submit runs.

    A run leases the processors of its plan, so that runs of different models do not slow each other
    down; a run of high priority waits at most for the runs in progress.

    Examples:
        >>> first, second = (ts.compile("resnet18.onnx", plans=True) for _ in range(2))
        >>> group = ts.Group({"camera": first, "voice": second}, rates=[30, 10])
        >>> answer = group.submit("camera", np.zeros((1, 3, 224, 224), "float32"))
        >>> answer.result().shape
        (1, 1000)
    """

    def __init__(
        self,
        models: Mapping[str, Model] | Sequence[Model],
        rates: Sequence[float] | None = None,
        priorities: Sequence[float] | None = None,
        deadlines_ms: Sequence[float | None] | None = None,
        leases: bool | str | Path = False,
    ) -> None:
        """Measure every plan of every model, and choose a plan for each.

        Args:
            models: models by name, or in a list. A model that was compiled with ``plans=True`` can
                run beside others.
            rates: how often each model runs in a second; by default equally often.
            priorities: runs of models with larger numbers go first; by default all are equal.
            deadlines_ms: milliseconds from `submit` to the answer; None for no deadline.
            leases: a folder for leases that hold between processes: a run waits for runs of all
                groups that name the folder. True for a folder in the user's cache.

        Raises:
            InputError: an argument is none of these, or no plans meet the deadlines.
        """
        named: dict[Any, Any] = dict(
            models if isinstance(models, Mapping) else enumerate(_listed(models))
        )
        if len(named) < 2 or not all(isinstance(model, Model) for model in named.values()):
            raise InputError(
                f"expected two models or more for the group, got {list(named.values())!r:.100}; "
                "compile them with plans=True"
            )
        count = len(named)
        numbers = zip(
            _numbers("rates", rates, count, 1.0),
            _numbers("priorities", priorities, count, 0.0, math.inf),
            _numbers("deadlines_ms", deadlines_ms, count, math.inf),
            strict=True,
        )
        self.members: dict[str, Member] = {}
        for name, (rate, priority, deadline) in zip(named, numbers, strict=True):
            ways = list(_ways(named[name]))
            self.members[str(name)] = Member(str(name), ways, rate, priority, deadline / 1e3)
        choose_plans(list(self.members.values()))
        self.processors = sorted({p for m in self.members.values() for w in m.ways for p in w.uses})
        self._leases = Leases(leases, self.processors) if leases else None
        self._lock = threading.Lock()
        self._waiting: list[_Job] = []  # the most urgent first
        self._leased: dict[str, float] = {}  # processors, and when their runs are expected to end
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(len(self.processors), "tvm_stretch_group")

    def __call__(self, member: str | int, /, *args: object, **kwargs: object) -> Answer:
        """Run a member, and wait for its answer; see `submit`."""
        return self.submit(member, *args, **kwargs).result()

    def submit(self, member: str | int, /, *args: object, **kwargs: object) -> Future[Answer]:
        """Run a member as soon as its turn comes.

        Args:
            member: its name, or its position.
            args: inputs, as for a call of the model; they must not change before the answer.
            kwargs: inputs by name.

        Returns:
            The future of its outputs, or of the error of its run alone.

        Raises:
            InputError: there is no such member.
        """
        model = self.members.get(str(member))
        if model is None and isinstance(member, int) and 0 <= member < len(self.members):
            model = list(self.members.values())[member]
        if model is None:
            raise InputError(
                f"expected one of {', '.join(self.members)} for the member, got {member!r}; name "
                "one of them"
            )
        due = time.perf_counter() + model.deadline
        job = _Job(model, (args, kwargs), due, next(self._numbers))
        self._enqueue(job)
        return job.future

    @property
    def load(self) -> dict[str, float]:
        """How much of its time each processor is leased, if members run at their rates."""
        return loads_of(list(self.members.values()))

    def __str__(self) -> str:
        """Which plan each member takes, and how busy processors are."""
        rows = [("member", "plan", "processors", "ms", "failed")]
        for member in self.members.values():
            for way, share in member.shares.items():
                part = "" if share == 1 else f" ({share:.0%} of the runs)"
                used = ", ".join(sorted(way.uses))
                ms = f"{way.seconds * 1e3:.3f}"
                rows.append((member.name, way.name + part, used, ms, member.failure))
        load = self.load
        most = max(load.values())
        shares = ", ".join(f"{name} {share / most:.0%}" for name, share in load.items())
        return "\n".join((*align(rows), f"at most {1 / most:.3g} times the rates: {shares}"))

    def close(self) -> None:
        """Wait for all runs, and end the threads."""
        while True:
            with self._lock:
                if not self._waiting and not self._leased:
                    break
            time.sleep(1e-3)
        self._threads.shutdown()
        if self._leases:
            self._leases.close()

    # --- whose turn it is -------------------------------------------------------------------------

    def _enqueue(self, job: _Job) -> None:
        with self._lock:
            bisect.insort(self._waiting, job, key=_urgency)
            begun = self._begin_all()
        for each in begun:
            self._threads.submit(self._work, *each)

    def _begin_all(self) -> list[tuple[_Job, Way]]:
        """Lease free processors to waiting runs, the most urgent first; the lock is held."""
        begun: list[tuple[_Job, Way]] = []
        free = {p for p in self.processors if p not in self._leased}
        for job in tuple(self._waiting):
            if not free:
                break
            way = self._way(job, free)
            if way is None:
                free -= self._wanted(job).uses  # no less urgent run may take them
                continue
            self._waiting.remove(job)
            job.member.started[way] += 1
            free -= way.uses
            end = time.perf_counter() + way.seconds
            self._leased.update(dict.fromkeys(way.uses, end))
            begun.append((job, way))
        return begun

    def _wanted(self, job: _Job) -> Way:
        """The chosen plan of a run's member, or the fastest of others after a failure."""
        left = [way for way in job.member.healthy if way not in job.failed] or job.member.ways
        chosen = [way for way in job.member.shares if way in left]
        if chosen:
            return max(chosen, key=job.member.behind)
        return min(left, key=lambda way: way.seconds)

    def _way(self, job: _Job, free: set[str]) -> Way | None:
        """The plan by which a run may begin now."""
        wanted = self._wanted(job)
        startable = [w for w in job.member.healthy if w.uses <= free and w not in job.failed]
        if any(member.deadline < math.inf for member in self.members.values()):
            startable = []  # other plans could be in the way of a run with a deadline
        fastest = min(startable, key=lambda way: way.seconds, default=wanted)
        if wanted.uses <= free:
            is_alone = len(self._waiting) == 1 and not self._leased
            return fastest if is_alone else wanted
        if len(job.member.shares) > 1:
            due = [way for way in startable if job.member.behind(way) > -1]
            return max(due, key=job.member.behind, default=None)
        now = time.perf_counter()
        wait = max(0.0, *(self._leased.get(name, now) - now for name in wanted.uses), 0.0)
        return fastest if startable and fastest.seconds < wait + wanted.seconds else None

    def _work(self, job: _Job, way: Way) -> None:
        """Run a job on a thread of ours, then jobs that its end lets begin.

        The thread goes on by itself, because waking another one takes as long as a small model.
        """
        begun = [(job, way)]
        while begun:
            first, *others = begun
            for other in others:
                self._threads.submit(self._work, *other)
            begun = self._run(*first)

    def _run(self, job: _Job, way: Way) -> list[tuple[_Job, Way]]:
        """Run a job, and hand its processors back; returns the jobs that begin then."""
        again = False
        try:
            if job.failed or job.future.set_running_or_notify_cancel():
                args, kwargs = job.inputs
                with self._leases.held(way.uses) if self._leases else contextlib.nullcontext():
                    answer = way.model(*args, **kwargs)
                job.future.set_result(answer)
        except BaseException as error:
            again = isinstance(error, DeviceError) and self._may_repeat(job, way, error)
            if not again:
                job.future.set_exception(error)
        with self._lock:
            for other in job.member.ways:
                other.rest = max(0, other.rest - 1)
            for name in way.uses:
                del self._leased[name]
            if again:
                bisect.insort(self._waiting, job, key=_urgency)
            return self._begin_all()

    def _may_repeat(self, job: _Job, way: Way, error: DeviceError) -> bool:
        """Whether another plan of the member may give the answer of a run that failed."""
        job.failed.add(way)
        way.rest, job.member.failure = _REST, last_line(error)
        return any(other not in job.failed for other in job.member.ways)


def _listed(models: object) -> Sequence[object]:
    return models if isinstance(models, Sequence) else [models]


def _numbers(
    name: str, given: object, count: int, default: float, below: float = 0.0
) -> list[float]:
    """A number for each member, above 0 unless ``below`` is another limit."""
    if given is None:
        return [default] * count
    numbers = [default if number is None else number for number in _listed(given)]
    valid = [is_finite(n) or n == default for n in numbers]
    if len(numbers) != count or not all(valid) or not all(n > -below for n in map(float, numbers)):  # type: ignore[arg-type]
        raise InputError(
            f"expected {count} numbers, one for each model, for {name}, got {given!r:.100}; "
            "rates and deadlines are above 0"
        )
    return [float(number) for number in numbers]  # type: ignore[arg-type]


def _ways(model: Model) -> Iterator[Way]:
    """The plans of a model, measured one by one."""
    if model.lengths:
        raise InputError(
            f"expected models of one length for a group, got one of {len(model.lengths)}; compile "
            "it without lengths="
        )
    for name in model.plans:
        instance = model.create_instance()
        instance.use(name)
        usage = instance.timeline(repeat=1).usage
        uses = frozenset(u.processor for u in usage if u.kernels or u.transfers)
        timed = instance.timed_run()
        yield Way(name, instance, uses, min(timed() for _ in range(_RUNS)))
