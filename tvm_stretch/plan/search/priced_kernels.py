"""The kernels that the groups of a network become on each processor, worked out once.

Processors of equal machines (a CPU, and an OpenCL device that is the same CPU) share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from tvm_stretch.make.kernels import GroupKernel, KernelLevel, joined_kernels, kernels_alone
from tvm_stretch.network.operator_graph import Group, OperatorGraph
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.plan.search.halves import Half, half_of
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.kernels.layers import Along
from tvm_stretch.targets.processor import Processor


class Kernels:
    """See the module docstring."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = processors
        machines = [processor.machine for processor in processors]
        self._machine = [machines.index(machine) for machine in machines]
        self._supported: dict[tuple[Operator, int], bool] = {}
        self._kernels: dict[tuple[Group, int], tuple[GroupKernel, ...]] = {}
        self._halves: dict[tuple[object, ...], Half | None] = {}
        self._last: tuple[tvm.IRModule, OperatorGraph] | None = None
        self._joined: dict[int, tuple[Features, ...] | None] = {}

    def supports(self, operator: Operator, place: int) -> bool:
        """Whether the processor runs the operator; tuples and views run anywhere."""
        key = (operator, place)
        if key not in self._supported:
            call = operator.binding.value
            reason = isinstance(call, relax.Call) and self.processors[place].why_not(call)
            self._supported[key] = not reason
        return self._supported[key]

    def supported(self, group: Group, place: int) -> bool:
        """Whether the processor runs all operators of the group."""
        return all(self.supports(operator, place) for operator in group.operators)

    def lower(self, mod: tvm.IRModule) -> OperatorGraph:
        """The groups of a canonical module; `whole` and `half` then know their kernels.

        If no processor supports all operators of a kernel, only operators that the same processors
        support become one kernel.
        """
        if self._last is None or self._last[0] is not mod:  # a search may be repeated
            self._last = mod, self._lower_supported(mod)
        return self._last[1]

    def _lower_supported(self, mod: tvm.IRModule) -> OperatorGraph:
        operators = Operators(mod["main"])
        graph = self._lower(mod, operators, None)
        places = range(len(self.processors))
        if all(any(self.supported(group, p) for p in places) for group in graph.groups):
            return graph
        willing = {
            op.name: " ".join(str(p) for p in places if self.supports(op, p))
            for op in operators
            if isinstance(op.binding.value, relax.Call)
        }
        return self._lower(mod, operators, willing)

    def _lower(
        self, mod: tvm.IRModule, operators: Operators, apart: Mapping[str, str] | None
    ) -> OperatorGraph:
        """The kernels of each kind of machine; operators that differ in ``apart`` do not fuse."""
        regions = None if apart is None else form_regions(mod["main"], apart)
        levels = {
            machine: kernels_alone(mod, self.processors[machine], operators, regions)
            for machine in dict.fromkeys(self._machine)
        }
        graph = levels[0].graph
        for machine, level in levels.items():
            for group, kernels in _by_group(graph, level).items():
                self._kernels[group, machine] = tuple(kernels)
            self._joined[machine] = joined_kernels(level, self.processors[machine])
        return graph

    def whole(self, group: Group, place: int) -> tuple[Features, ...]:
        """The kernels of a group."""
        return tuple(k.features for k in self._kernels[group, self._machine[place]])

    def alone(self, graph: OperatorGraph, place: int) -> tuple[Features, ...]:
        """The kernels of the last network on one processor, some of them joined."""
        joined = self._joined[self._machine[place]]
        if joined is not None:
            return joined
        return tuple(f for group in graph.groups for f in self.whole(group, place))

    def half(self, group: Group, place: int, along: Along) -> Half | None:
        """The kernels of about half of a group."""
        kernels = self._kernels[group, self._machine[place]]
        anchor = group.anchor
        same = kernels, anchor.kind, anchor.arg_shapes  # networks repeat their layers
        key = (along, self._machine[place], *same)
        if key not in self._halves:
            self._halves[key] = half_of(group, kernels, along, self.processors[place].machine)
        return self._halves[key]


def _by_group(graph: OperatorGraph, level: KernelLevel) -> dict[Group, list[GroupKernel]]:
    """The kernels of another machine, by the group that holds their last operator."""
    group_of = {op.name: group for group in graph.groups for op in group.operators}
    found: dict[Group, list[GroupKernel]] = {group: [] for group in graph.groups}
    for name, kernels in level.kernels.items():
        if name in group_of:
            found[group_of[name]] += kernels
    return found
