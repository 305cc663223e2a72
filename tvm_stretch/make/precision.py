"""The floating-point types in which a network computes between its ends.

    "float32"            as in the network
    "float16"            float16, where it has the digits and the range
    "float16+float32"    float16 in memory; the sums of layers are float32
    "bfloat16"           layers in bfloat16, with float32 sums; float32 in memory

Channel blocks of float16 are twice as wide, and processors read each other's blocks, so either all
processors of a network of floats change or none. A quantised network stays in integers on CPUs and
DSPs, and is computed in float16 on GPUs, which have no fast integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm

from tvm_stretch.base.errors import InputError, TargetError
from tvm_stretch.network.codec import target_data
from tvm_stretch.passes.schedule_kernels import ScheduleKernels
from tvm_stretch.targets.cpu.cpu import TILES
from tvm_stretch.targets.processor import Processor

WIDE_SUMS = "float16+float32"
BFLOAT = "bfloat16"
PRECISIONS = ("float32", "float16", WIDE_SUMS, BFLOAT)


_SHORT = {
    **dict.fromkeys(("bf16", "bfloat"), BFLOAT),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "single", "float"), "float32"),
}
"""Common other names of the types."""


def read_precision(precision: str) -> str:
    """The one of `PRECISIONS` that is meant: ``fp16`` or ``half`` is ``float16``."""
    types = str(precision).lower().split("+")
    full_name = "+".join(_SHORT.get(name, name) for name in types)
    if full_name not in PRECISIONS:
        listed = ", ".join(map(repr, PRECISIONS))
        raise InputError(
            f"expected one of {listed} for precision, got {precision!r}; see ts.compile"
        )
    return full_name


def processors_in(
    precision: str,
    processors: Sequence[Processor],
    placeable: Sequence[Processor],
    *,
    quantised: bool = False,
) -> tuple[list[Processor], list[Processor]]:
    """All processors, and those on which operators may be placed, adapted to a precision.

    Processors of a quantised network keep their integers, unless float16 is faster on them.
    """
    if precision == PRECISIONS[0]:
        return list(processors), list(placeable)
    if precision == BFLOAT:
        return _in_bfloat(processors, placeable)
    unable = [p for p in placeable if not p.arithmetic.half]
    if quantised and not any(p.arithmetic.prefers_half for p in placeable):
        raise TargetError(
            f"expected a processor that is faster in float16 than in integers for "
            f"precision={precision!r} of a quantised network, got "
            f"{', '.join(p.name for p in placeable)}; add a GPU that has cl_khr_fp16, or leave "
            "precision out"
        )
    if unable and not quantised:
        raise TargetError(
            f"expected processors that compute in float16 for precision={precision!r}, got "
            f"{unable[0].name} ({unable[0].target}); name an aarch64 core that has fullfp16, such "
            "as cortex-a76, or an OpenCL device that has cl_khr_fp16, or leave precision out"
        )
    in_half = {p.name: _in_half(p, precision, quantised) for p in processors}
    return [in_half[p.name] for p in processors], [in_half[p.name] for p in placeable]


def _in_half(processor: Processor, precision: str, quantised: bool) -> Processor:
    if quantised and not processor.arithmetic.prefers_half:
        return processor
    machine = replace(processor.machine, lanes=2 * processor.machine.lanes, half=True)
    integers = precision if quantised else ""
    code = replace(processor.code, schedule=ScheduleKernels(machine))
    arithmetic = replace(processor.arithmetic, integers=integers)
    return replace(processor, machine=machine, code=code, arithmetic=arithmetic)


def _in_bfloat(
    processors: Sequence[Processor], placeable: Sequence[Processor]
) -> tuple[list[Processor], list[Processor]]:
    """The same with layers in bfloat16, for which artifacts require tile registers."""
    for unable in (p for p in placeable if not p.arithmetic.bfloat):
        raise TargetError(
            f"expected processors that multiply in bfloat16 for precision={BFLOAT!r}, got "
            f"{unable.name} ({unable.target}); name an x86-64 core that has AMX, such as "
            "sapphirerapids, or leave precision out"
        )
    in_bfloat = {}
    for p in processors:
        machine = replace(p.machine, bfloat=p.arithmetic.bfloat)
        code = replace(p.code, schedule=ScheduleKernels(machine))
        own = replace(p, machine=machine, code=code, target=_asked(p.target))
        in_bfloat[p.name] = own if p.arithmetic.bfloat else p
    return [in_bfloat[p.name] for p in processors], [in_bfloat[p.name] for p in placeable]


def _asked(target: tvm.target.Target) -> tvm.target.Target:
    """The target, with the tile registers that it has named."""
    data = target_data(target)
    named = [*data.get("mattr", ()), *(f"+{feature}" for feature in TILES)]
    return tvm.target.Target({**data, "mattr": list(dict.fromkeys(named))})
