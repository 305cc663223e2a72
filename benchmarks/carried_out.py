"""Plans of schedulers run on CPU and OpenCL: predicted latencies beside measured ones.

    python -m benchmarks.carried_out squeezenet1_0 lstm --rounds 15 --json carried_out.json

Every scheduler of `benchmarks/schedulers.py` gets the network's kernels with this machine's costs
(the profile `host`), and what it answers is built as a plan: whole kernels where and in the order
in which it wants them, µLayer's layers in shares of output channels, CoDL's chains in bands of
rows. Every answer is compared with ONNX Runtime's first. Then all models of a network take turns;
the table shows medians, the distance of the quartiles, and the median of the ratios of a round to
the best single processor's. Equal plans are built and measured once.

Operators that no pass can split stay whole on the processor with the larger share: pools and
depthwise convolutions whose input is whole. A chain that rows cannot split is shared layer by
layer.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import tvm

import tvm_stretch as ts
from benchmarks.baselines.anneal import SCHEDULERS, schedule
from benchmarks.baselines.parts import check_schedule
from benchmarks.baselines.split import (
    SplitChain,
    codl_chains,
    mulayer_chains,
    split,
)
from benchmarks.commands import Samples, markdown, options, turns
from benchmarks.harness import check, compiled, model_of
from benchmarks.scheduling_profiles import host_costs, host_problem, whole
from tutorials import zoo
from tvm_stretch.base.errors import InputError, StretchError, UnsupportedError
from tvm_stretch.make.branching import branch
from tvm_stretch.network.emitting.row_branches import plan_row_split
from tvm_stretch.network.expressions import PIECES
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.scheduling import Result
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import apportion
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.realise import by_start, complete
from tvm_stretch.plan.splits import RowSplit
from tvm_stretch.read import load_network

TARGETS = ["llvm", "opencl"]
_PART = re.compile(r"\.[pr]\d+(\..*)?$")

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Cut:
    """The shares and splits of a plan for a scheduler's parts."""

    shares: Mapping[str, tuple[int, ...]]
    splits: tuple[RowSplit, ...]


class Carrier:
    """Makes plans of schedules of one network."""

    def __init__(self, mod: tvm.IRModule, costs: Costs) -> None:
        self.costs = costs
        self.network = Network(mod, costs.kernels)
        self.problem = host_problem(mod, costs)
        self.groups = {group.name: group for group in self.network.graph.groups}

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
        """A plan that follows the schedule."""
        cut = self._cut(result)
        processors = self.costs.processors
        branched = branch(self.network.mod, cut.shares, cut.splits)
        operators = Operators(branched.mod["main"])
        places = self._places(result)
        placed = {op: places[group] for op, group in self.network.group_of.items()}
        placed = complete(operators, {**placed, **branched.owners})
        for name, place in placed.items():
            if operators[name].kind in PIECES and not self._supports(operators, name, place):
                placed[name] = 0
        order = by_start(operators, placed, self._starts(operators, placed, result))
        names = {name: processors[place].name for name, place in placed.items()}
        regions = form_regions(branched.mod["main"], names, order)
        known = tuple(processor.name for processor in processors)
        return Plan(known, regions, shares=cut.shares, splits=cut.splits)

    def _supports(self, operators: Operators, name: str, place: int) -> bool:
        return self.costs.kernels.supports(operators[name], place)

    def _places(self, result: Result) -> dict[str, int]:
        """The processor of each group; for a group in parts, that of the largest part."""
        best: dict[str, tuple[Fraction, int]] = {}
        for job, place in zip(result.problem.operators, result.placement, strict=True):
            name = job.whole or job.name
            best[name] = max(best.get(name, (Fraction(0), 0)), (job.share, place))
        return {name: place for name, (_, place) in best.items()}

    def _starts(
        self, operators: Operators, placed: Mapping[str, int], result: Result
    ) -> dict[str, int]:
        """The time at which the schedule begins each operator's kernel, or its first part."""
        names = result.problem.processors
        starts = {
            job.name: start
            for job, start in zip(result.problem.operators, result.start, strict=True)
        }
        found = {}
        for operator in operators:
            group = self.network.group_of.get(_PART.sub("", operator.name))
            if group is not None and operator.name in placed:
                part = f"{group}@{names[placed[operator.name]]}"
                found[operator.name] = starts.get(part, starts.get(group, 0))
        return found

    def _cut(self, result: Result) -> Cut:
        """Shares and splits for the schedule's chains."""
        shares: dict[str, tuple[int, ...]] = {}
        splits: list[RowSplit] = []
        for chain in self._chains(result):
            rows = self._rows(chain) if len(chain.layers) > 1 else None
            if rows is not None:
                splits.append(rows)
                continue
            for layer in chain.layers:
                anchor = self._group(layer[0]).anchor
                widths = self._widths(self._group(layer[0]), chain.shares)
                if can_be_shared(anchor.call) and min(w for w in widths if w) < sum(widths):
                    shares[anchor.name] = widths
        return Cut(shares, tuple(splits))

    def _chains(self, result: Result) -> list[SplitChain]:
        if not any(job.whole for job in result.problem.operators):
            return []
        made = (mulayer_chains(self.problem), codl_chains(self.problem))
        return next(chains for chains in made if split(self.problem, chains) == result.problem)

    def _group(self, operator: int) -> Group:
        return self.groups[self.problem.operators[operator].name]

    def _rows(self, chain: SplitChain) -> RowSplit | None:
        start = self._group(chain.operators[0]).anchor.inputs[0]
        end = self._group(chain.operators[-1]).operators[-1].name
        ratios = tuple(float(chain.shares.get(p, 0)) for p in range(len(self.costs.processors)))
        rows = RowSplit(start, end, ratios)
        try:
            plan_row_split(self.network.operators, rows)
        except (UnsupportedError, InputError):
            return None
        return rows

    def _widths(self, group: Group, shares: Mapping[int, Fraction]) -> tuple[int, ...]:
        """Channels in whole vectors, as near to the shares as that allows."""
        places = range(len(self.costs.processors))
        lanes = self.costs.processors[0].machine.lanes
        unit = self.network.channel_unit(group.anchor, lanes)
        units, rest = divmod(group.anchor.shape[1], unit)
        largest_first = sorted(shares, key=lambda place: shares[place], reverse=True)
        kept = {place: float(shares[place]) for place in largest_first[: max(1, units)]}
        counts = apportion(units, kept) if units else {}
        widths = [counts.get(place, 0) * unit for place in places]
        widths[max(kept)] += rest
        return tuple(widths)


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
