"""``compile()``: the way of a network through the house, front to back.

source --frontend--> canonical Relax --processor's phases--> kernels --lowering--> Model
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.target import Target

from tvm_stretch.errors import InputError, TargetError, UnsupportedError
from tvm_stretch.frontend import load_network
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.runtime.build import build_model
from tvm_stretch.runtime.model import Model
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor

TargetLike: TypeAlias = str | Mapping[str, Any] | Target


def compile(
    source: object,
    targets: Sequence[TargetLike] | TargetLike = ("llvm",),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule`` or
            ``torch.export.ExportedProgram``.
        targets: TVM targets: strings, dicts, tags or ``tvm.target.Target``.  Plain ``"llvm"`` means
            this machine's CPU with all its features.
        shapes: shapes of inputs whose dimensions the network leaves open.
        cpu_threads: cores that CPU kernels may use; by default those this process may run on.
        dump_dir: folder that receives the IR after every phase, one numbered file each.

    Returns:
        A model that can be called, measured and exported.
    """
    processor = _processor(targets, _thread_count(cpu_threads))
    dump = _Dump(dump_dir)
    mod = load_network(source, shapes)
    dump.write("canonical", mod)
    _check_support(mod, processor)
    layout = BlockChannels({processor.name: processor.machine})
    with processor.target:
        for phase in (layout, *processor.phases, processor.schedule):
            mod = phase(mod)
            dump.write(str(phase.info.name), mod)
    return build_model(mod, processor.target, processor.threads)


def _thread_count(requested: int | None) -> int:
    available = len(os.sched_getaffinity(0))
    if requested is None:
        return available
    if not isinstance(requested, int) or requested < 1:
        raise InputError(
            f"expected a positive number for cpu_threads, got {requested!r}; "
            f"this process may use {available} cores"
        )
    return requested


def _processor(targets: Sequence[TargetLike] | TargetLike, threads: int) -> Processor:
    """The processor of a list of one target."""
    listed = [targets] if isinstance(targets, str | Mapping | Target) else list(targets)
    if len(listed) != 1:
        raise TargetError(
            f"expected one target, got {len(listed)}: {listed}; "
            "this version runs a network on one processor"
        )
    try:
        target = Target(listed[0])
    except (ValueError, TypeError, RuntimeError) as error:
        raise TargetError(
            f"expected a TVM target for targets, got {listed[0]!r}; "
            f"use a kind such as 'llvm', a dict, a tag or a Target ({_first_line(error)})"
        ) from error
    if target.kind.name != "llvm":
        raise TargetError(
            f"expected target llvm, got {target.kind.name!r}; other processors come later"
        )
    return cpu_processor(target, threads)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _check_support(mod: tvm.IRModule, processor: Processor) -> None:
    """Refuse, with every reason at once, what the processor cannot run."""
    reasons: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call):
            reason = processor.why_not(expr)
            if reason is not None and reason not in reasons:
                reasons.append(reason)

    relax.analysis.post_order_visit(mod["main"], visit)
    if reasons:
        raise UnsupportedError(
            f"expected operators that {processor.name} supports, got others: {'; '.join(reasons)}; "
            "replace them in the network"
        )


class _Dump:
    """Writes the IR of each phase to its own numbered file."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.count = 0
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, mod: tvm.IRModule) -> None:
        """Write ``NN-name.py``."""
        if self.folder is not None:
            (self.folder / f"{self.count:02}-{name}.py").write_text(mod.script(), encoding="utf-8")
            self.count += 1
