"""In which numbers a network computes between its ends.

    "float32"            as the network says
    "float16"            float16, where it has the digits and the range
    "float16+float32"    so in memory; the sums of layers are float32

The channel blocks of float16 are twice as wide. So all processors of a model change, or none: they
read each other's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from tvm_stretch.errors import InputError, TargetError, UnsupportedError
from tvm_stretch.passes.integer_summary import has_integers
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.passes.use_half import UseHalf, describe_halves
from tvm_stretch.targets.processor import Processor

PRECISIONS = ("float32", "float16", "float16+float32")


_SHORT = {
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "single", "float"), "float32"),
}
"""Other names that people know for the types."""


def read_precision(precision: str) -> str:
    """The one of `PRECISIONS` that is meant: ``fp16`` or ``half`` is ``float16``.

    Raises:
        InputError: there is no such one.
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
    """The processors, and those of them that operators may be placed on, for such numbers.

    Raises:
        TargetError: an operator may be placed on one that does not compute with them.
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


def network_in(precision: str, mod: tvm.IRModule) -> tuple[tvm.IRModule, str]:
    """The canonical module in such numbers, and what there is to say of it.

    Raises:
        UnsupportedError: it computes in integers.
    """
    if precision == PRECISIONS[0]:
        return mod, ""
    if has_integers(mod["main"]):
        raise UnsupportedError(
            f"expected a network of floats for precision={precision!r}, got one that was "
            "quantised; compile it without precision, or the network that it was made of"
        )
    use_half: tvm.transform.Pass = UseHalf(wide_sums=precision == PRECISIONS[2])
    mod = use_half(mod)
    return mod, describe_halves(mod["main"])
