"""The floating-point types in which a network computes between its ends.

    "float32"            as in the network
    "float16"            float16, where it has the digits and the range
    "float16+float32"    float16 in memory; the sums of layers are float32

Channel blocks of float16 are twice as wide, and processors read each other's blocks, so either all
processors of a model change or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm_stretch.errors import InputError, TargetError
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.targets.processor import Processor

PRECISIONS = ("float32", "float16", "float16+float32")


_SHORT = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "single", "float"), "float32"),
}
"""Common other names of the types."""


def read_precision(precision: str) -> str:
    """The one of `PRECISIONS` that is meant: ``fp16`` or ``half`` is ``float16``.

    Raises:
        InputError: there is no such precision.
    """
    types = str(precision).lower().split("+")
    found = "+".join(_SHORT.get(name, name) for name in types)
    if found not in PRECISIONS:
        listed = ", ".join(map(repr, PRECISIONS))
        raise InputError(
            f"expected one of {listed} for precision, got {precision!r}; see ts.compile"
        )
    return found


def processors_in(
    precision: str, processors: Sequence[Processor], placeable: Sequence[Processor]
) -> tuple[list[Processor], list[Processor]]:
    """All processors, and those on which operators may be placed, adapted to a precision.

    Raises:
        TargetError: operators may be placed on a processor that does not compute in it.
    """
    if precision == PRECISIONS[0]:
        return list(processors), list(placeable)
    for processor in placeable:
        if not processor.computes_half:
            raise TargetError(
                f"expected processors that compute in float16 for precision={precision!r}, got "
                f"{processor.name} ({processor.target}); name an aarch64 core that has fullfp16, "
                "such as cortex-a76, or an OpenCL device that has cl_khr_fp16, or leave precision "
                "out"
            )
    found = {processor.name: _in_half(processor) for processor in processors}
    return [found[p.name] for p in processors], [found[p.name] for p in placeable]


def _in_half(processor: Processor) -> Processor:
    machine = replace(processor.machine, lanes=2 * processor.machine.lanes, half=True)
    return replace(processor, machine=machine, schedule=ScheduleKernels(machine))
