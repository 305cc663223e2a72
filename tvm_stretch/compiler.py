"""``compile()``: the way of a network through the house, front to back.

source --frontend--> canonical Relax --plan--> regions --each processor's phases--> kernels
       --lowering--> Model
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tvm_stretch.branching import Branching, branch
from tvm_stretch.contest import MeasureError
from tvm_stretch.cost.choose import with_measured_choices
from tvm_stretch.cost.verdicts import apply_verdicts
from tvm_stretch.decide import decide
from tvm_stretch.frontend import load_network
from tvm_stretch.lowering.walk import REGION
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.merge_regions import kernels_of, merge_regions
from tvm_stretch.passes.partition_regions import PROCESSOR, PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.passes.verify import verify
from tvm_stretch.placement import choose_plan, fit_processors
from tvm_stretch.plan import Plan, PlanLike
from tvm_stretch.processors import TargetLike, drop_absent, make_processors
from tvm_stretch.runtime.build import build_model
from tvm_stretch.runtime.model import Model
from tvm_stretch.search.realise import Candidate
from tvm_stretch.targets.processor import Processor


def compile(
    source: object,
    targets: Sequence[TargetLike] | TargetLike = ("llvm",),
    *,
    plan: PlanLike | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    spare: bool = False,
    dump_dir: str | os.PathLike[str] | None = None,
    debug: bool = False,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule`` or
            ``torch.export.ExportedProgram``.
        targets: processors that may run operators, as TVM targets: strings, dicts, tags or
            ``tvm.target.Target``; or as ``Processor``.  Plain ``"llvm"`` means this machine's CPU
            with all its features, ``"opencl"`` its first OpenCL device. What ``ts.probe`` found
            not to run on one of them is refused, and the plan says so.
        plan: which processor runs which operators: a ``Plan``, the path of its JSON file, or a
            dict.  By default the fastest of those that `search` proposes, measured here;
            several processors only where they are faster than one. Targets whose device this
            machine lacks are then left out, and the plan says so.
        shapes: shapes of inputs whose dimensions the network leaves open.
        cpu_threads: cores that CPU kernels may use; by default those this process may run on,
            without the ones that belong to another processor's driver.
        spare: the artifact also holds the other processors' kernels for the CPU, which runs the
            whole network again, and from then on, if one of them fails or is absent where the
            artifact is loaded; `Model.lost` then says why.
        dump_dir: folder that receives the IR after every phase, one numbered file each.
        debug: check the rules of the intermediate representation after every phase.

    Returns:
        A model that can be called, measured and exported.
    """
    absent = ""
    if plan is None:
        targets, absent = drop_absent(targets)
    processors, placeable = apply_verdicts(*make_processors(targets, cpu_threads))
    tuned = with_measured_choices(processors)  # plans reckon with the analytic choice
    observer = _Observer(dump_dir, processors if debug else None)
    mod = load_network(source, shapes)
    observer.see("canonical", mod)
    if plan is not None or len(placeable) == 1:
        requested = None if plan is None else Plan.read(plan)
        model = build(mod, requested, tuned, placeable, observer, spare=spare)
    else:
        model = _fastest(mod, processors, tuned, placeable, observer)
        if spare and len(model.graph.processors) > 1:  # not before: what is measured has to fail
            plan = model.plan
            model = build(mod, plan, tuned, placeable, observer, spare=True)
            model = model.with_reason(plan.reason)
    return model.with_reason(_join(model.plan.reason, absent)) if absent else model


def _fastest(
    mod: tvm.IRModule,
    processors: Sequence[Processor],
    tuned: Sequence[Processor],
    placeable: Sequence[Processor],
    observer: _Observer,
) -> Model:
    """The winner of `decide`, compiled for the tuned processors.

    If a device fails meanwhile: what the CPU makes of the network.
    """

    def built(candidate: Candidate) -> Model:
        plan, branched = candidate.plan, candidate.branched
        return build(mod, plan, tuned, placeable, observer, branched)

    try:
        return decide(mod, processors, placeable, built)
    except MeasureError as error:
        left = [processor for processor in placeable if processor.kind == "cpu"]
        if not left:
            raise
        model = build(mod, None, left, left, observer)
        return model.with_reason(f"cpu alone: measuring the others failed: {error}")


def _join(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def build(
    mod: tvm.IRModule,
    requested: Plan | None,
    processors: Sequence[Processor],
    placeable: Sequence[Processor],
    observer: _Observer | None = None,
    branched: Branching | None = None,
    spare: bool = False,
) -> Model:
    """From the canonical module to a model, by the plan; what ``ts.probe`` says does not count.

    Args:
        mod: the canonical module.
        requested: which processor runs which operators; None for one processor that runs all.
        processors: all of the model's, the CPU first.
        placeable: those that operators may be placed on, most wanted first.
        observer: sees the module after every phase.
        branched: what the plan's shares and splits make of the module, if that is known.
        spare: the CPU gets kernels for all operators.
    """
    observer = observer or _Observer(None, None)
    names = [processor.name for processor in processors]
    if requested is not None:
        requested = fit_processors(requested, names, placeable)
        branched = branched or branch(mod, requested.shares, requested.splits, processors)
        mod = branched.mod
        if requested.shares or requested.splits:
            observer.see("branched", mod)
    owners = {} if branched is None else branched.owners
    chosen = choose_plan(mod["main"], names, placeable, requested, owners)
    mod = _apply(TagOperators(_as_functions(chosen)), mod)
    observer.see("TagOperators", mod)
    mod = _apply(PartitionRegions(), mod)
    observer.see("PartitionRegions", mod, partitioned=True)
    mod = _apply(BlockChannels({p.name: p.machine for p in processors}), mod)
    observer.see("BlockChannels", mod, partitioned=True)
    parts = {p.name: _run_phases(p, _regions_of(mod, p), observer) for p in processors}
    mod = merge_regions(mod["main"], parts)
    observer.see("merged", mod, partitioned=True)
    placed = {region.processor for region in chosen.regions}
    host, devices = processors[0], [p for p in processors[1:] if p.name in placed]
    observer.see_scheduled(mod, processors)
    return build_model(
        mod,
        host.target,
        host.threads,
        schedule=host.schedule,
        devices=devices,
        plan=chosen,
        spare=spare,
    )


def _as_functions(plan: Plan) -> Plan:
    """The plan with the names that its regions have as functions: no kernel has such a name."""
    regions = (replace(region, name=REGION + region.name) for region in plan.regions)
    return replace(plan, regions=tuple(regions))


def _apply(phase: Any, mod: tvm.IRModule) -> tvm.IRModule:
    """``phase(mod)``: mypy does not see that TVM's decorator makes a pass of a class."""
    return phase(mod)


def _regions_of(mod: tvm.IRModule, processor: Processor) -> tvm.IRModule:
    """The processor's regions, and all kernels that any region calls."""

    def belongs(function: object) -> bool:
        if not isinstance(function, relax.Function):
            return True
        return str((function.attrs or {}).get(PROCESSOR, "")) == processor.name

    return tvm.IRModule({v: f for v, f in mod.functions.items() if belongs(f)})


def _run_phases(processor: Processor, mod: tvm.IRModule, observer: _Observer) -> tvm.IRModule:
    """The processor's phases; nothing to do where it has no region."""
    if not any(isinstance(function, relax.Function) for function in mod.functions.values()):
        return tvm.IRModule({})
    with processor.target:
        for phase in processor.phases:
            mod = phase(mod)
            observer.see(f"{processor.name}-{phase.info.name}", mod, partitioned=True)
    return mod


class _Observer:
    """Writes the IR of each phase to its own numbered file, and checks it, where asked to."""

    def __init__(
        self, folder: str | os.PathLike[str] | None, processors: Sequence[Processor] | None
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.processors = processors
        self.count = 0
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def see(self, name: str, mod: tvm.IRModule, *, partitioned: bool = False) -> None:
        """Write ``NN-name.py``; check the rules for partitioned modules."""
        if self.folder is not None:
            (self.folder / f"{self.count:02}-{name}.py").write_text(mod.script(), encoding="utf-8")
            self.count += 1
        if self.processors is not None and partitioned:
            verify(mod, self.processors)

    def see_scheduled(self, mod: tvm.IRModule, processors: Sequence[Processor]) -> None:
        """What `build_model` makes of the kernels that the cache does not know."""
        if self.folder is None and self.processors is None:
            return
        scheduled = tvm.IRModule(dict(mod.functions), attrs=mod.attrs)
        for processor in processors:
            with processor.target:
                scheduled.update(processor.schedule(kernels_of(mod, processor.name)))
        self.see("scheduled", scheduled, partitioned=True)
