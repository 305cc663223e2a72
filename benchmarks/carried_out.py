"""Plans of schedulers run on CPU and OpenCL: predicted latencies beside measured ones.

    python -m benchmarks.carried_out squeezenet1_0 lstm --rounds 15 --json carried_out.json

Every scheduler of `benchmarks/schedulers.py` gets the network's kernels with this machine's costs
(the profile `host`), and what it answers is built as a plan: whole kernels where and in the order
in which it wants them, µLayer's layers in shares of output channels, CoDL's chains in bands of
rows (`tvm_stretch/plan/search/scheduled.py`). Every answer is compared with ONNX Runtime's first.
Then all models of a network take turns; the table shows medians, the distance of the quartiles, and
the median of the ratios of a round to the best single processor's. Equal plans are built and
measured once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import tvm

import tvm_stretch as ts
from benchmarks.baselines.anneal import SCHEDULERS, schedule
from benchmarks.baselines.bounds import check_schedule
from benchmarks.commands import Samples, markdown, options, turns
from benchmarks.harness import check, compiled, model_of
from benchmarks.scheduling_profiles import host_costs, whole
from tutorials import zoo
from tvm_stretch.base.errors import StretchError
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.plan.scheduling import Result
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.scheduled import carried_out, whole_problem
from tvm_stretch.read import load_network

TARGETS = ["llvm", "opencl"]

Row: TypeAlias = dict[str, Any]


class Carrier:
    """Makes plans of schedules of one network."""

    def __init__(self, mod: tvm.IRModule, costs: Costs) -> None:
        self.costs = costs
        self.network = Network(mod, costs.kernels)
        self.problem = whole_problem(self.network, costs)

    def results(self) -> Iterator[Result]:
        """The results of all schedulers, checked."""
        unsplit = whole(self.problem)
        asked = {name: (scheduler, self.problem) for name, scheduler in SCHEDULERS.items()}
        asked |= {"ours": (schedule, unsplit), "ours, split": (schedule, self.problem)}
        for name, (scheduler, problem) in asked.items():
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


def carry_out(name: str, size: int | None, rounds: int, costs: Costs) -> list[Row]:
    """Every scheduler's plan of one network, built, checked and measured."""
    network = zoo.build(name, size=size)
    carrier = Carrier(load_network(network), costs)
    model = model_of(network)
    models: dict[str, ts.Model] = {}
    rows: list[Row] = []
    for result in carrier.results():
        plan = carrier.plan(result)
        key = plan.to_json()
        row: Row = {
            "network": name,
            "scheduler": result.scheduler,
            "predicted_ms": result.makespan / 1e6,
        }
        if key not in models:
            began = time.perf_counter()
            models[key] = compiled(model, TARGETS, plan=plan)
            check(f"{name} {result.scheduler}", models[key](**model.inputs), model.expected)
            print(f"{name} {result.scheduler}: built in {time.perf_counter() - began:.0f} s")
        rows.append({**row, "plan": str(list(models).index(key))})
    samples = in_turns({str(i): one for i, one in enumerate(models.values())}, rounds)
    single = next(row["plan"] for row in rows if row["scheduler"] == "single")
    for row in rows:
        row |= {"measured_ms": samples.median(row["plan"]), "spread": samples.spread(row["plan"])}
        row |= {"quickest_ms": min(samples.of[row["plan"]])}
        row |= {"ratio": samples.ratio(row["plan"], single)}
    return rows


def in_turns(models: Mapping[str, ts.Model], rounds: int) -> Samples:
    """Times of all models on random inputs."""
    runs = {name: model.random_run() for name, model in models.items()}
    turns(runs, 3)
    return turns(runs, rounds, warm_up=0)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a row for each network and scheduler."""
    heads = "network", "scheduler", "predicted ms", "measured ms", "quickest ms", "of single"
    alone = {r["network"]: r["predicted_ms"] for r in rows if r["scheduler"] == "single"}
    yield from markdown(heads, (_cells(row, alone[row["network"]]) for row in rows))


def _cells(row: Row, alone: float) -> Sequence[object]:
    predicted = f"{row['predicted_ms']:.2f} ({row['predicted_ms'] / alone:.2f})"
    measured = f"{row['measured_ms']:.2f} ± {row['spread']:.0%}"
    ends = row["quickest_ms"], row["ratio"]
    return row["network"], row["scheduler"], predicted, measured, *ends


def main() -> None:
    """Run from the command line."""
    arguments = options(
        __doc__,
        None,
        ("networks+", str),
        ("--size", int, "height and width of the input"),
        ("--rounds", 15),
        ("--json", Path, "keep all figures here"),
    )
    costs = host_costs()
    rows: list[Row] = []
    for name in arguments.networks:
        try:
            rows += carry_out(name, arguments.size, arguments.rounds, replace(costs))
        except StretchError as error:
            raise SystemExit(f"{name}: {error}") from error
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join([f"\nhost: {costs.source}\n", *table(rows)]))


if __name__ == "__main__":
    main()
