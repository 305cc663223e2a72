"""Potentials & Pitfalls, figure 5: pictures that an app drops while a network runs.

    python -m benchmarks.papers.figure5 [resnet18] [--size 128] [--seconds 10] [--picture 5]

The app is a process of its own (`drawing_app.py`) that draws 60 pictures a second on the OpenCL
device, each of which takes 5 ms there alone. How busy the device is meanwhile is recorded
(`busy.py`). The network runs without a break in another process:

    nothing        the app alone
    cpu alone      the network on the CPU
    opencl alone   on OpenCL, as Mace does in the paper
    both           the plan that the search predicts to be the fastest on both processors; without
                   one, because OpenCL is much faster, the first half of the operators on OpenCL

each of the latter two with `max_share` of OpenCL at 1, 0.75, 0.5 and 0.25, and with a low priority:
`TVM_STRETCH_OPENCL_PRIORITY=low`, and where OpenCL runs on the host's CPU, whose driver knows no
priorities, that of its process (nice 10). Answers of all plans are compared with the CPU's before
anything is timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tvm_stretch as ts
from benchmarks.commands import Table, beside, options
from benchmarks.harness import check
from benchmarks.papers.busy import busy
from benchmarks.papers.drawing_app import Drawn
from benchmarks.two_processors import BOTH, TARGETS, plans_of
from tutorials import zoo
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network

SHARES = (1.0, 0.75, 0.5, 0.25)
_NICE = 10
_APP = (sys.executable, "-m", "benchmarks.papers.drawing_app")


@dataclass(frozen=True)
class Way:
    """How the network runs."""

    plan: str
    share: float = 1.0  # of the time in which OpenCL may be busy
    is_low: bool = False  # whether its priority is low

    @property
    def name(self) -> str:
        """For people."""
        limited = f", at most {self.share:g} of OpenCL" if self.share < 1 else ""
        return f"{self.plan}{limited}{', low priority' if self.is_low else ''}"


CPU, OPENCL = "cpu alone", "opencl alone"
WAYS = (
    Way(CPU),
    *(Way(plan, share) for plan in (OPENCL, BOTH) for share in SHARES),
    *(Way(plan, is_low=True) for plan in (OPENCL, BOTH)),
)


def halves(plan: Plan) -> Plan:
    """The first half of the operators on OpenCL, the rest on the CPU."""
    names = [name for region in plan.regions for name in region.operators]
    middle = len(names) // 2
    first = PlannedRegion("first", "opencl", tuple(names[:middle]))
    return Plan(("cpu", "opencl"), (first, PlannedRegion("rest", "cpu", tuple(names[middle:]))))


def exported(name: str, size: int, folder: Path) -> dict[Way, Path]:
    """The artifact of each way, compared with the CPU's answer."""
    mod = load_network(zoo.build(name, size=size))
    plans = plans_of(mod, planning_costs(processors_of(None, TARGETS, None)[0]))
    plans, found, wanted = {BOTH: halves(plans[OPENCL]), **plans}, {}, None
    x = np.random.default_rng(0).standard_normal((1, 3, size, size)).astype("float32")
    for number, way in enumerate(WAYS):
        share = {} if way.share == 1 else {"max_share": {"opencl": way.share}}
        model = ts.compile(mod, TARGETS, plan=plans[way.plan], **share)
        answer = np.asarray(model(x))
        wanted = answer if wanted is None else wanted
        check(way.name, answer, [wanted])
        found[way] = folder / f"{number}.so"
        model.export(found[way])
    return found


def run_until_told(path: Path) -> None:
    """Run an artifact without a break until the standard input ends; then print milliseconds."""
    model = ts.load(path)
    run = model.timed_run()
    for _ in range(5):
        run()
    print("ready", flush=True)
    taken = []
    os.set_blocking(sys.stdin.fileno(), False)
    while sys.stdin.buffer.raw.read(1) is None:  # type: ignore[attr-defined]
        taken.append(run())
    print(json.dumps(1e3 * median(taken)))


@contextlib.contextmanager
def running(path: Path, *, is_low: bool) -> Iterator[list[float]]:
    """Context in which an artifact runs; the list has its median milliseconds afterwards."""
    how: dict[str, Any] = {"env": {**os.environ}}
    if is_low:
        how["env"]["TVM_STRETCH_OPENCL_PRIORITY"] = "low"
        how["preexec_fn"] = partial(os.nice, _NICE)
    found: list[float] = []
    with beside(
        "-m", "benchmarks.papers.figure5", "--run", path, until="ready", seconds=0.5, **how
    ) as process:
        yield found
        found.append(json.loads(process.communicate()[0]))


def app(*words: str) -> str:
    """What the drawing app prints."""
    done = subprocess.run([*_APP, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def show(artifacts: dict[Way, Path], rounds: str, seconds: float) -> None:
    """Print the table's rows as they are measured."""
    heads = "the network on", "ms a run", "pictures dropped, %", "ms a picture (largest)"
    table = Table(*heads, "device busy, %")

    def drawn() -> tuple[str, ...]:
        with busy() as found:
            own = Drawn(**json.loads(app("draw", rounds, str(seconds))))
        times = f"{own.median_ms:.1f} ({own.largest_ms:.1f})"
        return f"{own.percent:.1f}", times, f"{found[0]:.0f}"

    table.row("nothing", "", *drawn())
    for way, path in artifacts.items():
        with running(path, is_low=way.is_low) as taken:
            own = drawn()
        table.row(way.name, f"{taken[0]:.1f}", *own)


def main() -> None:
    """Measure, and print the table."""
    args = options(
        __doc__,
        None,
        ("network?", "resnet18"),
        ("--size", 128),
        ("--seconds", 10.0),
        ("--picture", 5.0, "milliseconds"),
        ("--run", Path, "an artifact, until the input ends"),
    )
    if args.run is not None:
        run_until_told(args.run)
        return
    with tempfile.TemporaryDirectory() as folder:
        artifacts = exported(args.network, args.size, Path(folder))
        rounds = app("calibrate", str(args.picture))
        told = f"a picture of {args.picture:g} ms, {rounds} rounds"
        print(f"{args.network}, {args.size} pixels; {told}\n")
        show(artifacts, rounds, args.seconds)


if __name__ == "__main__":
    main()
