"""The share of a core's peak that networks reach.

    python -m benchmarks.share_of_peak [networks…] [--mcpu haswell] [--rounds 30]

All on one pinned core, in turns with a loop that does nothing but multiply-adds (`peak.py`), after
answers are compared with ONNX Runtime's. Operations are those of the direct sums, so those that
Winograd saves count, and whatever else a network does counts against it. The median of all turns is
shown, and what a tenth of them exceed: on a shared machine one is about its neighbours, the other
about a quiet core.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tvm.target import Target

from benchmarks import harness
from benchmarks.commands import Rows, Table, options
from benchmarks.harness import check, compiled, cpu
from benchmarks.kernel_code import SIX, layers
from benchmarks.peak import Peak
from tvm_stretch.targets.cpu.cpu import complete_target, vector_machine


def network_cells(shares: Sequence[dict[str, float]], work: int) -> list[str]:
    """G multiply-adds, ms, GFLOP/s, peak, share, what a tenth of the turns exceed."""
    took, peak = (np.median([turn[key] for turn in shares]) for key in ("seconds", "peak"))
    parts = [work / turn["seconds"] / turn["peak"] for turn in shares]
    cells = [f"{work / 1e9:.2f}", f"{took * 1e3:.2f}", f"{2 * work / took / 1e9:.0f}"]
    return [*cells, f"{2 * peak / 1e9:.0f}", *(f"{np.quantile(parts, q):.2f}" for q in (0.5, 0.9))]


def measured(name: str, mcpu: str, peak: Peak, rounds: int) -> tuple[int, list[dict[str, float]]]:
    """Multiply-adds of a network, and its turns, after its answer was compared."""
    network = harness.model_of(name, 224)  # as `layers` counts
    model = compiled(network, [cpu(mcpu)])
    check(name, model(**network.inputs), network.expected)
    work = sum(shape.multiply_adds * count for shape, count in layers(name).items())
    turns = []
    for _ in range(rounds):
        before = peak.measure()
        seconds = _seconds(lambda: model(**network.inputs))
        turns.append({"seconds": seconds, "peak": max(before, peak.measure())})
    return work, turns


def _seconds(call: Callable[[], object]) -> float:
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    args = options(
        *(__doc__, arguments, ("names*", SIX), ("--rounds", 30), ("--json", Path)),
        ("--mcpu", "", "of another core whose code this one can run"),
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    machine = vector_machine(complete_target(Target(cpu(args.mcpu))), 1)
    peak, rows = Peak(machine.lanes), Rows(args.json)
    print(f"{args.mcpu or 'this machine'}, {machine.lanes} lanes, one core\n")
    table = Table("network", "G multiply-adds", "ms", "GFLOP/s", "peak", "share", "a tenth above")
    for name in args.names:
        work, turns = measured(name, args.mcpu, peak, args.rounds)
        table.row(name, *network_cells(turns, work))
        rows.record(name, {"multiply_adds": work, "turns": turns})
    best = statistics.median(peak.measure() for _ in range(15))
    print(f"\npeak of this core with {machine.lanes} lanes: {2 * best / 1e9:.0f} GFLOP/s")


if __name__ == "__main__":
    main()
