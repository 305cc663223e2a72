"""``ts.measure()``: time kernels on the device, learn a cost model of each processor.

    models = ts.measure(["llvm", "opencl"], budget=300, folder="costs")
        costs/cpu.jsonl, costs/opencl.jsonl       measurements, one line each
        costs/cpu.json,  costs/opencl.json        the models learned from them

Killed at any point it goes on where it stopped when it is called again.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import scipy.optimize  # noqa: F401  learning imports them late, where Ctrl-C would end the process
import xgboost  # noqa: F401

from tvm_stretch.cost.device import chosen_folder, fingerprint
from tvm_stretch.cost.model import MeasuredModel, train
from tvm_stretch.errors import CostModelError, DeviceError, InputError, last_line
from tvm_stretch.files import writing
from tvm_stretch.measuring.bench import Bench
from tvm_stretch.measuring.dataset import Dataset, Row, at_pace, require_networks, usual_pace
from tvm_stretch.measuring.samples import Sample, load_prior, neighbour, with_functions
from tvm_stretch.measuring.scenes import scene
from tvm_stretch.measuring.transfers import measure_slowdown, measure_transfers
from tvm_stretch.progress import Progress, reporting, say
from tvm_stretch.remote.device import Device
from tvm_stretch.remote.processors import processors_of
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.registry import TargetLike

BATCH = 12
"""Samples that are compiled together."""

_REFINE_SHARE = 0.7  # of the samples after the prior go where the model errs most
_SCENE_EVERY = 5
"""Every so many batches one is a small network of other operators."""


def measure(
    targets: Sequence[TargetLike] | TargetLike | None = None,
    *,
    budget: float = 480.0,
    resume: bool = True,
    folder: str | os.PathLike[str] | None = None,
    networks: Mapping[str, object] | None = None,
    device: Device | None = None,
    cpu_threads: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> dict[str, MeasuredModel]:
    """Measure kernels of each processor and learn a cost model from them.

    Args:
        targets: the processors, as for ``compile``; by default the CPU, or all of the device.
        budget: seconds to spend on measuring, over all processors.
        resume: go on with the measurements that the folder holds; False starts again.
        folder: where measurements and models go; by default the user's cache.
        networks: networks, by name, whose kernels are measured first, in place.
        device: where to measure, as ``ts.connect`` gives it; by default this machine.
        cpu_threads: as for ``compile``.
        progress: receives a line of text after every step; by default they are shown on one line of
            the terminal, if there is one.
        seed: of the samples.

    Returns:
        The models by name of processor; also written to the folder.

    Raises:
        InputError: the budget is not positive, or the device is none.
        CostModelError: the folder's measurements are damaged or from another device.
        DeviceError: a device disappeared, or answers what cannot be: what was measured is kept, and
            another call goes on with it.
    """
    if not isinstance(budget, int | float) or not budget > 0:
        raise InputError(f"expected a positive number of seconds for budget, got {budget!r}")
    require_networks(networks)
    if not isinstance(seed, int):
        raise InputError(f"expected a whole number for seed, got {seed!r}; 0 is one")
    processors, placeable = processors_of(device, targets, cpu_threads)
    kept_in = chosen_folder(folder, processors[0])
    with writing("the measurements", CostModelError):
        kept_in.mkdir(parents=True, exist_ok=True)
    models: dict[str, MeasuredModel] = {}
    host = processors[0]
    others = [p for p in placeable if p is not host]
    in_order = sorted(placeable, key=lambda p: p is not host)  # others may stand on its model
    with reporting(progress):
        for index, processor in enumerate(in_order):
            own = [processor, *(p for p in processors[:1] if p is not processor)]
            share = budget / (len(placeable) - index)
            start = time.monotonic()
            dataset = open_dataset(kept_in, processor, resume)
            with _whatever_happens(dataset, processor):
                bench = Bench(own, device)
                if processor in others:
                    _measure_together(dataset, host, processor, bench)
            Campaign(bench, dataset, random.Random(seed)).run(share, networks or {})
            budget = max(1.0, budget - (time.monotonic() - start))
            below = models.get(host.name) if processor.on_host_cores else None
            models[processor.name] = learn(dataset, processor, below)
            models[processor.name].save(kept_in / f"{processor.name}.json")
            say(f"{processor.name}: {len(dataset.rows)} kernels, model in {kept_in}")
    return models


@contextlib.contextmanager
def _whatever_happens(dataset: Dataset, processor: Processor) -> Iterator[None]:
    """A device that disappears becomes one clear error; its measurements are on the disk."""
    try:
        yield
    except (DeviceError, RuntimeError, OSError) as error:  # RuntimeError: of TVM
        raise DeviceError(
            f"expected {processor.name} to be there until the budget is spent, got "
            f"{last_line(error)!r}; "
            f"its {len(dataset.rows)} kernels are kept in {dataset.path}: bring it back and "
            "measure again to go on"
        ) from error


def _measure_together(dataset: Dataset, host: Processor, other: Processor, bench: Bench) -> None:
    """Hand-overs between the CPU and another processor, and the slowdown of both."""
    if any(row.features.family == "transfer" for row in dataset.rows):
        return
    slower = measure_slowdown(host, other, bench.timed)
    rows = measure_transfers(host, other, bench.timed)
    dataset.append(*(replace(row, together=slower) for row in rows))
    say(f"{host.name} and {other.name}: hand-overs measured; together {slower:.2f} times as long")


def learn(
    dataset: Dataset,
    processor: Processor,
    below: MeasuredModel | None = None,
    intervals: bool = True,
) -> MeasuredModel:
    """The cost model of a dataset, of its usual pace.

    Disturbed rows count only for kernels that have no other.

    Args:
        dataset: the measurements.
        processor: what was measured.
        below: the model of the CPU, if the processor runs the same loop nests.
        intervals: as for `fit_family`.
    """
    known = {row.features for row in dataset.rows if row.quiet}
    rows = [row for row in dataset.rows if row.quiet or row.features not in known]
    usual = usual_pace(rows)
    return train(
        [row.features for row in rows],
        [at_pace(row.nanoseconds, row.reference_ns, usual) for row in rows],
        dataset.device,
        processor.speed,
        max((row.together for row in rows), default=1.0),
        origins=[(row.network, row.batch) for row in rows],
        below=below,
        intervals=intervals,
    )


def open_dataset(folder: Path, processor: Processor, resume: bool = True) -> Dataset:
    """The processor's measurements in the folder; an empty file if there are none."""
    path, own = folder / f"{processor.name}.jsonl", fingerprint(processor)
    if resume and path.exists() and path.stat().st_size:
        return Dataset.open(path, own)
    return Dataset.create(path, own)


class Campaign:
    """Fills the dataset of one processor: networks, the prior, then where the model errs."""

    def __init__(self, bench: Bench, dataset: Dataset, dice: random.Random) -> None:
        self.bench = bench
        self.dataset = dataset
        self.seed = dice.random()
        self.prior = load_prior()
        dice.shuffle(self.prior)
        self._trouble: list[tuple[Sample, float]] = []
        self._learned_from = 0

    def run(self, seconds: float, networks: Mapping[str, object]) -> None:
        """Measure until the time is over."""
        with _whatever_happens(self.dataset, self.bench.processor):
            self._run(time.monotonic() + seconds, networks)

    def _run(self, end: float, networks: Mapping[str, object]) -> None:
        known = {row.network for row in self.dataset.rows}
        for name, network in networks.items():
            if name not in known and time.monotonic() < end:
                self._add(self.bench.measure_network(name, network).rows, name)
        batch = 1 + max((row.batch for row in self.dataset.rows), default=-1)
        while time.monotonic() < end:
            work = self._work(batch)
            rows = work()
            if rows and not any(row.quiet for row in rows) and time.monotonic() < end:
                say(f"batch {batch}: the machine is busy; measured again")
                rows = work()
            self._add(rows, f"batch {batch}")
            batch += 1

    def _work(self, batch: int) -> Callable[[], list[Row]]:
        """What to measure next: mostly samples, now and then a small network for the rest."""
        if batch % _SCENE_EVERY == _SCENE_EVERY - 1:
            return partial(self.bench.measure_scene, scene(batch), batch)
        samples = self._samples(batch - batch // _SCENE_EVERY)
        return partial(self.bench.measure_samples, samples, batch)

    def _add(self, rows: Sequence[Row], what: str) -> None:
        self.dataset.append(*rows)
        total = len(self.dataset.rows)
        say(f"{what}: {len(rows)} kernels, {total} in all, {self.bench.describe()}")

    def _samples(self, batch: int) -> list[Sample]:
        """Samples: the same whenever they are asked for with the same measurements."""
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
                origin = dice.choice(self.prior)
            found.append(neighbour(origin, dice))
        return found

    def _where_it_errs(self) -> list[tuple[Sample, float]]:
        """Measured samples, each with the error of a model that has not seen it."""
        rows = [row for row in self.dataset.rows if row.sample is not None and row.quiet]
        if len(rows) < 60 or len(rows) < 1.3 * self._learned_from:
            return self._trouble
        self._learned_from = len(rows)
        errors = [0.0] * len(rows)
        for fold in range(2):
            kept = Dataset(self.dataset.path, self.dataset.device, rows[fold::2])
            model = learn(kept, self.bench.processor, intervals=False)
            held = list(range(1 - fold, len(rows), 2))
            answers = model.predict_all([rows[i].features for i in held])
            for i, answer in zip(held, answers, strict=True):
                errors[i] = abs(answer.nanoseconds / rows[i].nanoseconds - 1.0)
        samples = [Sample.from_json(row.sample or {}) for row in rows]
        found = zip(samples, (e + 0.02 for e in errors), strict=True)
        self._trouble = [(sample, error) for sample, error in found if sample.is_possible]
        say(f"held-out error {100 * sum(errors) / len(errors):.1f} %; sampling where it is")
        return self._trouble
