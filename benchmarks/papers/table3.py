"""Potentials & Pitfalls, table 3: errors of predictions while resources change.

    σ0  nothing changes
    σ1  60 °C: the GPU's clock falls from 585 to 499 MHz
    σ2  70 °C: it falls to 427 MHz
    σ3  a process beside the model fills the last-level cache
    σ4  half of the operators go to the CPU, as if the GPU did not support them

A model has plans for both processors and for each alone. While a condition lasts, runs of the
model and of each plan, pinned, alternate in blocks. An error is the distance of a plan's median
latency from

    offline     what was measured when the model was compiled, as the paper's predictions
    corrected   what the model predicts meanwhile, by the pace of each processor

σ0, σ1, σ2 and σ4 are scripted devices that take what the twin of a Snapdragon 855 predicts, or a
multiple that takes 50 ms, so that this machine's own load counts little. A network too large for
the twin's GPU (VGG-16's weights) has no plan for it alone.
σ3 is a CPU and an OpenCL device of this machine, beside a process that copies four times the cache.
At σ4, `offline` predicts the plan without the CPU's half, and `corrected` the plan that runs.
`change` is the mean latency of the model, which may change its plan, over that of its first plan
and over that of its best plan, both pinned. Trials of slow plans count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import tvm

import tvm_stretch as ts
from benchmarks.commands import Table, beside, options
from benchmarks.papers.figure4 import blocks, pinned, watched
from benchmarks.replayed import device_of, lasting, moved
from benchmarks.two_processors import TARGETS, Carrier
from tutorials import zoo
from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling import Result
from tvm_stretch.plan.scheduling.simulate import run_sequence
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.plan.search.decision import FASTEST
from tvm_stretch.plan.search.twin import twin_costs, twin_processors
from tvm_stretch.read import load_network
from tvm_stretch.run import testing
from tvm_stretch.targets.cpu.cpu import cpu_processor

THEIRS = {
    "YOLOv2": ((19, 46, 23, 70), (28, 63, 55, 85)),
    "VGG-16": ((13, 30, 25, 93), (29, 80, 91, 126)),
    "PoseNet": ((2, 17, 48, 79), (2, 20, 98, 121)),
}
"""Percent at σ1 to σ4: Mace on the GPU, CoDL on CPU and GPU."""

MHZ = {"σ0": 585, "σ1": 499, "σ2": 427}
"""Clocks of an Adreno 640; what the paper's phone had at its temperatures is not known."""

GPU, BOTH, HALF, CHANGING = "opencl", "both", "half", "change"
_LEAST_NS = 50e6
_SCRIPTED, _HERE = 3, 16
"""Rounds of such blocks: scripted devices hardly differ from run to run."""

_THRASHER = (
    "import numpy as np, sys\na = np.ones(int(sys.argv[1]) >> 3)\n"
    "b = np.empty_like(a)\nwhile True: b[:] = a"
)

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")

Errors = tuple[float, float]
"""Offline and corrected."""


class Scripted:
    """A network's plans of the twin, on devices whose clocks can change."""

    def __init__(self, name: str) -> None:
        mod = load_network(zoo.build(name))
        profile = load_profile("snapdragon-855")
        team, _ = twin_processors(profile, ["cpu", GPU])
        costs = twin_costs(profile, team)
        found = search(mod, costs)
        both = (one.plan for one in found.rivals if not (one.plan.shares and one.plan.splits))
        best = next(both, None)  # of those that `moved` can move
        if best is None:
            raise UnsupportedError(f"expected a plan for both processors of {name}, got none")
        assert best.predicted_ns is not None  # the search has predicted it
        slower = max(1.0, _LEAST_NS / best.predicted_ns)
        plans = {BOTH: best}
        plans |= {single.plan.regions[0].processor: single.plan for single in found.singles}
        plans[HALF] = half_on_cpu(mod, costs)
        host = cpu_processor(tvm.target.Target("llvm"), 1)
        self.scripts = {label: lasting(plan, f"{label}_", slower) for label, plan in plans.items()}
        regions = {
            name: entry for script in self.scripts.values() for name, entry in script.items()
        }
        devices = [
            testing.fake_processor(device_of(p.name), target=host.target, regions=regions)
            for p in team
        ]
        self.model = ts.compile(
            mod,
            [host, *devices],
            plans={label: moved(mod, plan, host, f"{label}_") for label, plan in plans.items()},
            cpu_threads=1,
        )
        self.code = self._code()

    def _code(self) -> tvm.runtime.Module:
        parts = self.model.parts
        assert parts is not None
        names = [processor.name for processor in self.model.graph.processors[1:]]
        return parts.devices[names.index(device_of(GPU))]

    @contextlib.contextmanager
    def clock(self, mhz: int) -> Iterator[None]:
        """Context in which the GPU has this clock."""
        self._take(MHZ["σ0"] / mhz)
        try:
            yield
        finally:
            self._take(1.0)

    def _take(self, slower: float) -> None:
        for script in self.scripts.values():
            for region, entry in script.items():
                self.code["take"](region, round(slower * entry["latency_us"]))


def half_on_cpu(mod: tvm.IRModule, costs: Costs) -> Plan:
    """The plan in which the CPU computes every second kernel, with predictions of its regions."""
    carrier = Carrier(mod, costs)
    problem = carrier.problem
    placement = tuple(
        number % 2 if operator.costs[1] is not None else 0
        for number, operator in enumerate(problem.operators)
    )
    run = run_sequence(problem, placement, range(len(placement)))
    order, start, finish = tuple(map(tuple, run.order)), dict(run.start), dict(run.finish)
    times = [tuple(known[i] for i in range(len(placement))) for known in (start, finish)]
    result = Result("half", problem, placement, order, times[0], times[1], max(times[1]), 0)
    plan = carrier.plan(result)
    taken = {
        job.name: end - begin for job, begin, end in zip(problem.operators, *times, strict=True)
    }
    regions = []
    for region in plan.regions:
        groups = {carrier.network.group_of.get(operator, "") for operator in region.operators}
        regions.append(replace(region, predicted_ns=(0, sum(taken.get(g, 0) for g in groups))))
    return replace(plan, regions=tuple(regions))


def under(
    model: ts.Model, condition: contextlib.AbstractContextManager[None], rounds: int
) -> Mapping[str, Errors]:
    """Errors of each plan's predictions; under "change" ratios to the first and the best plan."""
    offline = {plan.name: plan.expected_ns / 1e9 for plan in model.graph.plans}
    own, taken, predicted = watched(model, condition, rounds, lambda: model.predicted)
    means = [mean(times) for times in taken.values()]
    found = {}
    for name, times in taken.items():
        corrected = median(p[name] for p in predicted)
        found[name] = off(offline[name], median(times)), off(corrected, median(times))
    return found | {CHANGING: (mean(own) / means[0], mean(own) / min(means))}


def off(predicted: float, measured: float) -> float:
    """Percent by which the measured latency is above or below the prediction."""
    return 100 * abs(measured / predicted - 1)


def thrashing() -> contextlib.AbstractContextManager[None]:
    """Context in which a process copies four times the last-level cache."""
    size = 1 << 25
    with contextlib.suppress(OSError, ValueError):
        size = 1024 * int(_CACHE.read_text(encoding="ascii").strip().removesuffix("K"))
    return beside("-c", _THRASHER, min(4 * size, 1 << 29), seconds=1.0)


def show(table: Table, name: str, size: int) -> None:
    """Print the lines of a network."""

    def lines(title: str, sigma: str, found: Mapping[str, Errors], labels: Sequence[str]) -> None:
        for label in filter(found.__contains__, labels):
            before, after = found[label]
            is_first = label in (BOTH, FASTEST)
            change = "{:.2f}, {:.2f}".format(*found[CHANGING]) if is_first else ""
            table.row(title, sigma, label, f"{before:.0f}", f"{after:.0f}", change)

    scripted = Scripted(name)
    model = scripted.model
    for sigma, mhz in MHZ.items():
        lines(name, sigma, under(model, scripted.clock(mhz), _SCRIPTED), (GPU, BOTH))
    offline = {plan.name: plan.expected_ns / 1e9 for plan in model.graph.plans}
    half = median(blocks(pinned(model), 1)[HALF])
    for label in filter(offline.__contains__, (GPU, BOTH)):
        errors = f"{off(offline[label], half):.0f}", f"{off(offline[HALF], half):.0f}"
        table.row(name, "σ4", label, *errors, "")
    mod = load_network(zoo.build(name, size=size))
    best = search(mod, planning_costs(processors_of(None, TARGETS, None)[0])).rivals[0]
    real = ts.compile(mod, TARGETS, plan=best.plan, plans=True)
    found = under(real, thrashing(), _HERE)
    lines(f"{name}, {size} pixels, here", "σ3", found, tuple(real.plans))


def main() -> None:
    """Run from the command line."""
    args = options(
        *(
            __doc__,
            None,
            ("networks*", ["yolov2", "vgg16", "posenet", "mobilenet_v1", "squeezenet1_0"]),
        ),
        ("--size", 128, "of σ3's network"),
    )
    heads = "network", "condition", "plan", "offline, %", "corrected, %"
    table = Table(*heads, "change, of first, of best")
    for name in args.networks:
        try:
            show(table, name, args.size)
        except UnsupportedError:
            table.row(name, "no plan for both is predicted to be faster than one", *[""] * 4)
    print()
    theirs = Table("paper", "GPU: σ1, σ2, σ3, σ4, %", "CPU and GPU")
    for name, errors in THEIRS.items():
        theirs.row(name, *(", ".join(map(str, own)) for own in errors))


if __name__ == "__main__":
    main()
