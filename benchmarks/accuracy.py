"""The accuracy of stretched networks relative to the originals, over paired seeds.

python -m benchmarks.accuracy --folder /tmp/accuracy --seeds 8 --device cpu
python -m benchmarks.accuracy prepare --folder F       # needs TVM
python -m benchmarks.accuracy train --folder F --device cuda --seeds 8    # needs torch, no TVM
python -m benchmarks.accuracy report --folder F --json accuracy.json

Every seed draws its own images (accuracy_tasks.py) and trains the original and its stretched form
in the same way, from random numbers; distils the one into the other; and starts the stretched form
from the original's weights: with batch-norm statistics computed anew, with weights fitted to what
the original computes (``training.imitate``: no labels, no training), with all layers brought nearer
to that together (``training.refine``: no labels), and after two more epochs at a low rate.
Differences are those of pairs, with 95 % intervals (Student's). Finished trials stay in the folder,
and the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.accuracy_tasks import CLASSES, SIZE, Data, digits, shapes, write_digits
from benchmarks.accuracy_trials import Prepared, Schedule, trial
from tvm_stretch.base.files import write_whole

NETWORKS = ("resnet", "regnetx", "mbconv")
TASKS = {"shapes": (3, SIZE), "digits": (1, 8)}
MEASURES = ("alike", "distilled", "copied", "recalibrated", "imitating", "refined", "two epochs")

# 97.5 % quantiles of Student's t, by degrees of freedom
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)

Row = dict[str, Any]


def prepare(folder: Path, tasks: Sequence[str], networks: Sequence[str]) -> None:
    """Stretch the networks, and store all inputs of training."""
    from benchmarks.accuracy_networks import prepare as prepared

    folder.mkdir(parents=True, exist_ok=True)
    if "digits" in tasks:
        write_digits(folder / "digits.pt")
    for task in tasks:
        for network in networks:
            path = folder / f"{task}.{network}.pickle"
            if not path.exists():
                found = prepared(network, *TASKS[task], CLASSES)
                write_whole(path, pickle.dumps(found))
                print(f"{task} {network}: {found.told}", flush=True)


def train(
    folder: Path,
    tasks: Sequence[str],
    networks: Sequence[str],
    seeds: int,
    schedule: Schedule,
    device: str,
    workers: int,
) -> None:
    """Run the trials that are missing in the folder, in several processes."""
    done = {
        (row["task"], row["network"], row["seed"])
        for row in rows(folder)
        if row["schedule"] == asdict(schedule)
    }
    jobs = [
        (folder, task, network, seed, schedule, device)
        for seed in range(seeds)
        for task in tasks
        for network in networks
        if (task, network, seed) not in done
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, max(1, len(jobs))), torch.set_num_threads, (1,)) as pool:
        for number, row in enumerate(pool.imap_unordered(_run, jobs), 1):
            print(f"{number} of {len(jobs)}: {_line(row)}", flush=True)


def _run(job: tuple[Path, str, str, int, Schedule, str]) -> Row:
    folder, task, network, seed, schedule, device = job
    prepared: Prepared = pickle.loads((folder / f"{task}.{network}.pickle").read_bytes())
    row = {"task": task, "network": network, "seed": seed, "schedule": asdict(schedule)}
    row |= trial(prepared, _data(folder, task, seed, schedule).to(device), schedule, seed)
    name = f"{task}.{network}.{seed}.json"
    write_whole(folder / name, json.dumps(row))
    return row


def _data(folder: Path, task: str, seed: int, schedule: Schedule) -> Data:
    if task == "digits":
        return digits(folder / "digits.pt", seed)
    return shapes(seed, schedule.trained, schedule.tested)


def rows(folder: Path) -> list[Row]:
    """The finished trials in the folder."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.*.*.json"))]


def _line(row: Row) -> str:
    parts = [f"{name} {row[name]:.1f}" for name in ("original", *MEASURES)]
    return f"{row['task']} {row['network']} seed {row['seed']}: {', '.join(parts)}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    if len(values) < 2:
        return values[0], float("inf")
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def summary(found: Sequence[Row]) -> list[Row]:
    """One row for each task and network: the original's accuracy, and paired differences."""
    if len({json.dumps(row["schedule"]) for row in found}) > 1:
        sys.exit("expected trials of one schedule in the folder, got several; take another folder")
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
        summed["seconds"] = sum(row["seconds"] for row in own)
        result.append(summed)
    return result


def table(summed: Sequence[Row]) -> Iterator[str]:
    """Markdown."""
    yield f"| task | network | seeds | original % | {' | '.join(MEASURES)} |"
    yield "|" + " --- |" * (4 + len(MEASURES))
    for row in summed:
        cells = [
            f"{row[m]['mean']:+.2f} [{row[m]['low']:+.2f}, {row[m]['high']:+.2f}]" for m in MEASURES
        ]
        start = f"| {row['task']} | {row['network']} | {row['seeds']} | {row['original']:.2f} |"
        yield f"{start} {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", nargs="?", choices=("all", "prepare", "train", "report"))
    parser.add_argument("--folder", type=Path, default=Path("build/accuracy"))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, help="processes; by default 8 on a GPU, else cores")
    parser.add_argument("--json", type=Path, help="write the summary there")
    for name, value in asdict(Schedule()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args(argv)
    schedule = Schedule(**{name: getattr(args, name) for name in asdict(Schedule())})
    workers = args.workers or (8 if args.device != "cpu" else os.cpu_count() or 1)
    step = args.step or "all"
    if step in ("all", "prepare"):
        prepare(args.folder, args.tasks, args.networks)
    if step in ("all", "train"):
        given = (args.tasks, args.networks, args.seeds, schedule, args.device, workers)
        train(args.folder, *given)
    if step != "prepare":
        summed = summary(rows(args.folder))
        print("\n".join(table(summed)))
        if args.json:
            write_whole(args.json, json.dumps({"rows": summed}, indent=1))


if __name__ == "__main__":
    main()
