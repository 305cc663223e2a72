"""``compile()``: the way of a network through the house, front to back.

source --frontend--> canonical Relax --plan--> regions --each processor's phases--> kernels
       --lowering--> Model
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import tvm

from tvm_stretch.build.pipeline import Observer, build
from tvm_stretch.cost.verdicts import apply_verdicts
from tvm_stretch.frontend import load_network
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.progress import Progress, reporting, say
from tvm_stretch.runtime.model import Model
from tvm_stretch.search.contest import MeasureError
from tvm_stretch.search.decide import decide
from tvm_stretch.search.realise import Candidate
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import drop_absent, make_processors
from tvm_stretch.targets.registry import TargetLike


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
    progress: Progress | None = None,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path or bytes of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule``,
            ``torch.export.ExportedProgram`` or the path of a ``.pt2`` file of one.
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
            without the ones that belong to another processor's driver, and no more than the
            environment variable TVM_NUM_THREADS says.
        spare: the artifact also holds the other processors' kernels for the CPU, which runs the
            whole network again, and from then on, if one of them fails or is absent where the
            artifact is loaded; `Model.lost` then says why.
        dump_dir: folder that receives the IR after every phase, one numbered file each.
        debug: check the rules of the intermediate representation after every phase.
        progress: receives a line of text after every step, such as ``kernel 17 of 63``; by default
            they are shown on one line of the terminal, if there is one.

    Returns:
        A model that can be called, measured and exported.
    """
    with reporting(progress):
        return _compile(source, targets, plan, shapes, cpu_threads, spare, dump_dir, debug)


def _compile(
    source: object,
    targets: Sequence[TargetLike] | TargetLike,
    plan: PlanLike | None,
    shapes: Mapping[str, Sequence[int]] | None,
    cpu_threads: int | None,
    spare: bool,
    dump_dir: str | os.PathLike[str] | None,
    debug: bool,
) -> Model:
    absent = ""
    if plan is None:
        targets, absent = drop_absent(targets)
    processors, placeable = apply_verdicts(*make_processors(targets, cpu_threads))
    observer = Observer(dump_dir, processors if debug else None)
    say("reading the network")
    mod = load_network(source, shapes)
    observer.see("canonical", mod)
    if plan is not None or len(placeable) == 1:
        requested = None if plan is None else Plan.read(plan)
        model = build(mod, requested, processors, placeable, observer, spare=spare)
    else:
        model = _fastest(mod, processors, placeable, observer)
        if spare and len(model.graph.processors) > 1:  # not before: what is measured has to fail
            plan = model.plan
            model = build(mod, plan, processors, placeable, observer, spare=True)
            model = model.with_reason(plan.reason)
    return model.with_reason(_join(model.plan.reason, absent)) if absent else model


def _fastest(
    mod: tvm.IRModule,
    processors: Sequence[Processor],
    placeable: Sequence[Processor],
    observer: Observer,
) -> Model:
    """The winner of `decide`; if a device fails meanwhile, what the CPU makes of the network."""

    def built(network: tvm.IRModule, candidate: Candidate) -> Model:
        say(f"building {candidate.what}")
        lowered = None if candidate.level is None else candidate.level.mod
        seen = observer if network is mod else None
        return build(
            network, candidate.plan, processors, placeable, seen, candidate.branched, lowered
        )

    try:
        return decide(mod, processors, placeable, built)
    except MeasureError as error:
        left = [processor for processor in placeable if processor.is_host]
        if not left:
            raise
        model = build(mod, None, left, left, observer)
        return model.with_reason(f"cpu alone: measuring the others failed: {error}")


def _join(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))
