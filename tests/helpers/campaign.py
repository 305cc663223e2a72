"""Campaigns of random seeds in processes that may die: what `random_*.py` share.

A script prints one line of JSON before each seed and one after it; a process that dies or hangs
costs one seed. The processes keep no kernels, and each has a core of its own.
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import os
import queue
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

Line = dict[str, Any]
VERDICTS = ("right", "refused", "wrong", "raw", "dead")


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments of every campaign."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--count", type=int, default=1000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--jobs", type=int, default=1, help="processes side by side")
    made.add_argument("--limit", type=float, default=60, help="seconds of one seed, at most")
    made.add_argument("--json", type=Path, help="where all lines go")
    made.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    return made


def run(args: argparse.Namespace, check: Callable[[int], Sequence[Line]]) -> int:
    """Check the seeds; print verdicts that are not `right`, and one line of counts at the end.

    Counts so far go to the standard error, since a campaign may be killed before its end.
    """
    if args.work:
        *ends, core = args.work
        os.sched_setaffinity(0, {core})  # the compiler starts as many threads as it has cores
        _work(range(*ends), check)
        return 0
    started = time.monotonic()
    counts, kinds = collections.Counter[str](), collections.Counter[str]()
    out = args.json.open("w", encoding="utf-8") if args.json else None
    seeds = range(args.seed, args.seed + args.count)
    for line in _lines(seeds, args.jobs, args.limit):
        counts[line["verdict"]] += line.get("count", 1)
        kinds.update(line.get("kinds", ()))
        print(json.dumps({**counts, "so far": True}), file=sys.stderr, flush=True)
        if line["verdict"] != "right":
            print(json.dumps(line), flush=True)
        if out:
            print(json.dumps(line), file=out, flush=True)
    total = {name: counts[name] for name in VERDICTS}
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({**total, **kinds, "seeds": [args.seed, args.count], "seconds": seconds}))
    return 1 if counts["wrong"] + counts["raw"] + counts["dead"] else 0


def _work(seeds: range, check: Callable[[int], Sequence[Line]]) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        gc.disable()  # a fifth of the time of small networks; reference counts free nearly all
        for seed in seeds:
            if seed % 10 == 0:
                gc.collect()
            print(json.dumps({"begins": seed}), flush=True)
            try:
                lines = check(seed)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"[:300]
                lines = [{"verdict": "raw", "error": what}]
            print("\n".join(json.dumps({"seed": seed, **line}) for line in lines), flush=True)
            print(json.dumps({"ended": seed}), flush=True)


def _lines(seeds: range, jobs: int, limit: float) -> Iterator[Line]:
    piece = max(min(len(seeds) // jobs, 100), 1)  # lines come when a piece ends
    pieces = [seeds[start : start + piece] for start in range(0, len(seeds), piece)]
    idle = queue.SimpleQueue[int]()
    for core in itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), jobs):
        idle.put(core)

    def judged(part: range) -> list[Line]:
        core = idle.get()
        try:
            return list(_piece(part, core, limit))
        finally:
            idle.put(core)

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(judged, part) for part in pieces]):
            yield from done.result()


def _piece(seeds: range, core: int, limit: float) -> Iterator[Line]:
    while seeds:
        work = map(str, (seeds.start, seeds.stop, core))
        try:
            found = subprocess.run(
                [sys.executable, *sys.argv, "--work", *work],
                capture_output=True,
                text=True,
                timeout=limit * len(seeds) + 60,
                env={**os.environ, "TVM_STRETCH_CACHE_DIR": "", "OMP_NUM_THREADS": "1"},
            )
            text, why = found.stdout, f"exit {found.returncode}: {found.stderr[-200:]}"
        except subprocess.TimeoutExpired as late:
            text, why = (late.stdout or b"").decode(), "took too long"
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        yield from (line for line in lines if "verdict" in line)
        done = sum("ended" in line for line in lines)
        if done == len(seeds):
            return
        yield {"seed": seeds[done], "verdict": "dead", "error": why}
        seeds = seeds[done + 1 :]
