"""A cost model for a new device in a minute, from measurements of a similar one.

    python -m benchmarks.cost_model measure --folder wide --seconds 300
    python -m benchmarks.cost_model measure --folder narrow --seconds 200 --cpu haswell
    python -m benchmarks.cost_model like --like wide --folder narrow --cpu haswell

`--folder` holds networks of the new device, measured as for `benchmarks.cost_model`. Each row of
the table is a model, judged on them; no model has seen a network, also none of the folder `--like`,
which `ts.tune.measure` may have written too:

    like alone       the other device's samples, nothing measured on the new device
    a minute, like   `ts.tune.measure(budget=60, like=...)`: samples by what they tell
    any, like        as many samples, by chance, and the same correction
    a minute alone   the samples of the first minute without the other device
    all samples      every sample in `--folder`

Models predict at the median pace of their own samples (`Row.reference_ns`), so networks are scaled
to that: a minute, in which compiling heats the core, can be a tenth slower than a campaign.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm_stretch as ts
from benchmarks.commands import Table
from benchmarks.cost_model_measured import Network, read_networks
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.measuring.campaign import learn, pace_of
from tvm_stretch.plan.measuring.dataset import Dataset, at_pace
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors

_CHANCES = 5
"""How often samples are drawn by chance."""


def samples_of(folder: Path, processor: Processor) -> Dataset:
    """The measurements of a folder without those of networks, and of transfers."""
    dataset = Dataset.open(folder / f"{processor.name}.jsonl")
    return chosen(dataset, {row.batch for row in dataset.rows if row.batch >= 0})


def chosen(dataset: Dataset, batches: set[int]) -> Dataset:
    """The measurements of some batches."""
    rows = [row for row in dataset.rows if row.batch in batches]
    return Dataset(dataset.path, dataset.device, rows)


def models(
    processor: Processor, few: Dataset, every: Dataset, similar: MeasuredModel
) -> Iterator[tuple[str, Dataset, MeasuredModel]]:
    """The rows of the table: name, what the model learned from, model."""
    count = len({row.batch for row in few.rows})
    yield "like alone", chosen(every, set()), similar
    yield "a minute, like", few, learn(few, processor, [similar])
    batches = sorted({row.batch for row in every.rows})
    for seed in range(_CHANCES):
        drawn = random.Random(seed).sample(batches, min(count, len(batches)))
        some = chosen(every, set(drawn))
        yield "any, like", some, learn(some, processor, [similar])
    yield "a minute alone", few, learn(few, processor)
    yield "all samples", every, learn(every, processor)


def errors(model: MeasuredModel, networks: list[Network], usual: float) -> dict[str, float]:
    """Relative errors of the networks' latencies at a pace, that of the model."""
    found = {}
    for network in networks:
        measured = at_pace(network.computed_ns, network.reference_ns, usual)
        found[network.name] = model.run_ns(network.kernels) / measured - 1
    return found


def _kernels(dataset: Dataset) -> int:
    return len({row.features for row in dataset.rows if row.features.is_kernel})


def show(targets: Sequence[Any], folder: Path, like: Path, budget: float) -> None:
    """Measure for a minute, and print the table."""
    processor = make_processors(targets, 1)[1][-1]
    similar = learn(samples_of(like, processor), processor)
    with tempfile.TemporaryDirectory() as scratch:
        known, new = Path(scratch, "like"), Path(scratch, "new")
        known.mkdir()
        similar.save(known / f"{processor.name}.json")
        start = time.monotonic()
        ts.tune.measure(targets, budget=budget, like=known, cache=new, cpu_threads=1)
        print(f"{time.monotonic() - start:.0f} s for measuring and learning\n", flush=True)
        few = samples_of(new, processor)
    every = samples_of(folder, processor)
    networks = [n for n in read_networks(folder, processor.name) if n.quiet]
    table = Table("model", "kernels", "networks within 10 %", "mean error", "bias")
    for name, learned, model in models(processor, few, every, similar.without_residuals()):
        pace = pace_of(learned.rows or every.rows, processor)
        off = [*errors(model, networks, pace).values()]
        within = sum(abs(error) <= 0.1 for error in off)
        mean, bias = statistics.mean(map(abs, off)), statistics.mean(off)
        table.row(name, _kernels(learned), f"{within} of {len(off)}", f"{mean:.1%}", f"{bias:+.1%}")
