"""``compile()``: the way of a network through the house, front to back.

source --frontend--> canonical Relax --plan--> regions --each processor's phases--> kernels
       --lowering--> Model
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm
from tvm import relax

from tvm_stretch.frontend import load_network
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.passes.merge_regions import kernels_of, merge_regions
from tvm_stretch.passes.partition_regions import PROCESSOR, PartitionRegions
from tvm_stretch.passes.tag import TagOperators
from tvm_stretch.passes.verify import verify
from tvm_stretch.placement import choose_plan
from tvm_stretch.plan import PlanLike
from tvm_stretch.processors import TargetLike, make_processors
from tvm_stretch.runtime.build import build_model
from tvm_stretch.runtime.model import Model
from tvm_stretch.targets.processor import Processor


def compile(
    source: object,
    targets: Sequence[TargetLike] | TargetLike = ("llvm",),
    *,
    plan: PlanLike | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
    debug: bool = False,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule`` or
            ``torch.export.ExportedProgram``.
        targets: processors that may run operators, as TVM targets: strings, dicts, tags or
            ``tvm.target.Target``; or as ``Processor``.  Plain ``"llvm"`` means this machine's CPU
            with all its features, ``"opencl"`` its first OpenCL device.
        plan: which processor runs which operators: a ``Plan``, the path of its JSON file, or a
            dict.  By default everything runs on the first target that supports all of it.
        shapes: shapes of inputs whose dimensions the network leaves open.
        cpu_threads: cores that CPU kernels may use; by default those this process may run on,
            without the ones that belong to another processor's driver.
        dump_dir: folder that receives the IR after every phase, one numbered file each.
        debug: check the rules of the intermediate representation after every phase.

    Returns:
        A model that can be called, measured and exported.
    """
    processors, placeable = make_processors(targets, cpu_threads)
    observer = _Observer(dump_dir, processors if debug else None)
    mod = load_network(source, shapes)
    observer.see("canonical", mod)
    chosen = choose_plan(mod["main"], [p.name for p in processors], placeable, plan)
    mod = TagOperators(chosen)(mod)
    observer.see("TagOperators", mod)
    mod = PartitionRegions()(mod)
    observer.see("PartitionRegions", mod, partitioned=True)
    mod = BlockChannels({processor.name: processor.machine for processor in processors})(mod)
    observer.see("BlockChannels", mod, partitioned=True)
    parts = {p.name: _run_phases(p, _regions_of(mod, p), observer) for p in processors}
    mod = merge_regions(mod["main"], parts)
    observer.see("merged", mod, partitioned=True)
    for processor, kernels in [(p, kernels_of(mod, p.name)) for p in processors]:
        with processor.target:
            mod.update(processor.schedule(kernels))
    observer.see("scheduled", mod, partitioned=True)
    host, *devices = processors
    return build_model(mod, host.target, host.threads, devices=devices, plan=chosen)


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
