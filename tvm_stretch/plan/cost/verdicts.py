"""Results of ``ts.tune.probe()`` for a processor, and how ``compile()`` uses them.

    opencl.probe.json   "nn.relu tensor:float32[1,16n,n,n] in NCHW8c": "result: differs from ..."
        -> the processor's table refuses every such operator, with the reason "probe: ..."

The file lies next to the models of ``ts.tune.measure``: in a cache folder that is named
after the device. A file that is damaged, of another version or from another device is an error and
not silently skipped.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.formats import Format
from tvm_stretch.network.expressions import tensor_types
from tvm_stretch.plan.cost.fingerprint import check_device, default_folder, fingerprint
from tvm_stretch.plan.cost.tuned import Tuned, tuned_path
from tvm_stretch.targets.processor import OpRule, Processor

FORMAT = Format(
    "tvm_stretch.api.tune.probe",
    2,
    "the verdicts of ts.tune.probe",
    CostModelError,
    "delete the file and probe again",
    is_sealed=True,
)
PLAIN = "plain"
"""The layout of operators in the network."""


def blocked_layout(processor: Processor) -> str:
    """The name of the layout with blocked channels."""
    return f"NCHW{processor.machine.lanes}c"


@dataclass(frozen=True)
class Verdicts:
    """Which operators a processor runs correctly.

    Attributes:
        device: on which that was probed.
        reasons: by class and layout of operators, why the processor does not run them; an empty
            text if it does.
    """

    device: dict[str, object]
    reasons: dict[str, str]

    @property
    def refused(self) -> dict[str, str]:
        """The classes that do not run, and why."""
        return {key: reason for key, reason in self.reasons.items() if reason}

    def apply(self, processor: Processor) -> Processor:
        """The processor, refusing operators that failed in one of the layouts they may run in."""
        layouts = (PLAIN, blocked_layout(processor))

        def check(call: relax.Call) -> str | None:
            kind = operator_class(call)
            for layout in layouts:
                reason = self.reasons.get(in_layout(kind, layout))
                if reason:
                    return f"probe: {reason} ({layout})"
            return processor.why_not(call)

        kinds = sorted({key.split()[0] for key in self.refused})
        rules = tuple(OpRule(f"relax.{kind}", check=check) for kind in kinds)
        operators = replace(processor.operators, rules=(*rules, *processor.operators.rules))
        return replace(processor, operators=operators)

    def write(self, path: Path) -> None:
        """Write the file; it appears complete or not at all."""
        reasons = dict(sorted(self.reasons.items()))
        FORMAT.write(path, {"device": self.device, "reasons": reasons}, indent=1)

    @staticmethod
    def read(path: Path, device: Mapping[str, object]) -> Verdicts:
        """The verdicts in a file; none if there is no file."""
        if not os.access(path, os.F_OK):  # true as well for a folder that is not readable
            return Verdicts(dict(device), {})
        verdicts = FORMAT.build(Verdicts, FORMAT.read(path), f"{FORMAT.what} in {path}")
        check_device(verdicts.device, device, str(path))
        return verdicts


def verdicts_path(folder: Path, processor: Processor) -> Path:
    """The file of the verdicts on a processor."""
    return folder / f"{processor.name}.probe.json"


def apply_verdicts(
    processors: Sequence[Processor],  # all processors of a model, the CPU first
    placeable: Sequence[Processor],  # those on which operators may be placed
) -> tuple[list[Processor], list[Processor]]:
    """The same processors, refusing operators that failed in ``ts.tune.probe``.

    Their kernels for GPUs have the configurations that ``ts.tune.measure`` found to be the fastest.

    Raises:
        CostModelError: a file of verdicts is damaged, of another version or from another device.
    """
    folder = default_folder(processors[0])
    if folder is None:
        return list(processors), list(placeable)

    def careful(processor: Processor) -> Processor:
        if not (processor.hardware.runs_here or processor.hardware.device):
            return processor
        verdicts = Verdicts.read(verdicts_path(folder, processor), fingerprint(processor))
        processor = Tuned.read(tuned_path(folder, processor), processor).apply(processor)
        return verdicts.apply(processor) if verdicts.refused else processor

    by_name = {processor.name: careful(processor) for processor in processors}
    return [by_name[p.name] for p in processors], [by_name[p.name] for p in placeable]


# --- classes of operators -------------------------------------------------------------------------


def in_layout(operators: str, layout: str) -> str:
    """The name of a class of operators in one layout."""
    return f"{operators} in {layout}"


def operator_class(call: relax.Call) -> str:
    """A key of everything that decides whether an operator runs, except exact sizes and layout.

    Of a size it contains whether it is 1 and whether it fills vectors of 4, 8 or 16.
    """
    kind = call.op.name.removeprefix("relax.") if isinstance(call.op, tvm.ir.Op) else "call"
    words = [kind]
    for argument in call.args:
        if isinstance(argument, tvm.ir.GlobalVar):
            words.append(argument.name_hint.rstrip("0123456789"))
            continue
        held = "const" if isinstance(argument, GenericConst) else "tensor"
        for ty in tensor_types(argument):
            if ty.shape is not None:
                sizes = ",".join(_size_class(int(size)) for size in ty.shape.values)
                words.append(f"{held}:{ty.dtype}[{sizes}]")
    words.append(_attributes(call))
    return " ".join(words).strip()


def _size_class(size: int) -> str:
    if size == 1:
        return "1"
    return next((f"{n}n" for n in (16, 8, 4) if size % n == 0), "n")


def _attributes(call: relax.Call) -> str:
    """Attributes as text; numbers of groups as one, some, or one for each channel (all)."""
    if call.attrs is None:
        return ""
    lines = []
    for field in type(call.attrs).__tvm_ffi_type_info__.fields:
        name, value = field.name, getattr(call.attrs, field.name)
        if name == "groups":
            channels = int(call.args[0].ty.shape.values[1])
            value = {1: "one", channels: "all"}.get(int(value), "some")
        lines.append(f"{name}={str(value).replace(' ', '')}")
    return " ".join(lines)
