"""Processors and costs of a phone that is not here, from its profile: a digital twin.

    processors, placeable = twin_processors(load_profile("snapdragon-855"), ["cpu", "hexagon"])
    search(mod, twin_costs(profile, processors))

The kernels are those that we would make for its targets. Their times are those of the profile for
such work in the precision of each processor; nothing was measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import tvm

from tvm_stretch.base.errors import InputError, TargetError
from tvm_stretch.make.kernels import kernels_alone
from tvm_stretch.plan.cost.profile import ProcessorProfile, Profile
from tvm_stretch.plan.search.costs import Costs, not_asked_for
from tvm_stretch.targets.kernels.features import Work
from tvm_stretch.targets.processor import Build, Check, OpRule, Processor
from tvm_stretch.targets.processors import make_processors
from tvm_stretch.targets.registry import kind_of

_HOST = "llvm"


def twin_processors(
    profile: Profile, wanted: Sequence[str], *, built: bool = False, quantised: bool = False
) -> tuple[list[Processor], list[Processor]]:
    """Processors of a device.

    Args:
        wanted: names of those that operators may be placed on; ``llvm`` is the CPU.
        built: kernels are made for them. Without, a DSP takes networks of floats too: the profile
            predicts what they take when they are quantised.
        quantised: the network has integers, so processors refuse what a compile would meet.

    Returns:
        All processors of a model: the CPU, which holds inputs and outputs, and the others. Then
        those that operators may be placed on.

    Raises:
        CostModelError: the device has no such processor.
        InputError: none is named, or one twice.
    """
    names = ["cpu" if name == _HOST else name for name in wanted]
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"expected different processors of {profile.device} for targets, got {list(wanted)}; "
            f"name some of {', '.join(profile.processors)}"
        )
    host = _made(profile.processor("cpu"), None, built, quantised)
    wanted = [name for name in names if name != "cpu"]
    others = [_made(profile.processor(name), host, built, quantised) for name in wanted]
    processors = [host if "cpu" in names else not_asked_for(host), *others]
    return processors, [p for p in processors if p.name in names]


def twin_costs(profile: Profile, processors: Sequence[Processor], value_bytes: int = 4) -> Costs:
    """The costs of these processors by the profile.

    Args:
        value_bytes: bytes of the network's values.

    Raises:
        CostModelError: the device has no such processor.
    """
    processors_of_device = profile.crowded([processor.name for processor in processors])
    names = [processor.name for processor in processors_of_device]
    precisions = ", ".join(f"{p.precision} on {p.name}" for p in processors_of_device)
    return Costs(
        processors=tuple(processors),
        models={processor.name: processor for processor in processors_of_device},
        hand_over=lambda writer, reader, size: profile.hand_over(
            names[writer], names[reader], size, value_bytes
        ),
        together=(profile.together,) * len(names),
        regions=tuple(round(1e3 * processor.region_us) for processor in processors_of_device),
        source=f"the profile of {profile.device} ({precisions}); nothing was measured here",
        trusted=False,
        power=profile.power(names),
    )


def works_of(mod: tvm.IRModule, processor: Processor) -> dict[str, list[Work]]:
    """The work of the kernels of each group of a canonical module, on one processor alone."""
    level = kernels_alone(mod, processor)
    return {
        name: [kernel.features.device_work() for kernel in kernels]
        for name, kernels in level.kernels.items()
    }


def _made(
    profile: ProcessorProfile, host: Processor | None, built: bool, quantised: bool
) -> Processor:
    """A processor of the device; for planning alone where the profile names no target."""
    target = profile.target
    if target is not None and (built or _is_real(target, quantised)):
        # its kernels' blocks of channels are as wide as the CPU's
        beside = [] if host is None else [host]
        processor = make_processors([*beside, dict(target)], profile.threads)[1][-1]
    else:
        assert host is not None  # a profile's CPU has a target
        code = replace(host.code, build=_unbuilt(profile.name))
        processor = replace(host, kind=profile.name, code=code)
    refusals = tuple(
        OpRule(f"relax.{op}", check=_refusal(op, reason)) for op, reason in profile.refuses.items()
    )
    operators = replace(processor.operators, rules=(*refusals, *processor.operators.rules))
    hardware = replace(processor.hardware, runs_here=False)
    return replace(processor, name=profile.name, operators=operators, hardware=hardware)


def _is_real(target: Mapping[str, Any], quantised: bool) -> bool:
    """Whether plans are predicted for the processor that would run them."""
    kind = kind_of(target)
    return kind.by_default or (quantised and not kind.why_absent(target))


def _refusal(op: str, reason: str) -> Check:
    return lambda _call: f"{op}: {reason}"


def _unbuilt(name: str) -> Build:
    def build(*_: object) -> tvm.runtime.Module:
        raise TargetError(
            f"expected a processor with a target in its profile, got {name}, which this version "
            "makes no kernels for; leave it out, or ask for the plan alone (ts.plan_for)"
        )

    return cast(Build, build)
