"""The phases that build a model from a canonical module and its plan.

canonical Relax + plan --branching, regions--> each processor's phases --> kernels --> Model
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.base.compiling import uncollected
from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path, write_whole, writing
from tvm_stretch.base.progress import step
from tvm_stretch.make.assemble import Planned, assemble
from tvm_stretch.make.branching import Branching, branch
from tvm_stretch.make.lowering.weights import WeightsBlob
from tvm_stretch.make.placement import choose_plan, fit_processors
from tvm_stretch.make.precision import WIDE_SUMS
from tvm_stretch.network.emitting.weights import store_halves
from tvm_stretch.network.operators import PROCESSOR
from tvm_stretch.network.properties.verify import blaming, verify
from tvm_stretch.passes.average_by_sums import AverageBySums
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.integers_in_half import IntegersInHalf
from tvm_stretch.passes.merge_regions import kernels_of, merge_regions
from tvm_stretch.passes.name_operators import REGION
from tvm_stretch.passes.partition_regions import PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.passes.whole_regions import WholeRegions
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.parts import Parts
from tvm_stretch.targets.processor import Processor


@dataclass(frozen=True, eq=False)
class Job:
    """A network, a plan for it, and the processors of its model: what a build knows."""

    mod: tvm.IRModule  # the canonical module
    processors: Sequence[Processor]  # all processors of the model, the CPU first
    # processors on which operators may be placed, preferred ones first
    placeable: Sequence[Processor]
    # which processor runs which operators; None for one processor that runs all
    requested: Plan | None = None
    observer: Observer = field(default_factory=lambda: Observer())
    spare: bool = False  # whether the CPU gets kernels for all operators
    known_branched: Branching | None = None  # `branched`, if a search made it
    known_lowered: tvm.IRModule | None = None  # `lowered`, where nothing is observed

    def by(
        self,
        plan: Plan | None,
        branched: Branching | None = None,
        lowered: tvm.IRModule | None = None,
    ) -> Job:
        """The same with another plan, and results that are known of it."""
        return replace(self, requested=plan, known_branched=branched, known_lowered=lowered)

    @property
    def names(self) -> list[str]:
        """All processors."""
        return [processor.name for processor in self.processors]

    @cached_property
    def branched(self) -> Branching:
        """The network with the plan's parts."""
        if self.known_branched is not None or self.requested is None:
            return self.known_branched or Branching(self.mod, {})
        fitting = fit_processors(self.requested, self.names, self.placeable)
        return branch(self.mod, fitting.shares, fitting.splits)

    @cached_property
    def plan(self) -> Plan:
        """The plan with regions and refusals for these processors."""
        given = self.names, self.placeable, self.requested, self.branched.owners
        return choose_plan(self.branched.mod["main"], *given)

    @cached_property
    def lowered(self) -> tvm.IRModule:
        """Kernel-level Relax."""
        self.observer.begin(self.mod)
        if self.plan.shares or self.plan.splits:
            self.observer.see("branched", self.branched.mod)
        engines = {p.name: p.code.model for p in self.processors if p.code.model is not None}
        has_models = any(region.processor in engines for region in self.plan.regions)
        if not (self.known_lowered is None or self.observer.observes or has_models):
            return self.known_lowered
        whole = WholeRegions(engines, spare=self.spare) if has_models else None
        return lower_regions(self.branched.mod, self.plan, self.processors, self.observer, whole)


@uncollected()
def build_parts(
    first: Job,
    # the same network with other plans, to which the model can change while it runs
    *others: Job,
    lengths: Sequence[Mapping[str, int]] = (),  # the sizes of named dimensions of each job
    streams: bool = False,  # whether frames of videos may reuse what did not change
    # whether every feature map has bytes of its own, to see what the memory plan gains
    apart: bool = False,
) -> Parts:
    """Compile a network by its plans; results of ``ts.tune.probe`` are ignored."""
    jobs = (first, *others)
    planned = [
        Planned(job.lowered, job.plan, sizes) for job, sizes in itertools.zip_longest(jobs, lengths)
    ]
    placed = {region.processor for job in jobs for region in job.plan.regions}
    host, *devices = first.processors
    if streams:  # the plan places all on the CPU
        placed |= {device.name for device in devices if device.code.areas is not None}
    devices = [device for device in devices if device.name in placed]
    for one in planned:
        first.observer.see_scheduled(one.mod, first.processors)
    # models of engines hold their weights, which then would stand in the artifact twice
    has_models = any(device.code.model is not None for device in devices)
    halves = store_halves([processor.machine for processor in first.processors])
    # the constants of the first network come first in the weights
    weights = None if has_models else WeightsBlob(first.mod, halves)
    given = planned, [host, *devices], weights
    return assemble(*given, spare=first.spare, streams=streams, apart=apart)


def lower_regions(
    mod: tvm.IRModule,  # the canonical module, after the plan's shares and splits
    plan: Plan,  # its regions contain every operator once
    processors: Sequence[Processor],  # all processors of the model, the CPU first
    observer: Observer | None = None,  # receives the module after every phase
    whole: WholeRegions | None = None,
) -> tvm.IRModule:
    """Kernel-level Relax of a canonical module, before kernels get their loop nests.

    `whole` makes one kernel of each region of an engine. Without it, these regions become the
    kernels from which their time is predicted.
    """
    with blaming(mod):
        return _lowered(mod, plan, processors, observer or Observer(), whole)


def _lowered(
    mod: tvm.IRModule,
    plan: Plan,
    processors: Sequence[Processor],
    observer: Observer,
    whole: WholeRegions | None,
) -> tvm.IRModule:
    mod = _apply(TagOperators(_as_functions(plan)), mod)
    observer.see("TagOperators", mod)
    mod = _apply(PartitionRegions(), mod)
    observer.see("PartitionRegions", mod, partitioned=True)
    machines = {p.name: p.machine for p in processors}
    engines = () if whole is None else tuple(whole.writers)
    if whole is not None:
        mod = _apply(whole, mod)
        observer.see("WholeRegions", mod, partitioned=True)
        # engines have plain tensors, as all that passes between different blocks
        machines |= {name: replace(machines[name], lanes=1) for name in engines}
    mod = _apply(AverageBySums(machines), mod)
    observer.see("AverageBySums", mod, partitioned=True)
    halves = {
        p.name: p.arithmetic.integers == WIDE_SUMS for p in processors if p.arithmetic.integers
    }
    if halves:
        mod = _apply(IntegersInHalf(halves), mod)
        observer.see("IntegersInHalf", mod, partitioned=True)
    mod = _apply(BlockChannels(machines), mod)
    observer.see("BlockChannels", mod, partitioned=True)
    parts = {
        p.name: part if p.name in engines else _run_phases(p, part, observer)
        for p in processors
        for part in [_regions_of(mod, p)]
    }
    mod = merge_regions(mod["main"], parts)
    observer.see("merged", mod, partitioned=True)
    return mod


def _as_functions(plan: Plan) -> Plan:
    """The plan with regions renamed to function names, which no kernel has."""
    regions = (replace(region, name=REGION + region.name) for region in plan.regions)
    return replace(plan, regions=tuple(regions))


def _apply(phase: Any, mod: tvm.IRModule) -> tvm.IRModule:
    """``phase(mod)``; mypy does not know that TVM's decorator makes a pass of a class."""
    step()
    return phase(mod)


def _regions_of(mod: tvm.IRModule, processor: Processor) -> tvm.IRModule:
    """The processor's regions, and all kernels that any region calls."""

    def belongs(function: object) -> bool:
        if not isinstance(function, relax.Function):
            return True
        return str((function.attrs or {}).get(PROCESSOR, "")) == processor.name

    return tvm.IRModule({v: f for v, f in mod.functions.items() if belongs(f)})


def _run_phases(processor: Processor, mod: tvm.IRModule, observer: Observer) -> tvm.IRModule:
    """Run the processor's phases, unless it has no region."""
    if not any(isinstance(function, relax.Function) for function in mod.functions.values()):
        return tvm.IRModule({})
    with processor.target:
        for phase in processor.code.phases:
            mod = _apply(phase, mod)
            observer.see(f"{processor.name}-{phase.info.name}", mod, partitioned=True)
    return mod


class Observer:
    """Writes the IR after each phase to a numbered file, and verifies it, if requested."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        processors: Sequence[Processor] | None = None,
    ) -> None:
        self.folder = None if folder is None else as_path(folder, "the folder for the phases")
        self.processors = processors
        self.count = 0
        if self.folder is not None:
            with writing("the phases", InputError):
                self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def observes(self) -> bool:
        """Whether the phases are written or verified."""
        return self.folder is not None or self.processors is not None

    def begin(self, mod: tvm.IRModule) -> None:
        """See the canonical module, unless another plan's build showed it already."""
        if not self.count:
            self.see("canonical", mod)

    def see(self, name: str, mod: tvm.IRModule, *, partitioned: bool = False) -> None:
        """Write ``NN-name.py``; check the rules for partitioned modules."""
        if self.folder is not None:
            with writing("the phases", InputError):
                write_whole(self.folder / f"{self.count:02}-{name}.py", mod.script())
            self.count += 1
        if self.processors is not None and partitioned:
            verify(mod, self.processors)

    def see_scheduled(self, mod: tvm.IRModule, processors: Sequence[Processor]) -> None:
        """Observe the kernels as `assemble` schedules those that are not in the cache."""
        if not self.observes:
            return
        scheduled = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for processor in processors:
            with processor.target:
                scheduled.update(processor.code.schedule(kernels_of(mod, processor.name)))
        self.see("scheduled", scheduled, partitioned=True)
