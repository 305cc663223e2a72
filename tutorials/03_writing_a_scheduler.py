"""Writing a scheduler: its input and result, the checker, and a model that follows the schedule.

Run it: `python tutorials/03_writing_a_scheduler.py`.  It needs no device: the second processor is
`tvm_stretch.run.testing`'s, which runs the CPU's kernels on a thread of its own.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import zoo
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.scheduling import (
    Problem,
    Result,
    Simulation,
    check_schedule,
    result_of,
)
from tvm_stretch.run.testing import fake_processor
from tvm_stretch.targets import Processor, Speed


def section(title: str) -> None:
    """Print a heading."""
    print(f"\n{'=' * 8} {title}")


def second_processor() -> Processor:
    """An accelerator twice as fast as the CPU that starts every kernel 2 us late and pools not."""

    def refuse(call: relax.Call) -> str | None:
        return "it has no pools" if "pool" in call.op.name else None

    found = fake_processor("second", refuse=refuse)
    slow = found.speed
    speed = Speed(2 * slow.cycles_per_ns, 2 * slow.bytes_per_ns, slow.start_ns + 2_000, 5_000.0)
    return dataclasses.replace(found, speed=speed)


section("1. The problem")
# The compiler says which kernels the network becomes, in groups of operators that run together, and
# what each of them costs on each processor, in whole nanoseconds, None where it is not supported.
# These are the costs that a search uses: measured ones, after `ts.tune.measure`.
onnx_model = zoo.build("squeezenet1_1", size=96)
targets = ["llvm", second_processor()]
network = ts.problems.network_problem(onnx_model, targets, cpu_threads=1)
problem = network.problem
print(f"{len(problem.operators)} operators, {len(problem.tensors)} tensors")
print("operator", problem.operators[3].name, "costs", problem.operators[3].costs)
print("the caller's inputs and outputs are with the first processor:", problem.operators[0])

section("2. A scheduler: Problem in, Result out")
# A Simulation is a schedule that grows: `append` runs an operator next on a processor, `finish_on`
# says when it would be done there, including transfers.


def longest_way_first(given: Problem) -> Result:
    """Schedule the operator with the longest remaining path next, where it finishes first."""
    began = time.perf_counter_ns()
    remaining = [0.0] * len(given.operators)
    for operator in reversed(given.sequence):
        after = max((remaining[s] for s in given.successors[operator]), default=0.0)
        remaining[operator] = given.mean_cost(operator) + after
    timeline = Simulation(given)
    ready = [o for o in range(len(remaining)) if not given.predecessors[o]]
    while ready:
        operator = max(ready, key=lambda o: remaining[o])
        ready.remove(operator)
        where = given.supported[operator]
        timeline.append(operator, min(where, key=lambda p: timeline.finish_on(operator, p)))
        for successor in given.successors[operator]:
            if all(before in timeline.finish for before in given.predecessors[successor]):
                ready.append(successor)
    return result_of("longest way first", timeline, began)


mine = longest_way_first(problem)
print(f"{mine.makespan / 1e6:.3f} ms, found in {mine.runtime_ns / 1e6:.1f} ms")

section("3. The checker is independent")
# It knows only the rules (problem.py), and shares no code with schedulers. Every test and benchmark
# calls it.
check_schedule(problem, mine)
impossible = dataclasses.replace(mine, finish=tuple(t // 2 for t in mine.finish))
try:
    check_schedule(problem, impossible)
except ts.ScheduleError as error:
    print("refused:", error)
else:
    raise AssertionError("half of the time should not be enough")

section("4. Beside the others")
# HOPE's linear program and its greedy search come with the package.  In a checkout,
# `benchmarks/baselines/` has the schedulers of other papers, and a lower bound.
names = ("heft", "hope", "hope-greedy")
results = {"mine": mine, **{name: ts.problems.scheduler(name)(problem) for name in names}}
for name, result in sorted(results.items(), key=lambda item: -item[1].makespan):
    check_schedule(problem, result)
    print(f"{name:12}{result.makespan / 1e6:8.3f} ms{result.runtime_ns / 1e6:10.1f} ms to find it")

section("5. From a schedule to a plan, and to a model")
# Operators of one processor become regions; a region waits only before its first operator.  An
# operator that the problem calls splittable may be scheduled in parts: the plan then has shares of
# its layer, or bands of rows where parts of neighbours exchange nothing.
plan = network.plan(mine)
model = ts.compile(onnx_model, targets, plan=plan, cpu_threads=1)
print(model.plan.explain())
assert {region.processor for region in model.plan.regions} == {"cpu", "second"}

alone = ts.compile(onnx_model, cpu_threads=1)
x = np.random.default_rng(0).standard_normal((1, 3, 96, 96), dtype="float32")
expected, y = alone(x), model(x)
assert np.abs(y - expected).max() < 1e-4 * np.abs(expected).max()
print("the same numbers as on one processor")

section("6. Let a compile race it")
# A compile asks the scheduler about the whole network, beside its own search.  The answer is
# checked, and its plan is measured with the others: it is taken only if it is the fastest.
found = ts.compile(onnx_model, targets, scheduler=longest_way_first, cpu_threads=1)
for row in found.plan.considered:
    print(f"{row.what:62}{row.verdict}")
assert any("longest way first" in row.what for row in found.plan.considered)
assert np.abs(found(x) - expected).max() < 1e-4 * np.abs(expected).max()
