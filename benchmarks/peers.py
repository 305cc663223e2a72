"""Latency of ours beside that of other engines, answers compared first.

```
python -m benchmarks.peers resnet18 resnet50 net.onnx --threads 1 2 --repeat 8 --json out.json
```
Every engine lives in its own pinned process. One round times every engine a few times, the first
one changing from round to round, so that a slow moment of the machine hits all of them. An engine
whose answer differs from ONNX Runtime's gets no time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import BOTH, ENGINES, OURS, OWN, PAIRS, REFERENCE, installed_version
from benchmarks.models import BenchModel, prepare_model
from benchmarks.worker import Worker

PAPER_MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "regnetx_1_6gf",
    "regnetx_4gf",
    "efficientnet_lite4",
)
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

    @property
    def spread(self) -> float:
        """Distance between the first and the third quartile, relative to the median."""
        first, middle, third = statistics.quantiles(self.samples, n=4)
        return (third - first) / middle


def difference(expected: list[np.ndarray], got: list[np.ndarray]) -> float:
    """Largest difference relative to the largest value; infinite if shape or top-1 differ."""
    if len(expected) != len(got):
        return float("inf")
    worst = 0.0
    for want, have in zip(expected, got, strict=True):
        if want.size != have.size or want.argmax() != have.argmax():
            return float("inf")
        delta = np.abs(want.ravel() - have.ravel()).max() / max(np.abs(want).max(), 1e-30)
        worst = max(worst, float(delta)) if np.isfinite(delta) else float("inf")
    return worst


def compare_engines(
    model: BenchModel,
    engines: list[str],
    threads: int,
    cores: list[int],
    rounds: int,
    rtol: float,
    mcpu: str = "",
    avx2: bool = False,
) -> list[Row]:
    """Loads, checks and times the engines on one model; failures become rows with a reason."""
    rows = {name: Row(model.name, threads, name) for name in engines}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in engines:
            try:
                workers[name] = stack.enter_context(Worker(name, model, threads, cores, mcpu, avx2))
            except RuntimeError as error:
                rows[name].failure = str(error)
                continue
            rows[name].load_seconds = workers[name].load_seconds
        _check_answers(workers, rows, rtol)
        if avx2:
            _check_registers(workers, rows)
        for turn in range(rounds):
            names = list(workers)
            first = turn % max(len(names), 1)
            for name in names[first:] + names[:first]:
                rows[name].samples += workers[name].times(WARMUP_PER_TURN, RUNS_PER_TURN)
    return list(rows.values())


def _check_answers(workers: dict[str, Worker], rows: dict[str, Row], rtol: float) -> None:
    """Removes every engine from `workers` whose answer is not the reference's."""
    if REFERENCE not in workers:
        raise RuntimeError(f"the reference, {REFERENCE}, failed: {rows[REFERENCE].failure}")
    expected = workers[REFERENCE].outputs()
    for name in list(workers):
        try:
            error = difference(expected, workers[name].outputs())
        except RuntimeError as failure:
            rows[name].failure = str(failure)
        else:
            rows[name].max_error = error
            if error > rtol:
                rows[name].failure = f"wrong answer: relative error {error:.1e} > {rtol:g}"
        if rows[name].failure:
            workers.pop(name).close()


def _check_registers(workers: dict[str, Worker], rows: dict[str, Row]) -> None:
    """Removes every engine from `workers` that computes with AVX-512 all the same."""
    for name in list(workers):
        try:
            share = workers[name].share_of_avx512()
        except RuntimeError as failure:
            rows[name].failure = str(failure)
        else:
            if share:
                rows[name].failure = f"AVX-512 in use: in {share:.0%} of samples of registers"
        if rows[name].failure:
            workers.pop(name).close()


def ratio_to_best_peer(rows: list[Row], engine: str = OURS) -> float | None:
    """Our median over the fastest peer's; below 1 means that ours is faster."""
    peers = [row.median for row in rows if row.engine not in OWN and row.median]
    ours = [row.median for row in rows if row.engine == engine and row.median]
    return ours[0] / min(peers) if ours and peers else None


def describe_machine() -> dict[str, Any]:
    """Processor, its vector features and the engines' versions."""
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        pairs = (line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
        for key, value in pairs:
            info.setdefault(key.strip(), value.strip())
    flags = (info.get("flags") or info.get("Features") or "").split()
    wanted = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "asimd", "sve")
    return {
        "processor": info.get("model name") or platform.processor(),
        "machine": platform.machine(),
        "features": [flag for flag in flags if flag in wanted],
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "engines": {name: installed_version(name) for name in ENGINES},
    }


def print_table(rows: list[Row], engines: list[str]) -> None:
    """One line per model and number of threads: median ms ± quartile spread."""
    head = f"{'model':<22}{'thr':>4}" + "".join(f"{name:>16}" for name in engines)
    print(head + f"{'ours/best peer':>16}{'both/best peer':>16}")
    for key in dict.fromkeys((row.model, row.threads) for row in rows):
        group = [row for row in rows if (row.model, row.threads) == key]
        cells = []
        for row in group:
            time = f"{row.median:.2f} ±{row.spread:4.0%}" if row.median else "-"
            cells.append(f"{time:>16}")
        for engine in (OURS, BOTH):
            ratio = ratio_to_best_peer(group, engine)
            cells.append(f"{f'{ratio:.3f}' if ratio else '-':>16}")
        print(f"{key[0]:<22}{key[1]:>4}" + "".join(cells), flush=True)
    for row in rows:
        if row.failure and (row.engine not in PAIRS or row.threads == 2):
            print(f"  {row.model}, {row.threads} thread(s), {row.engine}: no time: {row.failure}")


def write_json(path: Path, rows: list[Row], setup: dict[str, Any]) -> None:
    """All samples, medians and the machine, written whole or not at all."""
    groups = dict.fromkeys((row.model, row.threads) for row in rows)
    ratios = [
        {
            "model": m,
            "threads": t,
            "ours_to_best_peer": ratio_to_best_peer(group),
            "both_to_best_peer": ratio_to_best_peer(group, BOTH),
        }
        for m, t in groups
        if (group := [row for row in rows if (row.model, row.threads) == (m, t)])
    ]
    results = [
        asdict(row) | {"median_ms": row.median, "fastest_ms": min(row.samples, default=None)}
        for row in rows
    ]
    document = {
        "machine": describe_machine() | setup,
        "runs_per_turn": RUNS_PER_TURN,
        "ratios": ratios,
        "results": results,
    }
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(document, file, indent=1)
    Path(file.name).replace(path)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line, checked."""
    first_line = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=first_line)
    parser.add_argument("models", nargs="*", default=PAPER_MODELS, help="zoo names or ONNX files")
    parser.add_argument("--size", type=int, default=224, help="image height and width")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cores", type=int, nargs="+", help="cores to use; default: 0, 1, …")
    parser.add_argument("--repeat", type=int, default=8, help="rounds; each times 5 runs")
    parser.add_argument("--peers", default=",".join(ENGINES), help="engines, ours included")
    parser.add_argument(
        "--mcpu",
        default="",
        help="compile ours for this core; peers, and OpenCL's driver, use what the machine has",
    )
    parser.add_argument(
        "--only-avx2",
        action="store_true",
        help="tell peers that the machine has no AVX-512 (only_avx2.py); needs --mcpu",
    )
    parser.add_argument("--rtol", type=float, default=1e-3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.peers = options.peers.split(",")
    if unknown := set(options.peers) - set(ENGINES):
        parser.error(f"expected engines among {', '.join(ENGINES)}, got {', '.join(unknown)}")
    if options.only_avx2 and not options.mcpu:
        parser.error("expected --mcpu with --only-avx2, got none; name a core without AVX-512")
    if REFERENCE not in options.peers:
        options.peers.insert(0, REFERENCE)
    cores = options.cores or sorted(os.sched_getaffinity(0))
    if max(options.threads) > len(cores):
        parser.error(f"expected at least {max(options.threads)} cores, got {cores}; set --threads")
    options.cores = cores
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints; fails if one of our answers is wrong or missing."""
    options = parse_arguments(arguments)
    machine = describe_machine()
    print(f"{machine['processor']}, {', '.join(machine['features'])}, cores {options.cores}")
    if options.mcpu:
        others = "AVX2" if options.only_avx2 else "what the machine has"
        print(f"ours for {options.mcpu}; all others with {others}")
    rows: list[Row] = []
    for source in options.models:
        model = prepare_model(source, options.size)
        for threads in options.threads:
            cores = options.cores[:threads]
            group = compare_engines(
                model,
                options.peers,
                threads,
                cores,
                options.repeat,
                options.rtol,
                options.mcpu,
                options.only_avx2,
            )
            rows += group
            print_table(group, options.peers)
            if options.json:
                setup = {
                    "pinned_to_cores": options.cores,
                    "ours_for": options.mcpu or "this machine",
                    "only_avx2": options.only_avx2,
                }
                write_json(options.json, rows, setup)
    ours = [row for row in rows if row.engine == OURS or (row.engine == BOTH and row.threads == 2)]
    return 1 if any(row.failure for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
