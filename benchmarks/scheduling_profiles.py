"""Processors that schedulers are compared on, and the problem of a network on them.

* `host`: CPU and OpenCL of this machine; times as `ts.tune.measure()` found
  them, or typical ones where it was never run. The caption says which.
* `1:3` and the like: roofs, not devices; a CPU of 20 GMAC/s and a GPU of 60, memory of 10 GB/s at
  ratio 1.
* `big+little`: the same for two clusters of one CPU, which share their memory.
* `mi9 C+G` and the like: CPU, GPU, DSP of a phone, each with a speed of its own for every family of
  operators (`speeds` in `published_designs.py`); `C/1.5` is the CPU at two thirds of its frequency,
  where it is better than the GPU at some families and worse at others. Tensors are 8-bit integers.

On all but `host` a hand-over takes 0.15 ms and converts the layout at 2.5 GB/s, and problems hold
one operator per Relax call, as in HOPE (NASNet-Large: 1,113); those of `host` hold kernels. µLayer
and CoDL may split convolutions, matrix products, pooling and pointwise operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import tvm

from benchmarks import published_designs
from benchmarks.baselines.bounds import check_schedule
from tutorials import zoo
from tvm_stretch.network.operator_graph import Group, OperatorGraph
from tvm_stretch.plan.scheduling import FREE, Problem, TransferCost, linear_transfer
from tvm_stretch.plan.scheduling.of_network import problem_of, splittable
from tvm_stretch.plan.scheduling.result import Scheduler
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.scheduled import whole_problem
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

PHONE = ("mi9 C+G", "mi9 C/1.5+G", "mi9 C+G+D")
RATIOS = ("1:3", "1:2", "1:1", "2:1", "3:1", "1:1:1", "1:2:3")
PROFILES = ("host", *RATIOS, *PHONE)
CLUSTERS = "big+little"

_NAMES = ("cpu", "gpu", "dsp")
_LAUNCH_NS = {"cpu": 2_000, "gpu": 10_000, "dsp": 10_000, "big": 2_000, "little": 2_000}
_CLUSTERS = {"big": 1.5, "little": 1.0}  # two Cortex-A76 and four Cortex-A55 by clocks and lanes
_MACS_PER_NS, _BYTES_PER_NS = 20.0, 10.0
_FIXED_NS, _BYTES_PER_US = 150_000, 2_500
_FLOAT, _INTEGER = 1, 4  # how many numbers are as large as one of float32


def graph_of(name: str) -> OperatorGraph:
    """The operators of a network of the zoo."""
    return OperatorGraph(load_network(zoo.build(name), None)["main"])


def spans(problem: Problem, schedulers: Mapping[str, Scheduler]) -> dict[str, int]:
    """Nanoseconds of each scheduler's answer, which is checked first."""
    found = {}
    for name, scheduler in schedulers.items():
        result = scheduler(problem)
        check_schedule(problem, result)
        found[name] = result.makespan
    return found


def synthetic_problem(graph: OperatorGraph, profile: str) -> Problem:
    """The problem of a network on the processors of a profile other than `host`."""
    if profile.startswith("mi9 "):
        return _phone_problem(graph, profile.removeprefix("mi9 ").split("+"))
    if profile == CLUSTERS:
        speeds = _CLUSTERS
    else:
        speeds = dict(zip(_NAMES, map(float, profile.split(":")), strict=False))

    def costs(group: Group) -> list[int]:
        compute, memory = _compute_ns(group, 1), _memory_ns(group)
        return [
            _LAUNCH_NS[name] + round(max(compute / speed, memory / speed**0.5))
            for name, speed in speeds.items()
        ]

    problem = _problem(graph, tuple(speeds), costs, _FLOAT)
    return without_transfers(problem) if profile == CLUSTERS else problem


def _phone_problem(graph: OperatorGraph, parts: Sequence[str]) -> Problem:
    """``["C/1.5", "G"]``: the CPU at two thirds of its frequency, and the GPU."""
    known = {name[0].upper(): name for name in published_designs.PROCESSORS}
    names = tuple(known[part[0]] for part in parts)
    slower = [float(part.partition("/")[2] or 1) for part in parts]

    def costs(group: Group) -> list[int]:
        family, memory = _family(group), _memory_ns(group) / _INTEGER
        roofs = (
            max(slow * group.multiply_adds / published_designs.speeds()[name][family], memory)
            for name, slow in zip(names, slower, strict=True)
        )
        return [_LAUNCH_NS[n] + round(roof) for n, roof in zip(names, roofs, strict=True)]

    return _problem(graph, names, costs, _INTEGER)


def _compute_ns(group: Group, speed: float) -> float:
    return group.multiply_adds / _MACS_PER_NS / speed


def _memory_ns(group: Group) -> float:
    return (group.read_bytes + group.bytes) / _BYTES_PER_NS


def _family(group: Group) -> str:
    """One of `published_designs.FAMILIES`."""
    anchor = group.anchor
    if not anchor.kind.startswith("nn.conv"):
        return "pointwise"
    if anchor.groups > 1:
        return "depthwise" if anchor.groups == anchor.arg_shapes[0][1] else "grouped"
    return "pointwise" if set(anchor.arg_shapes[1][2:]) == {1} else "dense"


def _problem(
    graph: OperatorGraph, names: Sequence[str], costs: Callable[[Group], list[int]], smaller: int
) -> Problem:
    launch = [_LAUNCH_NS[name] for name in names]
    transfers = transfers_between(len(names), smaller)
    return splittable(problem_of(graph, names, costs, transfers), graph, launch)


def transfers_between(count: int, smaller: int) -> tuple[tuple[TransferCost, ...], ...]:
    """The hand-overs of `count` processors, whose numbers are so much smaller than float32."""
    return ((linear_transfer(_FIXED_NS, smaller * _BYTES_PER_US),) * count,) * count


def host_costs() -> Costs:
    """The costs of this machine's processors."""
    processors, _ = make_processors(["llvm", "opencl"], 1)
    return planning_costs(processors)


def host_problem(mod: tvm.IRModule, costs: Costs) -> Problem:
    """The problem of a network on this machine."""
    return whole_problem(Network(mod, costs.kernels), costs)


def whole(problem: Problem) -> Problem:
    """The same problem without the right to split operators."""
    operators = tuple(replace(operator, splittable=False) for operator in problem.operators)
    return replace(problem, operators=operators)


def one_layout(problem: Problem) -> Problem:
    """The problem if handing over converted nothing, as HOPE ran µLayer (section 5.4)."""
    fixed = tuple(tuple(TransferCost(((0, cost(0)),)) for cost in row) for row in problem.transfers)
    return replace(problem, transfers=fixed)


def without_transfers(problem: Problem) -> Problem:
    """The same problem if handing over took no time."""
    count = len(problem.processors)
    return replace(problem, transfers=((FREE,) * count,) * count)
