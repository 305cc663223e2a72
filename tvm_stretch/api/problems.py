"""``network_problem()``: a network as a scheduling problem, for schedulers that somebody writes.

    found = ts.problems.network_problem("net.onnx", ["llvm", "opencl"])
    result = my_scheduler(found.problem)
    ts.compile("net.onnx", ["llvm", "opencl"], plan=found.plan(result))

Costs are those that a search would use: measured ones (``ts.tune.measure``), or typical ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm

from tvm_stretch.base.compiling import compiling
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.scheduling import Problem, Result, check_schedule
from tvm_stretch.plan.scheduling.of_network import problem_of, processors_of
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.site import Targets, site_of
from tvm_stretch.read import load_network


@dataclass(frozen=True)
class NetworkProblem:
    """A network's kernels on processors.

    Attributes:
        problem: operator 0 has the network's inputs, the last one its outputs, both on the CPU; the
            others are its kernels, named after the last operator in them.
        network: the network, as the search sees it.
    """

    problem: Problem
    network: Network

    @property
    def module(self) -> tvm.IRModule:
        """Canonical Relax; plans name its operators."""
        return self.network.mod

    def plan(self, result: Result) -> Plan:
        """The plan that carries out a schedule.

        Raises:
            ScheduleError: the result is no schedule of the problem.
        """
        check_schedule(self.problem, result)
        placed = processors_of(self.network.graph, result)
        regions = form_regions(self.module["main"], placed)
        return Plan(self.problem.processors, regions, reason=f"scheduled by {result.scheduler}")


def network_problem(
    source: object,
    targets: Targets = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
) -> NetworkProblem:
    """A network as a scheduling problem; see the module docstring.

    Args:
        source: as for `compile`.
        targets: as for `compile`.
        shapes: as for `compile`.
        cpu_threads: as for `compile`.
    """
    with compiling():
        site = site_of(None, targets, cpu_threads)
        mod = load_network(source, shapes)
        costs = site.costs(mod)
        network = Network(mod, costs.kernels)

        def nanoseconds(group: Group) -> list[int | None]:
            return [costs.whole(group, place) for place in range(len(site.processors))]

        problem = problem_of(network.graph, site.names, nanoseconds, costs.transfers())
        return NetworkProblem(problem, network)
