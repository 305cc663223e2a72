"""Writing a scheduler: what it is given, what it answers, who checks it, and a model that runs so.

Run it: `python tutorials/03_writing_a_scheduler.py`.  It needs no device: the second processor is
the fake one of our tests, which runs the CPU's kernels on a thread of its own.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import tvm
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor

import tvm_stretch as ts
from tvm_stretch import zoo
from tvm_stretch.build.kernels import kernels_alone
from tvm_stretch.cost.analytic import AnalyticModel
from tvm_stretch.errors import ScheduleError
from tvm_stretch.frontend import load_network
from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.runtime.native_processor import build_processor, load_processor
from tvm_stretch.scheduling import (
    FREE,
    Problem,
    Result,
    Simulation,
    check_schedule,
    linear_transfer,
    lower_bound,
)
from tvm_stretch.scheduling.anneal import SCHEDULERS
from tvm_stretch.scheduling.of_network import problem_of, processors_of
from tvm_stretch.scheduling.refine import refine
from tvm_stretch.scheduling.result import result_of

ROOT = Path(__file__).resolve().parents[1]


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


section("1. The problem")
# The compiler says which kernels the network becomes, in groups of operators that run together.
# `problem_of` asks for what each group costs on each processor, in whole nanoseconds, None where it
# is not supported.
onnx_model = zoo.build("squeezenet1_1", size=96)
network = load_network(onnx_model)
cpu = cpu_processor(tvm.target.Target("llvm"), threads=1)
kernels = kernels_alone(network, cpu)
graph, model = kernels.graph, AnalyticModel()


def costs(group: Group) -> tuple[int | None, ...]:
    """A CPU, and an accelerator twice as fast that starts every kernel 2 us late and pools not."""
    nanoseconds = sum(p.nanoseconds for p in model.predict_all(kernels.features(group.name)))
    return nanoseconds, None if "pool" in group.anchor.kind else 2_000 + nanoseconds // 2


hand_over = linear_transfer(fixed_ns=5_000, bytes_per_us=10_000)
problem = problem_of(graph, ("cpu", "second"), costs, ((FREE, hand_over), (hand_over, FREE)))
print(f"{len(problem.operators)} operators, {len(problem.tensors)} tensors")
print("operator", problem.operators[3].name, "costs", problem.operators[3].costs)
print("the caller's inputs and outputs are with the first processor:", problem.operators[0])

section("2. A scheduler: Problem in, Result out")
# A Simulation is a schedule that grows: `append` runs an operator next on a processor, `finish_on`
# says when it would be done there, receiving what others wrote included.


def longest_way_first(given: Problem) -> Result:
    """The operator with the most work behind it next, where it is done first."""
    began = time.perf_counter_ns()
    behind = [0.0] * len(given.operators)
    for operator in reversed(given.sequence):
        after = max((behind[s] for s in given.successors[operator]), default=0.0)
        behind[operator] = given.mean_cost(operator) + after
    timeline = Simulation(given)
    ready = [o for o in range(len(behind)) if not given.predecessors[o]]
    while ready:
        operator = max(ready, key=lambda o: behind[o])
        ready.remove(operator)
        where = given.supported[operator]
        timeline.append(operator, min(where, key=lambda p: timeline.finish_on(operator, p)))
        for successor in given.successors[operator]:
            if all(before in timeline.finish for before in given.predecessors[successor]):
                ready.append(successor)
    return result_of("longest way first", timeline, began)


mine = longest_way_first(problem)
print(f"{mine.makespan / 1e6:.3f} ms, found in {mine.runtime_ns / 1e6:.1f} ms")

section("3. The checker believes nothing")
# It knows the rules (problem.py), not how anybody schedules.  Every test and benchmark calls it.
check_schedule(problem, mine)
impossible = dataclasses.replace(mine, finish=tuple(t // 2 for t in mine.finish))
try:
    check_schedule(problem, impossible)
except ScheduleError as error:
    print("refused:", error)
else:
    raise AssertionError("half of the time should not be enough")

section("4. Beside the others")
bound = lower_bound(problem)
results = {name: scheduler(problem) for name, scheduler in SCHEDULERS.items()} | {"mine": mine}
for name, result in sorted(results.items(), key=lambda item: -item[1].makespan):
    check_schedule(problem, result)
    print(f"{name:10}{result.makespan / 1e6:8.3f} ms{result.runtime_ns / 1e6:10.1f} ms to find it")
print(f"{'bound':10}{bound / 1e6:8.3f} ms; no schedule takes less")
assert bound <= results["ours"].makespan <= mine.makespan

section("5. Let local search improve it")
# Moves and swaps of operators in C++, from any complete schedule.
started = Simulation(problem)
for operator in mine.sequence:
    started.append(operator, mine.placement[operator])
refined = result_of("mine, refined", refine(started), time.perf_counter_ns())
check_schedule(problem, refined)
print(f"{mine.makespan / 1e6:.3f} -> {refined.makespan / 1e6:.3f} ms")
assert refined.makespan <= mine.makespan

section("6. From a schedule to a plan, and to a model")
# Operators of one processor become regions; a region waits only before its first operator.  To let
# every compile() use your scheduler, call it in tvm_stretch/search/options.py (`scheduled`).


def second_processor() -> Processor:
    """The fake processor of the executor; tutorial 4 builds one step by step."""

    def build(_kernels: object, _schedule: object) -> tvm.runtime.Module:
        source = ROOT / "tests/native/fake_processor.cc"
        load_processor(build_processor(source, ROOT / "build/fake"))
        return tvm.get_global_func("tvm_stretch.create_fake_code")("{}")

    return dataclasses.replace(cpu, name="second", kind="fake", build=build, runs_host_code=True)


names = processors_of(graph, refined)
plan = Plan(("cpu", "second"), form_regions(network["main"], names))
model = ts.compile(onnx_model, [cpu, second_processor()], plan=plan, cpu_threads=1)
print(model.plan.explain())
assert {region.processor for region in model.plan.regions} == {"cpu", "second"}

alone = ts.compile(onnx_model, cpu, cpu_threads=1)
x = np.random.default_rng(0).standard_normal((1, 3, 96, 96), dtype="float32")
expected, y = alone(x), model(x)
assert np.abs(y - expected).max() < 1e-4 * np.abs(expected).max()
print("the same numbers as on one processor")
