"""Potentials & Pitfalls, table 2: levels of optimisation, each alone and combined, for ResNet-18.

    given ──low rank, pruning──> smaller ──fusion off, or on──> kernels ──CPU; CoDL; ours──> latency

Accuracy is that of the same network, trained on drawn shapes of 32x32 pixels
(`benchmarks.accuracy_tasks`) and compressed by `ts.compress`, which sees images without labels, and
then trained for three more epochs. Memory and latency are those of 224x224 pixels:
compressing cuts the same channels and ranks there. The two processors are a core for LLVM and a
core for OpenCL (PoCL). All models take turns; a ratio is the median of a round's ratios, and beside
it stands the ratio of the least latencies, for machines that do other work. `ours` is what
`ts.compile` finds by measuring: it takes both processors only if they are faster than one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tvm

import tvm_stretch as ts
from benchmarks.accuracy_tasks import Data, shapes
from benchmarks.accuracy_trials import Schedule, batches_of, fresh, weights_of
from benchmarks.baselines import schedule_codl
from benchmarks.carried_out import TARGETS, Carrier
from benchmarks.scheduling_profiles import host_costs
from tutorials import zoo
from tvm_stretch.frontend import load_network, load_trainable
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.phases import kernel_phases
from tvm_stretch.training import Batches, Training, accuracy, fit, load_torch, to_torch
from tvm_stretch.training.relax_graph import graph_of, with_weights

CLASSES, SMALL, LARGE = 10, 32, 224
FORMS: Mapping[str, Mapping[str, float]] = {
    "": {},
    "low rank": {"low_rank": 0.5},
    "pruning": {"prune": 0.3},
    "pruning and low rank": {"prune": 0.3, "low_rank": 0.7},
}
"""How `ts.compress` makes each form of the network."""

THEIRS = {
    "baseline": (76.23, 47.24, 213.24),
    "low rank": (73.73, 15.61, 197.53),
    "pruning": (71.31, 23.91, 146.73),
    "CoDL": (76.23, 47.24, 189.01),
    "fusion": (76.23, 47.24, 136.66),
    "CoDL, low rank": (73.72, 15.60, 132.96),
    "CoDL, pruning": (71.31, 23.89, 131.46),
    "CoDL, pruning, fusion, memory plan": (73.56, 11.53, 103.23),
}
"""The paper's accuracy in percent, megabytes and milliseconds."""

_STEPS = 60
_EPOCHS, _RATE = 3, 0.02
_TESTED = 2000


@dataclass(frozen=True)
class Row:
    """A way to run the network."""

    form: str  # one of `FORMS`
    fused: bool
    plan: str  # "cpu", "CoDL" or "ours"

    @property
    def name(self) -> str:
        """For people."""
        parts = ["" if self.plan == "cpu" else self.plan, self.form]
        parts.append("" if self.fused else "no fusion")
        return ", ".join(filter(None, parts)) or "one core"


ROWS = (
    Row("", False, "cpu"),
    Row("", True, "cpu"),
    Row("low rank", True, "cpu"),
    Row("pruning", True, "cpu"),
    Row("", True, "CoDL"),
    Row("", True, "ours"),
    Row("low rank", True, "CoDL"),
    Row("pruning", True, "CoDL"),
    Row("pruning", True, "ours"),
    Row("pruning and low rank", True, "ours"),
)
BASELINE = Row("", True, "CoDL")
"""The given network on two processors."""


# --- accuracy -------------------------------------------------------------------------------------


def trained(folder: Path, seed: int) -> tvm.IRModule:
    """ResNet-18 for drawn shapes; its weights stay in the folder."""
    mod = load_trainable(zoo.build("resnet18", size=SMALL, classes=CLASSES))
    path = folder / f"resnet18.{seed}.npz"
    if not path.exists():
        schedule = Schedule()
        net = fresh(graph_of(mod)[0], seed)
        fit(net, batches_of(_data(seed), schedule), _training(schedule.epochs, schedule.rate))
        np.savez(path, **weights_of(net))
    return with_weights(mod, dict(np.load(path)))


def accuracies(folder: Path, seed: int) -> dict[str, tuple[float, float]]:
    """Percent of each form: fitted without labels, and after more epochs."""
    kept = folder / f"table2.{seed}.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    mod, data = trained(folder, seed), _data(seed)
    for form, how in FORMS.items():
        if form not in found:
            found[form] = _accuracy(mod, how, data)
            kept.write_text(json.dumps(found))
            print(f"{form or 'given'}: {found[form]}", file=sys.stderr, flush=True)
    return found


def _accuracy(mod: tvm.IRModule, how: Mapping[str, float], data: Data) -> tuple[float, float]:
    if not how:
        return (_right(to_torch(mod), data),) * 2
    small = ts.compress(mod, **how, data=data.images.numpy(), steps=_STEPS)
    net = to_torch(small)
    fitted = _right(net, data)
    fit(net, batches_of(data, Schedule()), _training(_EPOCHS, _RATE))
    return fitted, _right(to_torch(load_torch(small, net)), data)


def _data(seed: int) -> Data:
    return shapes(seed, Schedule().trained, _TESTED)


def _training(epochs: int, rate: float) -> Training:
    return Training(epochs=epochs, rate=rate, device="cpu", progress=lambda _line: None)


def _right(net: torch.nn.Module, data: Data) -> float:
    return 100 * accuracy(net, Batches(data.test_images, data.test_labels, 1000, shuffled=False))


# --- latency --------------------------------------------------------------------------------------


def compiled(row: Row, network: tvm.IRModule) -> ts.Model:
    """The model of a row."""
    if row.plan == "cpu":
        if row.fused:
            return ts.compile(network, TARGETS[:1], cpu_threads=1)
        host = cpu_processor(tvm.target.Target("llvm"), 1)
        alone = replace(host, phases=kernel_phases(expand_math=True, epilogues=False))
        return ts.compile(network, [alone], cpu_threads=1)
    if row.plan == "ours":
        return ts.compile(network, TARGETS, cpu_threads=1)
    carrier = Carrier(load_network(network), host_costs())
    plan = carrier.plan(schedule_codl(carrier.problem))
    return ts.compile(network, TARGETS, plan=plan, cpu_threads=1)


def models(seed: int) -> dict[Row, ts.Model]:
    """All rows at 224x224, compared with each other where their networks are the same."""
    given = zoo.build("resnet18", size=LARGE, classes=CLASSES)
    networks = {form: ts.compress(given, **how) if how else given for form, how in FORMS.items()}
    image = np.random.default_rng(seed).standard_normal((1, 3, LARGE, LARGE)).astype("float32")
    found: dict[Row, ts.Model] = {}
    answers: dict[str, np.ndarray] = {}
    for row in ROWS:
        found[row] = compiled(row, networks[row.form])
        answer = found[row](image)
        wanted = answers.setdefault(row.form, answer)
        error = np.abs(answer - wanted).max() / np.abs(wanted).max()
        assert error < 1e-3, f"{row.name}: error {error}"
    return found


def in_turns(made: Mapping[Row, ts.Model], rounds: int) -> dict[Row, list[float]]:
    """Milliseconds of each row in each round; another row begins each round."""
    runs = {row: model.random_run() for row, model in made.items()}
    found: dict[Row, list[float]] = {row: [] for row in made}
    rows = list(made)
    for run in runs.values():
        run()
    for number in range(rounds):
        for place in range(len(rows)):
            row = rows[(place + number) % len(rows)]
            began = time.perf_counter()
            runs[row]()
            found[row].append(1e3 * (time.perf_counter() - began))
    return found


def figures(folder: Path, seed: int, rounds: int) -> list[dict[str, Any]]:
    """A row of figures for each way."""
    made = models(seed)
    samples = in_turns(made, rounds)
    right = accuracies(folder, seed)
    rows = []
    for row, times in samples.items():
        graph = made[row].graph
        ratios = [one / other for one, other in zip(times, samples[BASELINE], strict=True)]
        rows.append(
            {
                "row": row.name,
                "accuracy_fitted": right[row.form][0],
                "accuracy_trained": right[row.form][1],
                "mib": (graph.arena_bytes + graph.weights_bytes) / 2**20,
                "ms": statistics.median(times),
                "least_ms": min(times),
                "ratio": statistics.median(ratios),
                "least_ratio": min(times) / min(samples[BASELINE]),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Ours, and the paper's table below it."""
    yield "| ours | accuracy: fitted, trained | MiB | ms (least) | of CoDL alone (least) |"
    yield "|" + " --- |" * 5
    for row in rows:
        yield (
            f"| {row['row']} | {row['accuracy_fitted']:.1f}, {row['accuracy_trained']:.1f} "
            f"| {row['mib']:.1f} | {row['ms']:.1f} ({row['least_ms']:.1f}) "
            f"| {row['ratio']:.2f} ({row['least_ratio']:.2f}) |"
        )
    yield ""
    yield "| paper (Snapdragon 855) | accuracy | MB | ms | of CoDL alone |"
    yield "|" + " --- |" * 5
    for name, (right, size, ms) in THEIRS.items():
        yield f"| {name} | {right} | {size} | {ms} | {ms / THEIRS['CoDL'][2]:.2f} |"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/papers"), help="keeps weights")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("\n".join(table(figures(arguments.folder, arguments.seed, arguments.rounds))))


if __name__ == "__main__":
    main()
