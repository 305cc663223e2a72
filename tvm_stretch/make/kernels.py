"""The kernels of a network as the compiler makes them, so that plans are based on real kernels.

    conv1, relu1, join, conv2    ──the phases of pipeline.py──>    group relu1: conv1, relu1
    in regions of a plan                                              fused_conv2d_relu  (cpu)
                                                                   group conv2: conv2
                                                                      subsample          (opencl)
                                                                      conv2d             (opencl)

Kernels record which operators they compute or help. An operator without a kernel is a view. The
kernels of a group are described before scheduling, while their blocks still show the computation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import relax

from tvm_stretch.make.lowering.executor_graph import COPY_KERNEL
from tvm_stretch.make.lowering.walk import Walk
from tvm_stretch.make.lowering.weights import UnreadWeights
from tvm_stretch.make.pipeline import lower_regions
from tvm_stretch.network.operator_graph import OperatorGraph, is_computed
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.join_depthwise import JoinDepthwise
from tvm_stretch.plan.cost.describe import Anchored, describe_apart, describe_copy, result_shape
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.processor import Processor


@dataclass(frozen=True)
class GroupKernel:
    """One kernel of a group."""

    features: Features  # input of the cost models
    # its template and epilogue; None for copies and kernels without a template
    anchored: Anchored | None = None
    shape: tuple[int, ...] = ()  # of its result in memory; empty for copies
    computes: bool = True  # whether it computes operators; other kernels convert layouts


@dataclass(frozen=True)
class KernelLevel:
    """A network after the compiler's passes."""

    mod: tvm.IRModule  # kernel-level Relax
    graph: OperatorGraph  # the network in groups of operators that run together
    kernels: Mapping[str, tuple[GroupKernel, ...]]  # of each group, by the group's name

    def features(self, group: str) -> tuple[Features, ...]:
        """The features of a group's kernels."""
        return tuple(kernel.features for kernel in self.kernels[group])


def kernels_alone(
    mod: tvm.IRModule,  # the canonical module
    processor: Processor,  # runs all regions, whatever processor they name
    operators: Operators | None = None,  # of ``main``, if they are known
    # operators of different regions are not fused; by default there is one region
    regions: Sequence[PlannedRegion] | None = None,
) -> KernelLevel:
    """The kernels of a canonical module on one processor, including operators that it refuses.

    Kernels are not joined: another plan may give each of them to another processor.
    """
    processor = without_joining(processor)
    operators = operators or Operators(mod["main"])
    if regions is None:
        names = tuple(op.name for op in operators if isinstance(op.binding.value, relax.Call))
        regions = [PlannedRegion("r0", processor.name, names)] if names else []
    own = tuple(replace(region, processor=processor.name) for region in regions)
    return kernels_of_plan(mod, Plan((processor.name,), own), [processor], operators)


def joined_kernels(level: KernelLevel, processor: Processor) -> tuple[Features, ...] | None:
    """All kernels of `kernels_alone` after the processor joined some; None if it joins none."""
    joining = [phase for phase in processor.code.phases if isinstance(phase, JoinDepthwise)]
    mod = tvm.transform.Sequential(joining)(level.mod)
    if mod.same_as(level.mod):
        return None
    joined = _described(mod, [processor], level.graph.operators)
    return tuple(kernel.features for listed in joined.kernels.values() for kernel in listed)


def without_joining(processor: Processor) -> Processor:
    """The processor without the phases that join kernels, which come last."""
    apart = tuple(phase for phase in processor.code.phases if not isinstance(phase, JoinDepthwise))
    return replace(processor, code=replace(processor.code, phases=apart))


def kernels_of_plan(
    mod: tvm.IRModule,  # the canonical module, after the plan's shares and splits
    plan: Plan,  # its regions contain every operator once
    processors: Sequence[Processor],  # all processors of the model, the CPU first
    operators: Operators | None = None,  # of ``main``, if they are known
) -> KernelLevel:
    """The kernels of a canonical module whose regions are those of a plan."""
    operators = operators or Operators(mod["main"])
    return _described(lower_regions(mod, plan, processors), processors, operators)


def _described(
    lowered: tvm.IRModule,  # kernel-level Relax
    processors: Sequence[Processor],  # all processors of the model
    operators: Operators,  # of the canonical module
) -> KernelLevel:
    """The features of all kernels, by the operators that they compute or help."""
    machines = [processor.machine for processor in processors]
    walk = Walk(lowered, [p.name for p in processors], weights=UnreadWeights())
    walk.visit_main(relax.analysis.remove_all_unused(lowered["main"]))
    functions = {var.name_hint: function for var, function in lowered.functions.items()}
    priced: dict[tuple[str, int], GroupKernel] = {}
    entries: list[tuple[tuple[str, ...], bool, GroupKernel]] = []
    for region in walk.regions:
        for step in region.steps:
            machine = machines[region.processor]
            if step.kernel == COPY_KERNEL:
                kernel = GroupKernel(describe_copy(step.inputs[0].bytes, machine))
            else:
                key = (step.kernel, region.processor)
                if key not in priced:
                    function = functions[step.kernel]
                    described = describe_apart(function, machine)
                    priced[key] = GroupKernel(*described, result_shape(function))
                kernel = priced[key]
            inside = tuple(name for name in step.provenance.served if name in operators)
            if inside:
                entries.append((inside, bool(step.provenance.operators), kernel))
    return _grouped(lowered, operators, entries)


def _grouped(
    mod: tvm.IRModule,  # kernel-level Relax
    operators: Operators,  # of the canonical module
    # in execution order, the operators of each kernel, whether it computes them or only helps, and
    # the kernel
    entries: Sequence[tuple[tuple[str, ...], bool, GroupKernel]],
) -> KernelLevel:
    """Groups of the operators that kernels compute; helping kernels join their operator's group.

    So do operators that are part of a reader's kernel: scores and shares of an attention.
    """
    computed = {name for inside, computes, _ in entries if computes for name in inside}
    members: dict[tuple[str, ...], None] = {}
    for inside, computes, _ in entries:
        if computes or not computed.issuperset(inside):
            members.pop(inside, None)  # a result that copies assemble is complete after the last
            members[inside] = None
    graph = OperatorGraph(operators, _with_inner(operators, list(members)))
    group_of = {op.name: group.name for group in graph.groups for op in group.operators}
    kernels: dict[str, list[GroupKernel]] = {group.name: [] for group in graph.groups}
    for inside, computes, kernel in entries:
        kernels[group_of[inside[-1]]].append(replace(kernel, computes=computes))
    return KernelLevel(mod, graph, {name: tuple(listed) for name, listed in kernels.items()})


def _with_inner(
    operators: Operators, members: Sequence[tuple[str, ...]]
) -> Sequence[tuple[str, ...]]:
    """The groups with the operators that have no kernel because that of their readers has them."""
    group_of = {name: number for number, names in enumerate(members) for name in names}
    order = {operator.name: place for place, operator in enumerate(operators)}
    grown = [[*names] for names in members]
    for operator in reversed([*operators]):
        readers = {group_of.get(name) for name in operators.readers[operator.name]}
        number = readers.pop() if len(readers) == 1 else None
        if number is None or operator.name in group_of or not is_computed(operator):
            continue
        group_of[operator.name] = number
        grown[number].append(operator.name)
    return [tuple(sorted(names, key=order.__getitem__)) for names in grown]
