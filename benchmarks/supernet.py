"""Compares the ranking of designs by a supernet with that of training each alone.

python -m benchmarks.supernet prepare --folder F --network resnet --designs 8     # needs TVM
python -m benchmarks.supernet train --folder F --device cuda --seeds 3            # needs torch only

The designs have branches from a third to nearly all of the original's width: designs of equal
capacity differ by less than their seeds. The supernet trains all of them at once; then each gets
statistics of its own. Alone, each is trained from the same random numbers. The table has both
accuracies, their rank correlation (Spearman's), and what training took.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy import NETWORKS, TASKS
from benchmarks.accuracy_tasks import CLASSES, Data, shapes
from benchmarks.accuracy_trials import Schedule, batches_of, fresh
from tvm_stretch.base.files import write_whole
from tvm_stretch.lab.training import (
    Batches,
    Supernet,
    TrainableNetwork,
    Training,
    accuracy,
    fit,
    fit_supernet,
    recalibrate,
)
from tvm_stretch.lab.training.torch_graph import Graph


@dataclass(frozen=True)
class Found:
    """A design.

    Attributes:
        graph: the graph of its network.
        told: a description of its branches.
        parameters: the number of parameters of its network.
    """

    graph: Graph
    told: str
    parameters: int


def prepare(path: Path, network: str, count: int) -> None:
    """Keep graphs of designs of many sizes."""
    from benchmarks.accuracy_networks import spread

    found = spread(network, *TASKS["shapes"], CLASSES, count)
    write_whole(path, pickle.dumps(found))
    for each in found:
        print(f"{each[2]} parameters: {each[1]}")


def compare(designs: Sequence[Found], data: Data, schedule: Schedule, seed: int) -> dict[str, Any]:
    """Accuracies of all designs in the supernet and alone, in percent, and seconds."""
    batches = batches_of(data, schedule)
    tests = Batches(data.test_images, data.test_labels, 1000, shuffled=False)
    device = data.images.device
    how: dict[str, Any] = {"seed": seed, "device": device, "progress": lambda _line: None}
    how |= {"epochs": schedule.epochs, "rate": schedule.rate}

    def right(net: TrainableNetwork) -> float:
        return 100 * accuracy(net, tests)

    nets = [fresh(design.graph, seed) for design in designs]
    began = time.perf_counter()
    supernet = Supernet(nets)
    fit_supernet(supernet, batches, Training(**how))
    together_seconds, together = time.perf_counter() - began, []
    for index in range(len(nets)):
        net = supernet.candidate(index).to(device)
        recalibrate(net, data.images[:2048], progress=how["progress"])
        together.append(right(net))
    began, alone = time.perf_counter(), []
    for design in designs:
        net = fresh(design.graph, seed)
        fit(net, batches, Training(**how))
        alone.append(right(net))
    return {
        "seed": seed,
        "together": together,
        "alone": alone,
        "together_seconds": together_seconds,
        "alone_seconds": time.perf_counter() - began,
    }


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: of ranks; equal numbers share theirs."""
    return statistics.correlation(ranks(first), ranks(second))


def ranks(values: Sequence[float]) -> list[float]:
    """The place of each among all.

    >>> ranks([3.0, 1.0, 3.0])
    [2.5, 1.0, 2.5]
    """
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def report(designs: Sequence[Found], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, printed as Markdown."""
    means = {
        key: [statistics.mean(values) for values in zip(*(r[key] for r in rows), strict=True)]
        for key in ("together", "alone")
    }
    print("| design | parameters | in the supernet % | alone % |\n| --- | --- | --- | --- |")
    for index, design in enumerate(designs):
        both = f"{means['together'][index]:.2f} | {means['alone'][index]:.2f}"
        print(f"| {design.told} | {design.parameters} | {both} |")
    of_seeds = [correlation(row["together"], row["alone"]) for row in rows]
    seconds = {key: sum(row[key] for row in rows) for key in ("together_seconds", "alone_seconds")}
    summed = {"correlation": correlation(means["together"], means["alone"]), **seconds}
    print(
        f"rank correlation {summed['correlation']:.2f} (of seeds: "
        f"{', '.join(f'{value:.2f}' for value in of_seeds)}); training "
        f"{seconds['together_seconds']:.0f} s together, {seconds['alone_seconds']:.0f} s each alone"
    )
    return {**summed, "of_seeds": of_seeds, "rows": list(rows)}


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=("prepare", "train"))
    parser.add_argument("--folder", type=Path, default=Path("build/supernet"))
    parser.add_argument("--network", choices=NETWORKS, default="resnet")
    parser.add_argument("--designs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    for name, value in asdict(Schedule()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args(argv)
    path = args.folder / f"supernet.{args.network}.pickle"
    if args.step == "prepare":
        args.folder.mkdir(parents=True, exist_ok=True)
        prepare(path, args.network, args.designs)
        return
    torch.set_num_threads(1)  # more gain nothing with layers as small as these
    schedule = Schedule(**{name: getattr(args, name) for name in asdict(Schedule())})
    designs = [Found(*each) for each in pickle.loads(path.read_bytes())]
    rows = []
    for seed in range(args.seeds):
        data = shapes(seed, schedule.trained, schedule.tested).to(args.device)
        rows.append(compare(designs, data, schedule, seed))
        print(
            f"seed {seed}: {correlation(rows[-1]['together'], rows[-1]['alone']):.2f}", flush=True
        )
    summed = report(designs, rows)
    if args.json:
        write_whole(args.json, json.dumps(summed, indent=1))


if __name__ == "__main__":
    main()
