"""The plans of a model: which there are, which one the next run takes, and how that is decided.

list(model.plans)                   # ["fastest", "without cpu", "without opencl"]
model.plans.use("without cpu")      # always that one
model.plans.adapt()                 # the one that is the fastest at present
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.named_arguments import is_count, is_number
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.plan import Execution, Plan, Stray

# Where the operators of a plan really run: told from the graph that is executed, not by the plan.
#
#     plan    r1 opencl: conv1, relu1, join           graph   r1 opencl: kernel "conv1 + relu1"
#             r2 cpu: conv2                    and            r2 opencl: kernel "conv2"
#         -> 1 of 4 operators fell back: conv2 from cpu to opencl
#
# Nodes say which operators they compute, or help. An operator without a kernel is a view, or was
# computed once when the model was loaded.


NOWHERE = "nowhere"
"""Where the kernels of an operator ran that a run left out."""


def find_execution(
    planned: Mapping[str, str],  # the processor of each operator
    graph: Graph,  # its regions, each on a processor, and their kernels
    # the nodes that a traced run executed; None for all of them
    ran: Collection[int] | None = None,
) -> Execution:
    """Compare a plan with the graph that runs."""
    reads: dict[str, set[str]] = {}
    for region in graph.regions:
        processor = graph.processors[region.processor].name
        for node in region.nodes:
            may_skip = bool(graph.nodes[node].when)
            where = processor if ran is None or node in ran or may_skip else NOWHERE
            for operator in graph.nodes[node].provenance.served:
                reads.setdefault(operator, set()).add(where)
    strays = tuple(
        Stray(operator, processor, where)
        for operator, processor in planned.items()
        for where in sorted(reads.get(operator, set()) - {processor})
    )
    without = tuple(operator for operator in planned if operator not in reads)
    return Execution(len(planned), strays, without)


class Executor(Protocol):
    """The module of kind `tvm_stretch.executor`, here or on another device."""

    def __getitem__(self, method: str) -> Callable[..., Any]:
        """One of its methods: executor.h lists them."""


class PlansOfModel(Mapping[str, Plan]):
    """The plans between which a model can change, by name; `in_use` is one of the names."""

    def __init__(self, module: Executor, graph: Graph, change: Callable[..., None]) -> None:
        """For `Model.plans`; ``change`` calls a method of the executor that sets something."""
        self._module = module
        self._graph = graph
        self._set = change
        self._read: dict[int, Plan] = {}
        self._names = tuple(plan.name for plan in graph.plans) or ("plan",)

    def __getitem__(self, name: str) -> Plan:
        """Which processor runs which operators, what was refused, and what fell back."""
        return self.numbered({own: number for number, own in enumerate(self._names)}[name])

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many plans there are."""
        return len(self._names)

    def numbered(self, number: int) -> Plan:
        """The plan with a number of the graph."""
        if number not in self._read:
            graph = self._graph.of_plan(number)
            plan = Plan.read(graph.plan)
            execution = find_execution(plan.processor_of(), graph)
            self._read[number] = dataclasses.replace(plan, execution=execution)
        return self._read[number]

    @property
    def number(self) -> int:
        """The number of the plan that the next run takes."""
        return int(self._module["plan"]()) if self._graph.plans else 0

    @property
    def in_use(self) -> str:
        """The name of the plan that the next run takes."""
        return self._names[self.number]

    def use(self, name: str) -> None:
        """Let all runs take the plan of that name, until `adapt` is called.

        Of a model with several lengths, that is the length which measurements take.

        Raises:
            InputError: there is no plan of that name.
        """
        if not isinstance(name, str) or name not in self._names:
            raise InputError(
                f"expected one of the plans {list(self._names)} for use, got {name!r}; compile "
                "with plans= for others"
            )
        if self._graph.plans:
            self._set("use_plan", self._names.index(name))

    def adapt(self, factor: float = 1.3, runs: int = 3, pause: int = 16) -> None:
        """Let runs take the plan that is the fastest at present; models of several plans begin so.

        If something else keeps a processor busy, or heat slows it down, runs become longer, and
        another plan is tried. The one that was slow is tried again after a pause: such a run is
        right, as all are, but perhaps slow.

        Args:
            factor: a run is slow if it takes more than ``factor`` times the expected latency.
            runs: another plan is tried after this number of slow runs; each fast run takes one
                back.
            pause: the number of runs after which a plan that was slow is tried again.

        Raises:
            InputError: a number is too small, or the shapes of inputs choose the plan.
        """
        if self._graph.lengths:
            raise InputError(
                f"expected a model of one length for adapt, got one of {len(self._graph.lengths)}; "
                "the shapes of its inputs choose the plan"
            )
        fits = is_number(factor, 1, float("inf")) and factor > 1
        if not (fits and is_count(runs) and is_count(pause)):
            raise InputError(
                f"expected a factor above 1 and at least 1 run for adapt, got {factor!r}, {runs!r} "
                f"and {pause!r}; the defaults suit most"
            )
        self._set("adapt", float(factor), runs, pause)

    @property
    def paces(self) -> dict[str, float]:
        """How long each processor's work takes at present, over the time at compile time.

        Known for models with several plans that were measured: some of their runs are traced.
        """
        pace = self._module["pace"]
        return {one.name: pace(place) for place, one in enumerate(self._graph.processors)}

    @property
    def predicted(self) -> dict[str, float]:
        """Seconds that a run of each plan should take at present; 0 if the plan was not measured.

        Plans that share a slow processor with the plan in use are predicted from its `paces`.
        """
        expected = self._module["predicted"]
        return {name: expected(place) / 1e9 for place, name in enumerate(self._names)}
