"""The share of a core's peak that whole networks reach.

    python -m benchmarks.share_of_peak [networks…] [--mcpu haswell] [--rounds 30] [--json out.json]

Networks of the zoo on one pinned core, in turns with a loop that does nothing but multiply-adds
(`peak.py`).  Operations are those of the direct sums of convolutions and dense layers, so those
that Winograd saves count, and whatever else a network does counts against it.  The median of all
turns is shown, and what a tenth of them exceed: on a shared machine one is about its neighbours,
the other about a quiet core.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime
from tvm.target import Target

import tvm_stretch as ts
from benchmarks.engines import own_cpu
from benchmarks.layers import SIX, layers
from benchmarks.peak import Peak
from tutorials import zoo
from tvm_stretch.targets.cpu import complete_target, vector_machine


@dataclass
class Share:
    """The measurements of a network, turn by turn: seconds, share, multiply-adds a second."""

    network: str
    multiply_adds: int
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)

    def add(self, seconds: float, peak: float) -> None:
        """One turn."""
        self.seconds.append(seconds)
        self.peaks.append(peak)
        self.shares.append(self.multiply_adds / seconds / peak)

    def row(self) -> str:
        """A line of the table."""
        took, peak = np.median(self.seconds), np.median(self.peaks)
        cells = [self.network, f"{self.multiply_adds / 1e9:.2f}", f"{took * 1e3:.2f}"]
        cells += [f"{2 * self.multiply_adds / took / 1e9:.0f}", f"{2 * peak / 1e9:.0f}"]
        cells += [f"{np.median(self.shares):.2f}", f"{np.quantile(self.shares, 0.9):.2f}"]
        return f"| {' | '.join(cells)} |"


def measure(name: str, mcpu: str, peak: Peak, rounds: int) -> Share:
    """One network, its answer compared with ONNX Runtime's first."""
    network = zoo.build(name, size=224)  # as `layers` counts
    session = onnxruntime.InferenceSession(network.SerializeToString())
    generator = np.random.default_rng(0)
    ports = session.get_inputs()
    feed = {p.name: generator.standard_normal(p.shape, dtype=np.float32) for p in ports}
    (expected,) = session.run(None, feed)
    model = ts.compile(network, [own_cpu(mcpu)], cpu_threads=1)
    error = np.abs(model(**feed) - expected).max() / np.abs(expected).max()
    if error > 1e-3:
        raise RuntimeError(f"{name}: wrong answer, relative error {error:.1e}")
    work = sum(shape.multiply_adds * count for shape, count in layers(name).items())
    share = Share(name, work)
    for _ in range(rounds):
        before = peak.measure()
        model(**feed)
        begin = time.perf_counter()
        model(**feed)
        share.add(time.perf_counter() - begin, max(before, peak.measure()))
    return share


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.share_of_peak", description=__doc__)
    parser.add_argument("networks", nargs="*", default=SIX)
    parser.add_argument("--mcpu", default="", help="another core whose code this one can run")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    machine = vector_machine(complete_target(Target(own_cpu(options.mcpu))), 1)
    peak = Peak(machine.lanes)
    print(f"{options.mcpu or 'this machine'}, {machine.lanes} lanes, one core\n")
    print("| network | G multiply-adds | ms | GFLOP/s | peak | share | a tenth above |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for name in options.networks:
        found.append(measure(name, options.mcpu, peak, options.rounds))
        print(found[-1].row(), flush=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(share) for share in found]))


if __name__ == "__main__":
    main()
