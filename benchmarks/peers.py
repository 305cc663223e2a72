"""Latency of ours beside that of other engines, answers compared first.

```
python -m benchmarks.peers resnet18 resnet50 net.onnx --threads 1 2 --repeat 8 --json out.json
python -m benchmarks.peers resnet18 --peers ort,gpu,gpu-litert,gpu-ncnn,gpu-cudnn [--batch 16]
```
Every engine lives in its own process, pinned unless it computes on a GPU. One round times every
engine a few times, the first one changing from round to round, so that a slow moment of the machine
hits all of them. An engine whose answer differs from ONNX Runtime's gets no time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.commands import Samples, Table, options, turns
from benchmarks.engines import BOTH, ENGINES, ON_CPU, OURS, REFERENCE, installed_version
from benchmarks.kernel_code import SIX
from benchmarks.models import Model, model_of
from benchmarks.worker import Worker
from tvm_stretch.base.files import write_whole
from tvm_stretch.plan.cost.fingerprint import local_machine

RUNS_PER_TURN = 5
WARMUP_PER_TURN = 2


@dataclass
class Row:
    """The result of one engine on one model with one number of threads; times in milliseconds."""

    model: str
    threads: int
    engine: str
    load_seconds: float | None = None
    max_error: float | None = None
    samples: list[float] = field(default_factory=list)
    failure: str | None = None

    @property
    def median(self) -> float | None:
        """Median of all samples, None without any."""
        return statistics.median(self.samples) if self.samples else None


def difference(expected: list[np.ndarray], got: list[np.ndarray]) -> float:
    """Largest difference relative to the largest value; infinite if size or top-1 differ."""
    if [y.size for y in expected] != [y.size for y in got]:
        return float("inf")
    if any(want.argmax() != have.argmax() for want, have in zip(expected, got, strict=True)):
        return float("inf")
    alike = [y.reshape(want.shape) for want, y in zip(expected, got, strict=True)]
    return harness.difference(alike, expected, 1e-30)


def compare_engines(
    model: Model,
    engines: Sequence[str],
    threads: int,
    cores: list[int],
    rounds: int,
    rtol: float,
    mcpu: str = "",
    avx2: bool = False,
) -> list[Row]:
    """Loads, checks and times the engines on one model; failures become rows with a reason."""
    rows = {name: Row(model.name, threads, name) for name in engines}
    expected: list[np.ndarray] = []
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in sorted(engines, key=lambda name: name != REFERENCE):
            own = [] if ENGINES[name].is_on_gpu else cores
            try:
                worker = stack.enter_context(Worker(name, model, threads, own, mcpu, avx2))
                rows[name].load_seconds = worker.load_seconds
                expected = expected or worker.outputs()
                rows[name].failure = why_no_time(rows[name], worker, expected, rtol, avx2)
            except RuntimeError as error:
                rows[name].failure = str(error)
            if name == REFERENCE and not expected:
                raise RuntimeError(f"the reference, {name}, failed: {rows[name].failure}")
            if rows[name].failure is None:
                workers[name] = worker
        runs = {
            name: partial(workers[name].times, WARMUP_PER_TURN, RUNS_PER_TURN)
            for name in engines
            if name in workers
        }
        samples = turns(runs, rounds, warm_up=0, clock=None)
    for name, taken in samples.of.items():
        rows[name].samples = taken
    return list(rows.values())


def why_no_time(
    row: Row, worker: Worker, expected: list[np.ndarray], rtol: float, avx2: bool
) -> str | None:
    """Why an engine gets no time: a wrong answer, or AVX-512 where there should be none."""
    row.max_error = difference(expected, worker.outputs())
    if row.max_error > rtol:
        return f"wrong answer: relative error {row.max_error:.1e} > {rtol:g}"
    if avx2 and (share := worker.share_of_avx512()):
        return f"AVX-512 in use: in {share:.0%} of samples of registers"
    return None


def ratio_to_best_peer(rows: list[Row], engine: str) -> float | None:
    """Our median over the fastest peer's; below 1 means that ours is faster."""
    peers = [row.median for row in rows if not ENGINES[row.engine].is_ours and row.median]
    ours = [row.median for row in rows if row.engine == engine and row.median]
    return ours[0] / min(peers) if ours and peers else None


def ours_among(engines: Sequence[str]) -> list[str]:
    """Our engines whose ratio is shown."""
    return [name for name in engines if name in (OURS, BOTH, "gpu")]


def show(table: Table, rows: list[Row]) -> None:
    """Print a row: median ms ± quartile spread of each engine, our ratios; then who got no time."""
    cells = []
    for row in rows:
        spread = Samples({"": row.samples}).spread("") if row.samples else 0.0
        cells.append(f"{row.median:.2f} ±{spread:.0%}" if row.median else "-")
    for engine in ours_among([row.engine for row in rows]):
        ratio = ratio_to_best_peer(rows, engine)
        cells.append(f"{ratio:.3f}" if ratio else "-")
    table.row(rows[0].model, rows[0].threads, *cells)
    for row in rows:
        if row.failure and (not ENGINES[row.engine].is_for_pairs or row.threads == 2):
            print(f"  {row.model}, {row.threads} thread(s), {row.engine}: no time: {row.failure}")


def describe_machine() -> dict[str, Any]:
    """Processor, system and the engines' versions."""
    return {
        "processor": local_machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "engines": {name: installed_version(name) for name in ENGINES},
    }


def write_json(path: Path, groups: list[list[Row]], setup: dict[str, Any]) -> None:
    """All samples, medians, ratios and the machine."""
    ratios = [
        {"model": group[0].model, "threads": group[0].threads}
        | {f"{own}_to_best_peer": ratio_to_best_peer(group, own) for own in (OURS, BOTH, "gpu")}
        for group in groups
    ]
    results = [
        asdict(row) | {"median_ms": row.median, "fastest_ms": min(row.samples, default=None)}
        for group in groups
        for row in group
    ]
    document = {"machine": describe_machine() | setup, "runs_per_turn": RUNS_PER_TURN}
    write_whole(path, json.dumps(document | {"ratios": ratios, "results": results}, indent=1))


def read_command(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    args = options(
        *(__doc__, arguments, ("models*", SIX, "zoo names or ONNX files")),
        *(("--size", 224, "image height and width"), ("--batch", 1), ("--threads", [1, 2])),
        *(("--cores+", int, "default: 0, 1, …"), ("--repeat", 8, "rounds; each times 5 runs")),
        ("--peers", ",".join(ON_CPU), "engines, ours included"),
        ("--mcpu", "", "compile ours for this core; all others use what the machine has"),
        ("--only-avx2", False, "tell peers that there is no AVX-512 (only_avx2.py); needs --mcpu"),
        *(("--rtol", 1e-3), ("--json", Path)),
    )
    args.peers = args.peers.split(",")
    if unknown := set(args.peers) - set(ENGINES):
        sys.exit(f"expected engines among {', '.join(ENGINES)}, got {', '.join(unknown)}")
    if args.only_avx2 and not args.mcpu:
        sys.exit("expected --mcpu with --only-avx2, got none; name a core without AVX-512")
    if REFERENCE not in args.peers:
        args.peers.insert(0, REFERENCE)
    args.cores = args.cores or sorted(os.sched_getaffinity(0))
    if max(args.threads) > len(args.cores):
        most = max(args.threads)
        sys.exit(f"expected at least {most} cores, got {args.cores}; set --threads")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; fails if one of our answers is wrong or missing."""
    args = read_command(arguments)
    print(f"{local_machine()}, cores {args.cores}")
    if args.mcpu:
        others = "AVX2" if args.only_avx2 else "what the machine has"
        print(f"ours for {args.mcpu}; all others with {others}")
    ratios = [f"{name}/best peer" for name in ours_among(args.peers)]
    table, groups = Table("model", "threads", *args.peers, *ratios), list[list[Row]]()
    setup = {"pinned_to_cores": args.cores, "only_avx2": args.only_avx2, "batch": args.batch}
    for source in args.models:
        model = model_of(source, args.size, args.batch)
        for threads in args.threads:
            how = args.cores[:threads], args.repeat, args.rtol, args.mcpu, args.only_avx2
            groups.append(compare_engines(model, args.peers, threads, *how))
            show(table, groups[-1])
            if args.json:
                write_json(args.json, groups, setup | {"ours_for": args.mcpu or "this machine"})
    rows = [row for group in groups for row in group if row.engine in (OURS, BOTH, "gpu")]
    return int(any(row.failure for row in rows if row.engine != BOTH or row.threads == 2))


if __name__ == "__main__":
    sys.exit(main())
