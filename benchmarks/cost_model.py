"""The errors of the cost model on networks that it has not seen.

    python -m benchmarks.cost_model measure --folder costs --seconds 480 --target llvm opencl
    python -m benchmarks.cost_model evaluate --folder costs --json cost_model.json
    python -m benchmarks.cost_model like --like costs --folder new      `cost_model_like.py`

`measure` times samples, members of the zoo and random networks, kernel by kernel and as a whole
(`cost_model_measured.py`); all are compiled first, so that nothing else runs meanwhile.
`evaluate` trains without the networks that it then predicts: zoo members are held out with
their families (several at once), random networks are never trained on. Measurements of kernels
equal to theirs leave the training set too, wherever they come from. Kernel errors and coverage are
those of the held-out networks' kernels. Copies of a network's inputs and outputs to and from a GPU
are not part of its time here: hand-overs have a model of their own. Networks that were always
disturbed are listed and not judged, because the disturbance is not a property of their kernels.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks import cost_model_like
from benchmarks.commands import options
from benchmarks.cost_model_measured import Network, measure_all, read_networks
from benchmarks.harness import cpu
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
            over = [below] if below and processor.on_host_cores else []
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


def summarize(dataset: Dataset, found: Errors) -> dict[str, Any]:
    """The numbers of one processor."""
    results = found.results
    errors = [(row, p.nanoseconds / row.nanoseconds - 1) for row, p in found.kernels]
    covered = [(row, p.low <= row.nanoseconds <= p.high) for row, p in found.kernels]
    families: dict[str, Any] = {}
    for name in sorted({row.features.family for row, _ in errors}):
        own = [abs(error) for row, error in errors if row.features.family == name]
        inside = [is_in for row, is_in in covered if row.features.family == name]
        families[name] = {
            "kernels": len(own),
            "mape": statistics.mean(own),
            "coverage": statistics.mean(inside),
        }
    relative = {n.name: predicted / n.nanoseconds - 1 for n, predicted, _ in results}
    judged = [relative[n.name] for n, _, _ in results if n.quiet]
    weights = [row.nanoseconds for row, _ in errors]
    return {
        "device": dataset.device,
        "rows": len(dataset.rows),
        "quiet_rows": sum(row.quiet for row in dataset.rows),
        "networks": [
            {
                "name": network.name,
                "measured_ms": network.nanoseconds / 1e6,
                "predicted_ms": predicted / 1e6,
                "error": relative[network.name],
                "out_of_range": sum(bool(p.out_of_range) for p in predictions),
                "kernels": len(predictions),
                "quiet": network.quiet,
            }
            for network, predicted, predictions in results
        ],
        "judged": len(judged),
        "within_10_percent": statistics.mean(abs(e) <= 0.1 for e in judged),
        "kernel_mape": statistics.mean(abs(error) for _, error in errors),
        "kernel_mape_from_1us": statistics.mean(
            abs(error) for row, error in errors if row.nanoseconds >= _RESOLVED_NS
        ),
        "kernels_from_1us": sum(row.nanoseconds >= _RESOLVED_NS for row, _ in errors),
        "kernels": len(errors),
        "kernel_mape_by_time": sum(w * abs(e) for w, (_, e) in zip(weights, errors, strict=True))
        / sum(weights),
        "coverage": statistics.mean(inside for _, inside in covered),
        "families": families,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary for people."""
    lines = ["| network | measured ms | predicted ms | error | out of range |", "|" + " --- |" * 5]
    for n in summary["networks"]:
        lines.append(
            f"| {n['name']} | {n['measured_ms']:.2f} | {n['predicted_ms']:.2f} | "
            f"{n['error']:+.1%}{'' if n['quiet'] else ' (disturbed)'} | "
            f"{n['out_of_range']}/{n['kernels']} |"
        )
    lines += ["", "| family | kernels | MAPE | covered by 90 % intervals |", "|" + " --- |" * 4]
    for name, f in summary["families"].items():
        lines.append(f"| {name} | {f['kernels']} | {f['mape']:.1%} | {f['coverage']:.1%} |")
    lines += [
        "",
        f"{summary['rows']} rows; networks within 10 %: {summary['within_10_percent']:.0%} "
        f"of {summary['judged']}; "
        f"kernel MAPE {summary['kernel_mape']:.1%} (of the {summary['kernels_from_1us']} of "
        f"{summary['kernels']} that take 1 us or more {summary['kernel_mape_from_1us']:.1%}; "
        f"weighted by time {summary['kernel_mape_by_time']:.1%}); "
        f"coverage {summary['coverage']:.1%}",
    ]
    return "\n".join(lines)


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

    targets = [cpu(args.cpu) if name == "llvm" else name for name in args.target]
    if args.step == "measure":
        measure_all(targets, args.folder, args.seconds, args.batches)
        return
    if args.step == "like":
        cost_model_like.show(targets, args.folder, args.like, args.budget)
        return
    placeable = make_processors(targets, 1)[1]
    start = time.monotonic()
    summaries = {}
    predictions = evaluate(args.folder, placeable, args.samples_only)
    for processor in placeable:
        dataset = Dataset.open(args.folder / f"{processor.name}.jsonl")
        summary = summaries[processor.name] = summarize(dataset, predictions[processor.name])
        print(f"\n{processor.name}\n\n{table(summary)}\n", flush=True)
    print(f"{math.ceil(time.monotonic() - start)} s")
    if args.json:
        args.json.write_text(json.dumps(summaries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
