"""``network_problem()``: a whole network as a scheduling problem, and the plan of a schedule.

    found = ts.problems.network_problem("net.onnx", ["llvm", "opencl"])
    result = ts.problems.scheduler("hope")(found.problem)
    ts.compile("net.onnx", ["llvm", "opencl"], plan=found.plan(result))

Costs are those that a search would use: measured ones (``ts.tune.measure``), typical ones, or those
that the profile of a phone predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm

from tvm_stretch.api.compiler import to_predict
from tvm_stretch.base.compiling import compiling
from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling import Problem, Result, check_schedule
from tvm_stretch.plan.scheduling.named import read_scheduler as scheduler
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.scheduled import carried_out, whole_problem
from tvm_stretch.plan.search.site import DeviceLike, Targets

__all__ = ["NetworkProblem", "network_problem", "scheduler"]


@dataclass(frozen=True)
class NetworkProblem:
    """A network's kernels on processors.

    Attributes:
        problem: operator 0 has the network's inputs, the last one its outputs, both on the CPU; the
            others are its kernels, named after the last operator in them. Operators that
            are ``splittable`` may be scheduled in parts.
        network: the network, as the search sees it.
        costs: of its kernels.
    """

    problem: Problem
    network: Network
    costs: Costs

    @property
    def module(self) -> tvm.IRModule:
        """Canonical Relax; plans name its operators."""
        return self.network.mod

    def plan(self, result: Result) -> Plan:
        """The plan that carries out a schedule, with times predicted from the plan's own kernels.

        Raises:
            ScheduleError: the result is no schedule of the problem, or its parts have no plan.
        """
        check_schedule(self.problem, result)
        planned = carried_out(self.network, self.costs, result)
        if isinstance(planned, str):
            raise ScheduleError(
                f"expected a schedule that a plan can carry out, got one where {planned}; leave "
                "that operator whole, or place it elsewhere"
            )
        says = f"{planned.what}, which counts {result.makespan / 1e6:.6f} ms"
        return replace(planned.plan, reason=says)


def network_problem(
    source: object,
    targets: Targets = None,
    *,
    device: DeviceLike = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    as_built: bool = False,
) -> NetworkProblem:
    """A network as a scheduling problem, with the costs that a search would use.

    Args:
        source: as for `compile`.
        targets: as for `compile`.
        device: as for `plan_for`.
        shapes: as for `compile`.
        cpu_threads: as for `compile`.
        as_built: as for `plan_for`.
    """
    with compiling():
        mod, _, site = to_predict(source, targets, device, shapes, cpu_threads, as_built)
        costs = site.costs(mod)
        network = Network(mod, costs.kernels)
        return NetworkProblem(whole_problem(network, costs), network, costs)
