"""CPU and OpenCL of this machine: each alone, both together, and plans that others make for them.

    python -m benchmarks.two_processors resnet18 resnet50 [--mcpu haswell] [--json two.json]
    python -m benchmarks.two_processors resnet18 --stretched --schedulers --size 128

With PoCL, OpenCL is the machine's second core: one core for each processor. With ``--mcpu``, the
CPU's kernels are for that core; OpenCL's stay what its driver makes for this machine.

With ``--stretched``, beside exact branching stands the best design of `ts.stretch` that has no
fewer multiply-adds and parameters than the network has; its answers are compared with torch's.

With ``--schedulers``, every scheduler of `benchmarks/schedulers.py` gets the network's kernels with
this machine's costs (the profile `host`), and what it answers is built as a plan: whole kernels
where and in the order in which it wants them, µLayer's layers in shares of output channels, CoDL's
chains in bands of rows (`tvm_stretch/plan/search/scheduled.py`). Equal plans are built once.

Answers are compared with ONNX Runtime's first; then all models of a network take turns. Shown are
medians, the distance of the quartiles, and the median of the ratios of a round to the CPU's. Beside
them stands what a plan was predicted to take, and how wrong that is. Predictions are of a machine
that does nothing else, and each meeting waits for the slower core, so on a shared one two more
errors are shown: "at this pace" leaves out how much slower than predicted the CPU alone was in the
same run; "quickest" is against the quickest run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
import tvm

import tvm_stretch as ts
from benchmarks.baselines.bounds import check_schedule
from benchmarks.commands import Rows, Samples, Table, options, turns
from benchmarks.harness import Model, check, compiled, model_of, own_cpu
from benchmarks.kernel_code import SIX
from benchmarks.schedulers import asked
from benchmarks.scheduling_profiles import host_costs
from benchmarks.stretched import equal_capacity
from tutorials import zoo
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.scheduling import Result
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.scheduled import carried_out, whole_problem
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

TARGETS = ["llvm", "opencl"]
BOTH = "both"

Row: TypeAlias = dict[str, Any]
Built: TypeAlias = dict[str, tuple[ts.Model, float]]
"""Models by name, and their predicted nanoseconds."""


class Carrier:
    """Makes plans of schedules of one network."""

    def __init__(self, mod: tvm.IRModule, costs: Costs) -> None:
        self.costs = costs
        self.network = Network(mod, costs.kernels)
        self.problem = whole_problem(self.network, costs)

    def results(self) -> Iterator[Result]:
        """The results of all schedulers, checked."""
        for name, (scheduler, problem) in asked(self.problem).items():
            result = scheduler(problem)
            check_schedule(problem, result)
            yield replace(result, scheduler=name)

    def plan(self, result: Result) -> Plan:
        """A plan that follows the schedule; without predictions, so that equal plans are equal."""
        found = carried_out(self.network, self.costs, result)
        assert not isinstance(found, str), found
        plan = found.plan
        regions = tuple(PlannedRegion(r.name, r.processor, r.operators) for r in plan.regions)
        return Plan(plan.processors, regions, shares=plan.shares, splits=plan.splits)


def plans_of(mod: tvm.IRModule, costs: Costs) -> dict[str, Plan]:
    """The best plan of each processor alone, such as ``cpu alone``, and of several as ``both``."""
    found = search(mod, costs)
    plans = {f"{one.plan.regions[0].processor} alone": one.plan for one in found.singles}
    return {**plans, BOTH: found.rivals[0].plan} if found.rivals else plans


def in_turns(models: Mapping[str, ts.Model], rounds: int) -> Samples:
    """Times of all models on random inputs."""
    runs = {name: model.random_run() for name, model in models.items()}
    turns(runs, 3)
    return turns(runs, rounds, warm_up=0)


def check_alike(models: Mapping[str, ts.Model]) -> None:
    """All models of a network give the answer of the first."""
    first, *others = models.values()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(port.shape, np.float32) for port in first.inputs]
    want = [np.asarray(first(*inputs))]
    for name, model in zip([*models][1:], others, strict=True):
        check(name, model(*inputs), want)


# --- the models of a network ----------------------------------------------------------------------


def searched(network: onnx.ModelProto, model: Model, cpu: Any) -> Built:
    """Each processor alone, and both."""
    costs = planning_costs(make_processors([cpu, "opencl"], None)[0])
    found = search(load_network(network), costs)
    alone = {one.plan.regions[0].processor: one.cost.ns for one in found.singles}
    models = {"cpu": compiled(model, [cpu]), "opencl": compiled(model, ["opencl"])}
    models[BOTH] = compiled(model, [cpu, "opencl"], cpu_threads=None)
    predicted = alone | {BOTH: models[BOTH].plan.predicted_ns or float("nan")}
    return {name: (one, predicted.get(name, float("nan"))) for name, one in models.items()}


def stretched(network: onnx.ModelProto, model: Model, targets: list[Any]) -> tuple[ts.Model, float]:
    """The fastest design with at least the network's multiply-adds and parameters in total."""
    st = ts.stretch(network, targets)
    best = equal_capacity(st, *st.original)
    net = st.to_torch(best.design).eval()
    with torch.no_grad():
        expected = net(*map(torch.from_numpy, model.inputs.values())).numpy()
    made = ts.compile(st.load_torch(net), targets)
    check("stretched", made(**model.inputs), [expected])
    kept = (best.multiply_adds / st.original[0], best.parameters / st.original[1])
    told = f"{kept[0]:.2f} of the multiply-adds, {kept[1]:.2f} of the parameters"
    print(f"stretched: {best.design}; {told}; {best.ns / 1e6:.2f} ms predicted", flush=True)
    return made, best.ns


def scheduled(network: onnx.ModelProto, model: Model) -> Built:
    """The plan of every scheduler; equal plans are one model."""
    carrier = Carrier(load_network(network), replace(host_costs()))
    models: dict[str, ts.Model] = {}
    found: Built = {}
    for result in carrier.results():
        plan = carrier.plan(result)
        key = plan.to_json()
        if key not in models:
            models[key] = compiled(model, TARGETS, plan=plan)
        found[result.scheduler] = models[key], result.makespan
    return found


# --- rows -----------------------------------------------------------------------------------------


def measured(name: str, built: Built, model: Model, rounds: int) -> Iterator[Row]:
    """The row of each model; all are compared before, and take turns."""
    for what, (one, _) in built.items():
        if what != "stretched":  # which is another network
            check(f"{name}, {what}", one(**model.inputs), model.expected)
    keys = {what: str(id(one)) for what, (one, _) in built.items()}
    samples = in_turns({str(id(one)): one for one, _ in built.values()}, rounds)
    pace = samples.median(keys["cpu"]) * 1e6 / built["cpu"][1]
    for what, (_, ns) in built.items():
        key, predicted = keys[what], ns / 1e6
        median, quickest = samples.median(key), min(samples.of[key])
        wrong = predicted / median, predicted * pace / median, predicted / quickest
        row = {"network": name, "plan": what, "predicted_ms": predicted, "measured_ms": median}
        row |= {"spread": samples.spread(key), "quickest_ms": quickest}
        yield row | {"ratio": samples.ratio(key, keys["cpu"]), "errors": [w - 1 for w in wrong]}


HEADS = (
    *("network", "plan", "predicted ms", "measured ms", "quickest ms", "of the CPU"),
    *("error", "at this pace", "quickest"),
)


def cells(row: Row) -> Sequence[object]:
    """The cells of a row."""
    measured = f"{row['measured_ms']:.2f} ± {row['spread']:.0%}"
    times = row["predicted_ms"], measured, row["quickest_ms"], row["ratio"]
    return row["network"], row["plan"], *times, *(f"{error:+.1%}" for error in row["errors"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = options(
        *(__doc__, arguments, ("models*", SIX), ("--size", 224), ("--rounds", 25)),
        ("--mcpu", "", "compile the CPU's kernels for this core"),
        ("--stretched", False, "a stretched design as well"),
        ("--schedulers", False, "the plans of all schedulers as well"),
        ("--json", Path, "keep all figures here"),
    )
    kept, table, cpu = Rows(args.json), Table(*HEADS), own_cpu(args.mcpu)
    for name in args.models:
        network = zoo.build(name, size=args.size)
        model = model_of(network)
        built = searched(network, model, cpu)
        if args.stretched:
            built["stretched"] = stretched(network, model, [cpu, "opencl"])
        if args.schedulers:
            built |= scheduled(network, model)
        for row in measured(name, built, model, args.rounds):
            kept.record(f"{name} {row['plan']}", row)
            table.row(*cells(row))
    if args.schedulers:
        print(f"\nhost: {host_costs().source}")


if __name__ == "__main__":
    main()
