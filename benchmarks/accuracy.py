"""The accuracy of stretched networks relative to the originals, over paired seeds.

    python -m benchmarks.accuracy --folder build/accuracy --seeds 8 [--device cuda] [--json F]

Every seed draws its own images (accuracy_tasks.py) and trains the original and its stretched form
in the same way, from random numbers; distils the one into the other; and starts the stretched form
from the original's weights: with batch-norm statistics computed anew, with weights fitted to what
the original computes (``training.imitate``: no labels, no training), with all layers brought nearer
to that together (``training.refine``: no labels), and after two more epochs at a low rate.
Differences are those of pairs, with 95 % intervals (Student's). Finished trials stay in the folder,
and the same command resumes.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm
from scipy.stats import t as student

from benchmarks.accuracy_networks import NETWORKS, equal_capacity, stretching
from benchmarks.accuracy_tasks import CLASSES, SIZE, Data, digits, shapes, turned
from benchmarks.commands import Table, options, say
from tvm_stretch.base.files import write_whole
from tvm_stretch.lab.training import (
    Batches,
    TrainableNetwork,
    Training,
    accuracy,
    distill,
    fit,
    imitate,
    load_torch,
    recalibrate,
    refine,
    to_torch,
)
from tvm_stretch.lab.training.exchange import graph_of
from tvm_stretch.lab.training.torch_graph import Graph
from tvm_stretch.passes.duplicate_and_scale import with_sources
from tvm_stretch.plan.design import Design

TASKS = {"shapes": (3, SIZE), "digits": (1, 8)}
MEASURES = ("alike", "distilled", "copied", "recalibrated", "imitating", "refined", "two epochs")

Row = dict[str, Any]


# --- one training ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How long and on how much each network is trained."""

    trained: int = 4000  # images
    tested: int = 6000  # images
    epochs: int = 12
    rate: float = 0.05  # the highest learning rate
    low_rate: float = 0.01  # of the two epochs after a warm start
    steps: int = 400  # in which a warm start is refined
    batch: int = 32

    @property
    def words(self) -> Iterator[tuple[str, Any]]:
        """Arguments of a command line, for `options`."""
        for name, value in asdict(self).items():
            yield f"--{name.replace('_', '-')}", value

    @classmethod
    def of_words(cls, args: Any) -> Schedule:
        """The schedule that a command line names."""
        return cls(**{name: getattr(args, name) for name in asdict(cls())})


def fresh(graph: Graph, seed: int) -> TrainableNetwork:
    """A network with random weights, after He."""
    random = np.random.default_rng(seed)
    norms = {weight.layer for weight in graph.weights if weight.role == "running_var"}

    def drawn(role: str, layer: str, shape: tuple[int, ...]) -> np.ndarray:
        if layer in norms or role != "weight":
            ones = role in ("weight", "running_var")
            return np.full(shape, 1.0 if ones else 0.0, "float32")
        inside = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        gain = 2.0 if len(shape) > 2 else 1.0
        values = random.standard_normal(shape) * math.sqrt(gain / inside)
        return values.astype("float32")

    weights = {w.name: drawn(w.role, w.layer, w.shape) for w in graph.weights}
    net = TrainableNetwork(graph, weights)
    return net.to(memory_format=torch.channels_last)  # a fifth faster on a CPU


def batches_of(data: Data, schedule: Schedule) -> Batches:
    """The training batches."""
    augment = turned if data.are_turned else None
    return Batches(data.images, data.labels, schedule.batch, augment=augment)


def percent(net: torch.nn.Module, data: Data) -> float:
    """How often a network is right."""
    return 100 * accuracy(net, Batches(data.test_images, data.test_labels, 1000, shuffled=False))


def silent(_line: str) -> None:
    """Progress of a training, of which a line at its end is enough."""


def trial(
    mod: tvm.IRModule, design: Design, data: Data, schedule: Schedule, seed: int
) -> dict[str, float]:
    """Accuracies of one seed, in percent, and seconds."""
    began = time.perf_counter()
    batches, device = batches_of(data, schedule), data.images.device
    how: dict[str, Any] = {"seed": seed, "device": device, "progress": silent}
    long = {**how, "epochs": schedule.epochs, "rate": schedule.rate}
    original = fresh(graph_of(mod)[0], seed)
    alike = fresh(graph_of(with_sources(mod, design)[0])[0], seed)
    fit(original, batches, Training(**long))
    fit(alike, batches, Training(**long))
    stretched, sources = with_sources(load_torch(mod, original), design, seed=seed)
    warm = to_torch(stretched, sources=sources).to(device)
    accuracy = {
        name: percent(net, data) for name, net in (("original", original), ("alike", alike))
    }
    accuracy["copied"] = percent(warm, data)
    recalibrate(warm, data.images[:2048], progress=silent)
    accuracy["recalibrated"] = percent(warm, data)
    imitate(warm, original, data.images[:2048], progress=silent)
    accuracy["imitating"] = percent(warm, data)
    images = Batches(data.images, data.labels, augment=batches.augment)
    refine(warm, original, images, steps=schedule.steps, seed=seed, progress=silent)
    accuracy["refined"] = percent(warm, data)
    fit(warm, batches, Training(epochs=2, rate=schedule.low_rate, **how))
    accuracy["two epochs"] = percent(warm, data)
    taught = to_torch(stretched)
    distill(taught, original, batches, Training(**long))
    accuracy["distilled"] = percent(taught, data)
    return accuracy | {"seconds": time.perf_counter() - began}


# --- many trainings -------------------------------------------------------------------------------


def trainings(
    jobs: Mapping[Path, tuple[Any, ...]],
    train: Callable[[tuple[Any, ...]], Row],
    schedule: Schedule,
    workers: int,
) -> list[Row]:
    """What each job says, in several processes; finished ones are read from their files."""
    missing = [path for path in jobs if _finished(path, schedule) is None]
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(missing) or 1), torch.set_num_threads, (1,)) as pool:
        rows = pool.imap(train, [jobs[path] for path in missing])
        for number, (path, row) in enumerate(zip(missing, rows, strict=True), 1):
            write_whole(path, json.dumps(row | {"schedule": asdict(schedule)}))
            figures = ", ".join(f"{k} {v:.1f}" for k, v in row.items() if isinstance(v, float))
            say(f"{number} of {len(missing)}: {path.stem}: {figures}")
    return [_finished(path, schedule) or {} for path in jobs]


def _finished(path: Path, schedule: Schedule) -> Row | None:
    row = json.loads(path.read_text()) if path.exists() else {}
    return row if row.get("schedule") == asdict(schedule) else None


@cache
def _stretched(network: str, task: str) -> tuple[tvm.IRModule, Design]:
    st = stretching(NETWORKS[network], *TASKS[task], CLASSES)
    return st.mod, equal_capacity(st)


def _train(job: tuple[Any, ...]) -> Row:
    folder, task, network, seed, schedule, device = job
    drawn = digits(folder / "digits.pt", seed) if task == "digits" else None
    data = drawn or shapes(seed, schedule.trained, schedule.tested)
    row = {"task": task, "network": network, "seed": seed}
    return row | trial(*_stretched(network, task), data.to(device), schedule, seed)


# --- the table ------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    if len(values) < 2:
        return values[0], float("inf")
    quantile = float(student.ppf(0.975, len(values) - 1))
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def summary(found: Sequence[Row]) -> list[Row]:
    """One row for each task and network: the original's accuracy, and paired differences."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in found:
        groups[row["task"], row["network"]].append(row)
    result = []
    for (task, network), own in groups.items():
        summed: Row = {"task": task, "network": network, "seeds": len(own)}
        summed["original"] = statistics.mean(row["original"] for row in own)
        for measure in MEASURES:
            mean, half = interval([row[measure] - row["original"] for row in own])
            summed[measure] = {"mean": mean, "low": mean - half, "high": mean + half}
        result.append(summed | {"seconds": sum(row["seconds"] for row in own)})
    return result


def show(summed: Sequence[Row]) -> None:
    """Print the table."""
    table = Table("task", "network", "seeds", "original %", *MEASURES)
    for row in summed:
        cells = ("{mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(**row[m]) for m in MEASURES)
        table.row(row["task"], row["network"], row["seeds"], row["original"], *cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    args = options(
        *(__doc__, arguments, ("--folder", Path("build/accuracy")), ("--seeds", 8)),
        *(("--tasks", tuple(TASKS)), ("--networks", tuple(NETWORKS)), ("--device", "cpu")),
        ("--workers", int, "processes; by default 8 on a GPU, else cores"),
        ("--json", Path, "write the summary there"),
        *Schedule().words,
        tasks=TASKS,
        networks=NETWORKS,
    )
    schedule = Schedule.of_words(args)
    args.folder.mkdir(parents=True, exist_ok=True)
    if "digits" in args.tasks:
        digits(args.folder / "digits.pt", 0)  # before several processes look for the file
    jobs = {
        args.folder / f"{task}.{network}.{seed}.json": (
            *(args.folder, task, network, seed, schedule, args.device),
        )
        for seed in range(args.seeds)
        for task in args.tasks
        for network in args.networks
    }
    workers = args.workers or (8 if args.device != "cpu" else os.cpu_count() or 1)
    summed = summary(trainings(jobs, _train, schedule, workers))
    show(summed)
    if args.json:
        write_whole(args.json, json.dumps({"rows": summed}, indent=1))


if __name__ == "__main__":
    main()
