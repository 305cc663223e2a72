"""Measures networks and samples for `benchmarks.cost_model`, after everything has been compiled.

    compile    ResNet-18, random0, .., batch 0, batch 1, ..      a process for each core but one
    measure    one after the other, in this process, while nothing else runs

Compiling between two measurements lets a GPU's clock fall and fills the caches of the CPU: on one
H200, only 12 of 33 networks ran undisturbed then.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.commands import say
from tutorials import zoo
from tutorials.zoo.builder import Builder
from tvm_stretch.base.progress import reporting
from tvm_stretch.plan.cost.generic_features import from_json, to_json
from tvm_stretch.plan.measuring.bench import Bench, NetworkTiming, set_inputs
from tvm_stretch.plan.measuring.campaign import Campaign, measure_together, open_dataset
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.workshop import Prepared, Workshop
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors

_LEAST = 2
"""The times that each network and batch is measured, minutes apart; the quickest one counts.

For seconds, launches on a GPU take half as long again: in one pass over 36 networks on an H200,
seven ran in such seconds.
"""

_PASSES = 8
"""The most times that a network is measured if it is disturbed, or if its times do not repeat."""

_AGREE = 1.04
"""The quickest time of a network counts if another pass confirms it up to this factor."""

_BEYOND = 1.1
"""A plain run is disturbed if it takes this factor more than its kernels and launches explain."""

ZOO = (
    *("mobilenet_v2", "resnet18", "squeezenet1_1", "squeezenet1_0", "mobilenet_v1"),
    *("regnetx_1_6gf", "resnet34", "mobilenet_v3_small", "efficientnet_lite0", "resnet50"),
    *("mobilenet_v3_large", "inception_v3", "efficientnet_lite4", "regnetx_4gf", "pnasnet_mobile"),
    *("yolov2", "vgg16", "inception_v4"),
)


def random_network(seed: int) -> object:
    """A small CNN of three to five stages of random blocks."""
    dice = random.Random(seed)
    b = Builder(seed)
    side = dice.choice((96, 112, 128, 160, 192, 224))
    width = dice.choice((16, 24, 32, 40, 48))
    x = b.input("x", (1, 3, side, side))
    x = b.conv_bn(x, width, dice.choice((3, 5)), 2, act="relu")
    for _ in range(dice.randint(3, 4)):
        kind = dice.choice(("basic", "bottleneck", "mobile", "plain"))
        width = dice.randrange(width, 2 * width + 1, 8)
        act = dice.choice(("relu", "relu6", "swish"))
        for index in range(dice.randint(1, 3)):
            x = _block(b, x, kind, width, 2 if index == 0 else 1, act)
    x = b.global_pool(x)
    return b.finish(f"random{seed}", b.dense(b.flatten(x), dice.choice((10, 100, 1000))))


def _block(b: Builder, x: Any, kind: str, width: int, stride: int, act: str) -> Any:
    if kind == "plain":
        return b.conv_bn(x, width, 3, stride, act=act)
    if kind == "basic":
        y = b.conv_bn(b.conv_bn(x, width, 3, stride, act=act), width, 3)
    elif kind == "bottleneck":
        inner = max(8, width // 2)
        y = b.conv_bn(b.conv_bn(x, inner, 1, act=act), inner, 3, stride, act=act)
        y = b.conv_bn(y, width, 1)
    else:
        inner = 4 * x.channels
        y = b.conv_bn(b.conv_bn(x, inner, 1, act=act), inner, 3, stride, groups=inner, act=act)
        y = b.conv_bn(y, width, 1)
        return b.add(x, y) if (stride, x.channels) == (1, width) else y
    if (stride, x.channels) != (1, width):
        x = b.conv_bn(x, width, 1, stride)
    return b.add(x, y, act=act)


NETWORKS = tuple(one for i, name in enumerate(ZOO) for one in (name, f"random{i}"))
"""Zoo members and random networks in turn."""


def _built(name: str) -> object:
    is_random = name.startswith("random")
    return random_network(int(name.removeprefix("random"))) if is_random else zoo.build(name)


# --- compiling ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a process compiles for one processor: a network by name, or a batch of samples."""

    processor: str
    what: str | int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.processor}.{self.what}.pickle"


_workshops: dict[str, Workshop] = {}


def _start(targets: Sequence[Any]) -> None:
    """Make the workshops of a process."""
    processors, placeable = make_processors(targets, 1)
    for processor in placeable:
        _workshops[processor.name] = _workshop(processor, processors[0])


def _workshop(processor: Processor, host: Processor) -> Workshop:
    return Workshop([processor] if processor is host else [processor, host])


def _jobs(folder: Path, networks: Sequence[str], batches: int) -> list[Job]:
    """What was not measured yet, or was disturbed."""
    jobs = []
    for name, workshop in _workshops.items():
        known = set[str]()
        if _path(folder, name).exists():
            known = {n.name for n in read_networks(folder, name) if n.quiet}
        measured = {row.batch for row in open_dataset(folder, workshop.processor).rows}
        unknown = [network for network in networks if network not in known]
        numbers = [batch for batch in range(batches) if batch not in measured]
        jobs += [Job(name, what) for what in (*unknown, *numbers)]
    return jobs


def _compile(job: Job, compiled: Path) -> None:
    workshop = _workshops[job.processor]
    if isinstance(job.what, int):
        campaign = Campaign(workshop, Dataset(compiled, {}, []), random.Random(0))
        prepared = campaign.prepare(job.what)
    else:
        prepared = workshop.network(_built(job.what))
    set_inputs(prepared.model.module, prepared.model.graph)
    (compiled / job.file).write_bytes(pickle.dumps(prepared))


def compile_all(
    targets: Sequence[Any], folder: Path, networks: Sequence[str], batches: int, compiled: Path
) -> list[Job]:
    """Compile in a process for each core but one what the folder lacks.

    So does the driver, whose programs stay in our cache: on an H100 that takes a second and more
    for a batch, which runs in milliseconds.

    No driver may be open here yet: a loader of OpenCL that reads OCL_ICD_FILENAMES shortens it
    to the first name, and processes that start later find only that driver.
    """
    start, workers = time.monotonic(), max(1, len(os.sched_getaffinity(0)) - 1)
    spawn = multiprocessing.get_context("spawn")  # a fork would share the threads of drivers
    with ProcessPoolExecutor(workers, spawn, _start, (list(targets),)) as pool:
        jobs = pool.submit(_jobs, folder, networks, batches).result()
        for done in [pool.submit(_compile, job, compiled) for job in jobs]:
            done.result()
    took = time.monotonic() - start
    say(f"{len(jobs)} compiled in {took:.0f} s by {workers} processes")
    return jobs


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A measured network: features of its kernels in order, and the time of a run."""

    name: str
    kernels: list[Features]
    nanoseconds: float
    quiet: bool
    reference_ns: int
    copied_ns: int = 0  # copies of inputs and outputs to and from the device

    @property
    def computed_ns(self) -> float:
        """A run without copies, whose model is that of hand-overs."""
        return self.nanoseconds - self.copied_ns


def measure_all(
    targets: Sequence[Any],
    folder: Path,
    seconds: float,
    batches: int,
    networks: Sequence[str] = NETWORKS,
) -> None:
    """Fill the folder; what was measured undisturbed is kept and not measured again."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, reporting(say):
        compiled = Path(scratch)
        jobs = compile_all(targets, folder, networks, batches, compiled)
        processors, placeable = make_processors(targets, 1)
        for processor in placeable:
            own = [job for job in jobs if job.processor == processor.name]
            workshop, dataset = _workshop(processor, processors[0]), open_dataset(folder, processor)
            bench = Bench(workshop)
            _measure_networks(own, bench, dataset, compiled, time.monotonic() + seconds)
            if processor is not processors[0]:
                measure_together(dataset, processors[0], processor, bench)
            _measure_samples(own, bench, dataset, compiled, time.monotonic() + seconds)


def _read(job: Job, compiled: Path) -> Prepared:
    """A model that a process of ours compiled."""
    prepared = pickle.loads((compiled / job.file).read_bytes())
    assert isinstance(prepared, Prepared)
    return prepared


def _measure_networks(
    jobs: Sequence[Job], bench: Bench, dataset: Dataset, compiled: Path, end: float
) -> None:
    """Measure each network until two passes agree, `_LEAST` to `_PASSES` times."""
    found: dict[Job, list[NetworkTiming]] = {job: [] for job in jobs if isinstance(job.what, str)}
    try:
        for number in range(_PASSES):
            for job, passes in found.items():
                is_known = number >= _LEAST and _is_confirmed(passes, _launch_ns(found))
                if is_known or time.monotonic() > end:
                    continue
                passes.append(bench.measure_network(str(job.what), _read(job, compiled)))
                quiet = "" if _is_quiet(passes[-1], _launch_ns(found)) else ", disturbed"
                say(f"{job.what}: {passes[-1].total.nanoseconds / 1e6:.2f} ms{quiet}")
    finally:
        launch = _launch_ns(found)
        for job, passes in found.items():
            if not passes:
                continue
            best = _quickest(passes, launch)
            dataset.append(*best.rows)
            with _path(dataset.path.parent, job.processor).open("a", encoding="utf-8") as file:
                file.write(json.dumps(_network_json(str(job.what), best, launch)) + "\n")


def _launch_ns(found: Mapping[Job, Sequence[NetworkTiming]]) -> float:
    """What a launch takes in quick moments: the least time of a run by its number of kernels."""
    every = [timing for passes in found.values() for timing in passes if timing.traced]
    return min((t.total.nanoseconds / len(t.traced) for t in every), default=0.0)


def _is_quiet(timing: NetworkTiming, launch_ns: float) -> bool:
    """Whether kernels, launches and copies explain the plain run.

    On a GPU each kernel hides a launch or is hidden by it, so the longer of the two is enough.
    """
    explained = timing.copied_ns + sum(max(kernel, launch_ns) for kernel in timing.traced)
    return timing.total.quiet and timing.total.nanoseconds <= _BEYOND * explained


def _is_confirmed(passes: Sequence[NetworkTiming], launch_ns: float) -> bool:
    """Whether the two quickest undisturbed passes agree."""
    quick = sorted(t.total.nanoseconds for t in passes if _is_quiet(t, launch_ns))
    return len(quick) > 1 and quick[1] <= _AGREE * quick[0]


def _quickest(passes: Sequence[NetworkTiming], launch_ns: float) -> NetworkTiming:
    return min(passes, key=lambda t: (not _is_quiet(t, launch_ns), t.total.nanoseconds))


def _measure_samples(
    jobs: Sequence[Job], bench: Bench, dataset: Dataset, compiled: Path, end: float
) -> None:
    """Measure each batch of samples `_LEAST` times."""
    best: dict[Job, list[Row]] = {}
    try:
        for _ in range(_LEAST):
            for job in jobs:
                if isinstance(job.what, int) and time.monotonic() < end:
                    rows = bench.measure(_read(job, compiled), job.what)
                    best[job] = min(rows, best.get(job, rows), key=_by_batch)
                    say(f"batch {job.what}: {len(rows)} kernels, {bench.describe()}")
    finally:
        dataset.append(*(row for rows in best.values() for row in rows))


def _by_batch(rows: Sequence[Row]) -> tuple[int, int]:
    return sum(not row.quiet for row in rows), sum(row.nanoseconds for row in rows)


def _network_json(name: str, timing: NetworkTiming, launch_ns: float) -> dict[str, Any]:
    return {
        "name": name,
        "nanoseconds": timing.total.nanoseconds,
        "quiet": _is_quiet(timing, launch_ns),
        "reference_ns": timing.total.reference_ns,
        "copied_ns": timing.copied_ns,
        "kernels": [to_json(kernel) for kernel in timing.kernels],
    }


def _path(folder: Path, processor: str) -> Path:
    return folder / f"{processor}.networks.jsonl"


def read_networks(folder: Path, processor: str) -> list[Network]:
    """Each network once: where it ran in peace if it did, and quickest."""
    lines = _path(folder, processor).read_text(encoding="utf-8").splitlines()
    items = [json.loads(line) for line in lines]
    found: dict[str, Network] = {}
    for i in items:
        kernels = [one for k in i["kernels"] if (one := from_json(k)) is not None]
        times = i["nanoseconds"], i["quiet"], i["reference_ns"], i.get("copied_ns", 0)
        network = Network(i["name"], kernels, *times)
        known = found.setdefault(network.name, network)
        if (not network.quiet, network.nanoseconds) < (not known.quiet, known.nanoseconds):
            found[network.name] = network
    return list(found.values())
