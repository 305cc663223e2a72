"""The campaign that measures one processor: choice of samples, and learning from them."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import scipy.optimize  # noqa: F401  learning imports it late, where Ctrl-C would end the process

from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import CostModelError, DeviceError, last_line
from tvm_stretch.base.files import make_folder, writing
from tvm_stretch.base.progress import say
from tvm_stretch.phone.description import Description
from tvm_stretch.plan.cost.fingerprint import fingerprint
from tvm_stretch.plan.cost.measured_model import MeasuredModel, train
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.dataset import Dataset, Row, at_pace, usual_pace
from tvm_stretch.plan.measuring.samples import (
    Sample,
    by_kind,
    far_reader,
    in_integers,
    load_prior,
    neighbour,
    pairs_of,
    wide_window,
    with_functions,
)
from tvm_stretch.plan.measuring.scenes import scene
from tvm_stretch.plan.measuring.similar import telling_first
from tvm_stretch.plan.measuring.transfers import measure_slowdown, measure_transfers
from tvm_stretch.plan.measuring.trial import Ahead
from tvm_stretch.plan.measuring.workshop import Prepared, Workshop
from tvm_stretch.targets.processor import Processor

BATCH = 12
"""The number of samples that are compiled together."""

_AHEAD = 2
"""The number of batches that are compiled while a device measures another one."""

_REFINE_SHARE = 0.7  # of later samples are near the model's largest errors
_SCENE_EVERY = 5
"""One in this number of batches is a small network of other operators."""

_FAR_EVERY = 3
"""One in this number of batches on a GPU reads more weights than a cache keeps."""

_INTEGERS = 2
"""The position of the 8-bit batch in each such group of batches."""

_TELLING = 8
"""First batches, of float32 layers, that correct a model of a similar device.

Few samples are measured in a minute, and ratios of float32 phases hold for 8-bit and other
operators, too: with two batches of five for these, 36 layers were left of 60.
"""


@contextlib.contextmanager
def losing_no_rows(dataset: Dataset, processor: Processor) -> Iterator[None]:
    """Context that turns the loss of a device into one clear error; measurements are on disk."""
    try:
        yield
    except (DeviceError, RuntimeError, OSError) as error:  # RuntimeError: of TVM
        raise DeviceError(
            f"expected {processor.name} to be there until the budget is spent, got "
            f"{last_line(error)!r}; "
            f"its {len(dataset.rows)} kernels are kept in {dataset.path}: bring it back and "
            "measure again to go on"
        ) from error


def measure_together(dataset: Dataset, host: Processor, other: Processor, bench: Bench) -> None:
    """Measure transfers between the CPU and another processor, and the slowdown of both."""
    if any(row.features.family == "transfer" for row in dataset.rows):
        return
    slower = measure_slowdown(host, other, bench.timed)
    rows = measure_transfers(host, other, bench.timed)
    dataset.append(*(replace(row, together=slower) for row in rows))
    say(f"{host.name} and {other.name}: hand-overs measured; together {slower:.2f} times as long")


def learn(
    dataset: Dataset,  # the measurements
    processor: Processor,  # the measured processor
    # models of the CPU, if the processor runs the same loop nests, or of similar devices
    below: Sequence[MeasuredModel] = (),
) -> MeasuredModel:
    """Fit the cost model of a dataset, scaled to the machine's usual speed.

    Disturbed rows are used only for kernels without undisturbed ones. If there are several models
    below, the one closest to the measurements is corrected.
    """
    quiet = {row.features for row in dataset.rows if row.quiet}
    rows = [row for row in dataset.rows if row.quiet or row.features not in quiet]
    usual = pace_of(rows, processor)
    kernels = [row.features for row in rows]
    measured = [at_pace(row.nanoseconds, row.reference_ns, usual) for row in rows]
    return train(
        kernels,
        measured,
        dataset.device,
        processor.speed,
        max((row.together for row in rows), default=1.0),
        origins=[(row.network, row.batch) for row in rows],
        below=min(below, key=lambda model: model.distance(kernels, measured), default=None),
    )


def pace_of(rows: Sequence[Row], processor: Processor) -> float:
    """The usual time of the reference kernel, for `at_pace`; 0, which scales nothing, on a GPU.

    On an H100 the reference kernel, a few microseconds after its launch, takes 16 µs in one process
    and 23 in another, while larger kernels take the same in both.
    """
    return usual_pace(rows) if processor.machine.gpu is None else 0.0


@contextlib.contextmanager
def measuring_into(folder: Path) -> Iterator[None]:
    """Context that locks the folder, and makes it if it does not exist.

    Two campaigns in one folder would use the same batch numbers, and measure each batch twice.
    """
    with writing("the measurements", CostModelError):
        make_folder(folder)
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise CostModelError(
            f"expected {folder} for these measurements alone, got another campaign that is "
            "writing to it; wait until it is over, or name another folder"
        ) from error
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # forked processes hold the handle, too
        os.close(handle)


def open_dataset(folder: Path, processor: Processor, resume: bool = True) -> Dataset:
    """The processor's measurements in the folder; an empty file if there are none."""
    path, own = folder / f"{processor.name}.jsonl", fingerprint(processor)
    if resume and path.exists() and path.stat().st_size:
        return Dataset.open(path, own)
    return Dataset.create(path, own)


def batches_ahead(processor: Processor, place: Description | None) -> int:
    """The number of batches to compile ahead; 0 where compiling would disturb the timing."""
    is_here = place is None or place.is_like_this_machine
    return 0 if is_here and not processor.hardware.packet_ns else _AHEAD


class Campaign:
    """Fills the dataset of one processor: networks, the prior, then samples where the model errs.

    Args:
        workshop: compiles for the processor.
        dataset: earlier measurements, to which new ones are appended.
        dice: the random numbers that choose samples.
        similar: a model of a similar device; then layers come first, those that tell most before.
    """

    def __init__(
        self,
        workshop: Workshop,
        dataset: Dataset,
        dice: random.Random,
        similar: MeasuredModel | None = None,
    ) -> None:
        self.processor = workshop.processor
        self.dataset = dataset
        self._workshop = workshop
        self._prepared: Callable[[int], Prepared] = self.prepare
        self.seed = dice.random()
        self.prior = load_prior()
        if self.processor.machine.gpu is not None:
            self.prior += pairs_of(self.prior)
        dice.shuffle(self.prior)
        self._layers_first = 0 if similar is None else _TELLING
        if similar is not None:
            self.prior = telling_first(self.prior, similar, self.processor.machine)
        self._trouble: list[tuple[Sample, float]] = []
        self._learned_from = 0
        self._lock = threading.Lock()  # guards the dataset, which several phones may fill

    @contextlib.contextmanager
    def compiling_ahead(self, most: int) -> Iterator[None]:
        """Context in which up to ``most`` batches are compiled ahead of their measurement."""
        with Ahead(self.prepare, self.first_batch, most) as ahead:
            self._prepared = ahead.take
            yield

    def run(
        self, bench: Bench, seconds: float, networks: Mapping[str, object], ahead: int = 0
    ) -> None:
        """Measure until the time is over; see `compiling_ahead`."""
        end = time.monotonic() + seconds
        with losing_no_rows(self.dataset, self.processor), self.compiling_ahead(ahead):
            self._run(bench, end, networks)

    def _run(self, bench: Bench, end: float, networks: Mapping[str, object]) -> None:
        self.measure_networks(bench, networks, end)
        batch = self.first_batch
        while time.monotonic() < end:
            self.measure_batch(batch, bench, end)
            batch += 1

    def measure_networks(
        self, bench: Bench, networks: Mapping[str, object], end: float = math.inf
    ) -> None:
        """Measure the networks that are not measured yet."""
        measured = {row.network for row in self.dataset.rows}
        for name, network in networks.items():
            if name not in measured and time.monotonic() < end:
                prepared = self._workshop.network(network)
                self._add(bench.measure_network(name, prepared).rows, name, bench)

    @property
    def first_batch(self) -> int:
        """The number of the first batch that is not measured yet."""
        return 1 + max((row.batch for row in self.dataset.rows), default=-1)

    @property
    def missing_batches(self) -> list[int]:
        """The numbers of earlier batches without measurements, as an interrupted fleet leaves."""
        return sorted(set(range(self.first_batch)) - {row.batch for row in self.dataset.rows})

    def measure_batch(self, batch: int, bench: Bench, end: float) -> None:
        """Measure one batch, and again if the machine was busy and there is time."""
        prepared = self._prepared(batch)
        rows = bench.measure(prepared, batch)
        if rows and not any(row.quiet for row in rows) and time.monotonic() < end:
            say(f"batch {batch}: the machine is busy; measured again")
            rows = bench.measure(prepared, batch)
        self._add(rows, f"batch {batch}", bench)

    def prepare(self, batch: int) -> Prepared:
        """Compile a batch: mostly samples, sometimes a small network of other operators.

        In every second batch, samples find their data far away, and layers are in halves.
        """
        turn, place = divmod(max(0, batch - self._layers_first), _SCENE_EVERY)
        has_integers = self._has_integers
        if self.processor.hardware.packet_ns:
            samples = [in_integers(sample) for sample in self._samples(batch)]
        elif place == _SCENE_EVERY - 1:
            with compiling():
                small = scene(batch)
                return self._workshop.halves(small) if batch % 2 else self._workshop.network(small)
        elif has_integers and place == _INTEGERS:
            samples = [in_integers(sample) for sample in self._samples(turn)]
        else:
            number = batch - turn * (1 + has_integers) - (has_integers and place > _INTEGERS)
            samples = [replace(s, dtype="float32") for s in self._samples(number)]
            if self.processor.machine.gpu is not None:
                samples += self._large(batch, number)
        return self._workshop.samples(samples, apart=batch % 2 == 1)

    def _large(self, batch: int, number: int) -> list[Sample]:
        """Samples that the layers of the zoo do not show to a GPU often enough."""
        dice = random.Random(f"{self.seed}/{batch}/large")
        far = [far_reader(dice)] if number % _FAR_EVERY == 0 else []
        return [wide_window(dice), *far]

    @property
    def _has_integers(self) -> bool:
        """Whether it has kernels for 8-bit numbers; GPUs compute them in float32."""
        machine = self.processor.machine
        return machine.gpu is None and not machine.float_integers

    def _add(self, rows: Sequence[Row], what: str, bench: Bench) -> None:
        with self._lock:
            self.dataset.append(*rows)
            total = len(self.dataset.rows)
        say(f"{what}: {len(rows)} kernels, {total} in all, {bench.describe()}")

    def _samples(self, batch: int) -> list[Sample]:
        """The samples of a batch, a function of its number and the measurements so far."""
        start = batch * BATCH
        dice = random.Random(f"{self.seed}/{batch}")
        if start < len(self.prior):
            return with_functions(self.prior[start : start + BATCH], dice)
        trouble = self._where_it_errs()
        found = []
        for _ in range(BATCH):
            if trouble and dice.random() < _REFINE_SHARE:
                samples, errors = zip(*trouble, strict=True)
                origin = dice.choices(samples, errors)[0]
            else:
                origin = by_kind(self.prior, dice)
            found.append(neighbour(origin, dice))
        return found

    def _where_it_errs(self) -> list[tuple[Sample, float]]:
        """Measured samples, each with its held-out error."""
        rows = [row for row in self.dataset.rows if row.sample is not None and row.quiet]
        if len(rows) < 60 or len(rows) < 1.3 * self._learned_from:
            return self._trouble
        self._learned_from = len(rows)
        errors = [0.0] * len(rows)
        for fold in range(2):
            kept = Dataset(self.dataset.path, self.dataset.device, rows[fold::2])
            model = learn(kept, self.processor)
            held = list(range(1 - fold, len(rows), 2))
            answers = model.predict_all([rows[i].features for i in held])
            for i, answer in zip(held, answers, strict=True):
                errors[i] = abs(answer.nanoseconds / rows[i].nanoseconds - 1.0)
        samples = [Sample.from_json(row.sample or {}) for row in rows]
        weighted = zip(samples, (e + 0.02 for e in errors), strict=True)
        self._trouble = [(sample, error) for sample, error in weighted if sample.is_possible]
        say(f"held-out error {100 * sum(errors) / len(errors):.1f} %; sampling where it is")
        return self._trouble
