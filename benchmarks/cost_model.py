"""The errors of the cost model on networks that it has not seen.

    python -m benchmarks.cost_model measure --folder costs --seconds 480 --target llvm opencl
    python -m benchmarks.cost_model evaluate --folder costs --json cost_model.json
    python -m benchmarks.cost_model like --like costs --folder new --cpu haswell

`measure` times samples, members of the zoo and random networks, kernel by kernel and as a whole
(`cost_model_measured.py`); all are compiled first, so that nothing else runs meanwhile.
`evaluate` trains without the networks that it then predicts: zoo members are held out with
their families (several at once), random networks are never trained on. Measurements of kernels
equal to theirs leave the training set too, wherever they come from. Kernel errors and coverage are
those of the held-out networks' kernels. Copies of a network's inputs and outputs to and from a GPU
are not part of its time here: hand-overs have a model of their own. Networks that were always
disturbed are listed and not judged, because the disturbance is not a property of their kernels.

`like` makes a model for a new device in a minute, from measurements of a similar one. `--folder`
holds networks of the new device. Each row of its table is a model, judged on them; no model has
seen a network, also none of the folder `--like`, which `ts.tune.measure` may have written too:

    like alone       the other device's samples, nothing measured on the new device
    a minute, like   `ts.tune.measure(budget=60, like=...)`: samples by what they tell
    any, like        as many samples, by chance, and the same correction
    a minute alone   the samples of the first minute without the other device
    all samples      every sample in `--folder`

Models predict at the median pace of their own samples (`Row.reference_ns`), so networks are scaled
to that: a minute, in which compiling heats the core, can be a tenth slower than a campaign.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tvm_stretch as ts
from benchmarks.commands import Table, options
from benchmarks.cost_model_measured import Network, measure_all, read_networks
from benchmarks.engines import own_cpu
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.cost.prediction import Prediction
from tvm_stretch.plan.measuring.campaign import learn, pace_of
from tvm_stretch.plan.measuring.dataset import Dataset, Row, at_pace
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import make_processors

_RESOLVED_NS = 1000
"""Shorter kernels differ by half from run to run: two readings of the clock are a part of them."""

FAMILIES = (
    ("resnet", "efficientnet", "yolo"),
    ("mobilenet", "squeezenet"),
    ("regnet", "inception", "pnasnet", "vgg"),
    ("random",),
)
"""Beginnings of the names of networks that are held out together; random ones always are."""


# --- evaluating -----------------------------------------------------------------------------------


@dataclass
class Errors:
    """The predictions of one processor's models for unseen networks."""

    results: list[tuple[Network, float, list[Prediction]]] = field(default_factory=list)
    kernels: list[tuple[Row, Prediction]] = field(default_factory=list)


def evaluate(
    folder: Path, processors: Sequence[Processor], samples_only: bool = False
) -> dict[str, Errors]:
    """Hold out, learn, predict; the CPU comes first, others may stand on its model."""
    datasets = {p.name: Dataset.open(folder / f"{p.name}.jsonl") for p in processors}
    networks = {p.name: read_networks(folder, p.name) for p in processors}
    found = {p.name: Errors() for p in processors}
    for beginnings in FAMILIES:
        held = {name: _held_out(listed, beginnings) for name, listed in networks.items()}
        every = [network for listed in held.values() for network in listed]
        unseen = {_without_place(kernel) for network in every for kernel in network.kernels}
        below = None
        for processor in processors:
            name = processor.name
            start = time.process_time()
            kept = _training_set(datasets[name], beginnings, unseen)
            if samples_only:
                kept = Dataset(kept.path, kept.device, [r for r in kept.rows if not r.network])
            over = [below] if below and processor.hardware.on_host_cores else []
            model = learn(kept, processor, over)
            below = below or model
            seconds = time.process_time() - start
            usual = pace_of(kept.rows, processor)
            _predict(model, held[name], datasets[name], usual, found[name])
            print(
                f"{name}: without {', '.join(beginnings)}: {len(kept.rows)} rows learned in "
                f"{seconds:.0f} s",
                flush=True,
            )
    return found


def _predict(
    model: MeasuredModel,
    held: Sequence[Network],
    dataset: Dataset,
    usual: float,
    found: Errors,
) -> None:
    """Predictions beside measurements, which are scaled to the model's machine speed."""
    for network in held:
        answers, total = model.predict_all(network.kernels), model.run_ns(network.kernels)
        measured = at_pace(network.computed_ns, network.reference_ns, usual)
        found.results.append((replace(network, nanoseconds=measured), total, answers))
    names = {network.name for network in held}
    own = [
        replace(r, nanoseconds=round(at_pace(r.nanoseconds, r.reference_ns, usual)))
        for r in dataset.rows
        if r.network in names and r.quiet
    ]
    found.kernels += zip(own, model.predict_all([row.features for row in own]), strict=True)


def _held_out(networks: Sequence[Network], beginnings: tuple[str, ...]) -> list[Network]:
    return [network for network in networks if network.name.startswith(beginnings)]


def _training_set(dataset: Dataset, held: tuple[str, ...], unseen: Collection[Features]) -> Dataset:
    """The rows that are independent of the held-out networks and of random ones."""
    rows = [
        row
        for row in dataset.rows
        if not row.network.startswith((*held, "random"))
        and _without_place(row.features) not in unseen
    ]
    return Dataset(dataset.path, dataset.device, rows)


def _without_place(kernel: Features) -> Features:
    """The kernel itself, wherever it runs."""
    return replace(kernel, round_bytes=0, reuse_bytes=0)


def show(found: Errors) -> dict[str, Any]:
    """Print the tables of one processor; return networks and kernels with their errors."""
    networks = [
        {
            "name": network.name,
            "measured_ms": network.nanoseconds / 1e6,
            "predicted_ms": predicted / 1e6,
            "error": predicted / network.nanoseconds - 1,
            "out_of_range": sum(bool(p.out_of_range) for p in predictions),
            "kernels": len(predictions),
            "quiet": network.quiet,
        }
        for network, predicted, predictions in found.results
    ]
    kernels = [
        {
            "family": row.features.family,
            "ns": row.nanoseconds,
            "error": p.nanoseconds / row.nanoseconds - 1,
            "is_covered": p.low <= row.nanoseconds <= p.high,
        }
        for row, p in found.kernels
    ]
    table = Table("network", "measured ms", "predicted ms", "error", "out of range")
    for n in networks:
        told = f"{n['error']:+.1%}{'' if n['quiet'] else ' (disturbed)'}"
        beyond = f"{n['out_of_range']}/{n['kernels']}"
        table.row(n["name"], n["measured_ms"], n["predicted_ms"], told, beyond)
    print()
    table = Table(
        "kernels", "number", "mean error", "weighted by time", "covered by 90 % intervals"
    )
    families = {name: [k for k in kernels if k["family"] == name] for name in _families(kernels)}
    long = [k for k in kernels if k["ns"] >= _RESOLVED_NS]
    for name, some in {**families, "all": kernels, "of 1 us or more": long}.items():
        if some:
            total = sum(k["ns"] for k in some)
            by_time = sum(k["ns"] * abs(k["error"]) for k in some) / total
            means = statistics.mean(abs(k["error"]) for k in some), by_time
            covered = statistics.mean(k["is_covered"] for k in some)
            table.row(name, len(some), *(f"{share:.1%}" for share in (*means, covered)))
    judged = [abs(n["error"]) <= 0.1 for n in networks if n["quiet"]]
    print(f"\nnetworks within 10 %: {sum(judged)} of {len(judged)}", flush=True)
    return {"networks": networks, "kernels": kernels}


def _families(kernels: Sequence[dict[str, Any]]) -> list[str]:
    return sorted({kernel["family"] for kernel in kernels})


# --- a new device in a minute ---------------------------------------------------------------------

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


def _kernels(dataset: Dataset) -> int:
    return len({row.features for row in dataset.rows if row.features.is_kernel})


def show_like(targets: Sequence[Any], folder: Path, like: Path, budget: float) -> None:
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
        off = [
            model.run_ns(n.kernels) / at_pace(n.computed_ns, n.reference_ns, pace) - 1
            for n in networks
        ]
        within = sum(abs(error) <= 0.1 for error in off)
        mean, bias = statistics.mean(map(abs, off)), statistics.mean(off)
        table.row(name, _kernels(learned), f"{within} of {len(off)}", f"{mean:.1%}", f"{bias:+.1%}")


def main() -> None:
    """Parse the command line."""
    args = options(
        __doc__,
        None,
        ("step", str),
        ("--folder!", Path),
        ("--target", ["llvm"]),
        ("--cpu", str, "compile for this processor of LLVM, such as haswell"),
        ("--seconds", 480.0, "of measuring samples, and of networks"),
        ("--batches", 60, "of samples, at most"),
        ("--samples-only", False, "learn as if ts.tune.measure() were all that ran"),
        ("--like", Path, "a folder of a similar device"),
        ("--budget", 60.0, "seconds of `like`"),
        ("--json", Path),
        step=("measure", "evaluate", "like"),
    )

    targets = [own_cpu(args.cpu) if name == "llvm" else name for name in args.target]
    if args.step == "measure":
        measure_all(targets, args.folder, args.seconds, args.batches)
        return
    if args.step == "like":
        show_like(targets, args.folder, args.like, args.budget)
        return
    placeable = make_processors(targets, 1)[1]
    predictions, shown = evaluate(args.folder, placeable, args.samples_only), {}
    for processor in placeable:
        print(f"\n{processor.name}\n")
        shown[processor.name] = show(predictions[processor.name])
    if args.json:
        args.json.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
