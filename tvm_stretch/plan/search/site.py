"""The place where a network will run: processors, their costs, and where plans are measured.

this machine           costs of ts.tune.measure, or typical ones     plans are measured here
a connected device     its own costs, or typical ones           plans are measured there
a device seen before   its own costs, or typical ones           nothing is measured
a profile              what the profile predicts                nothing is measured
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.pipeline import Job
from tvm_stretch.make.precision import BFLOAT, processors_in
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import Operators
from tvm_stretch.phone.device import Device, remembered
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.cost.verdicts import apply_verdicts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.costs import Costs, not_asked_for, planning_costs
from tvm_stretch.plan.search.twin import twin_costs, twin_processors
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import describe_targets, drop_absent
from tvm_stretch.targets.registry import TargetLike, kind_of, stand_ins

Targets: TypeAlias = Sequence[TargetLike] | TargetLike | None
DeviceLike: TypeAlias = Device | str | os.PathLike[str] | None
"""A connected device, the name of one that was connected before, or a profile; None: here."""


@dataclass(frozen=True)
class Site:
    """Processors of one device."""

    processors: Sequence[Processor]  # all processors of a model, the CPU first
    placeable: Sequence[Processor]  # the processors that operators may be placed on
    # takes a model to where it is measured; None if nothing can be measured
    take: Callable[[Model], Model] | None = None
    device: str = ""  # the device's name; empty for this machine
    # predicts what kernels cost; None if they were measured, or are typical
    profile: Profile | None = None
    note: str = ""  # for people: targets that were left out
    # identifies the processors of this machine; empty for other machines, and for a processor
    # that the user wrote, which may do anything
    identity: str = ""
    doubted: tuple[str, ...] = ()  # engines that computed something wrongly, once for each time

    def job(self, mod: tvm.IRModule, plan: Plan | None = None, **known: Any) -> Job:
        """The build of a network here."""
        return Job(mod, self.processors, self.placeable, plan, **known)

    @property
    def names(self) -> list[str]:
        """The processors' names."""
        return [processor.name for processor in self.processors]

    @property
    def places(self) -> list[int]:
        """The places of processors that operators may be placed on."""
        able = {processor.name for processor in self.placeable}
        return [place for place, name in enumerate(self.names) if name in able]

    @property
    def multiplies_integers(self) -> bool:
        """Whether all are CPUs with an instruction for products of 8-bit numbers."""
        return all(p.hardware.on_host_cores and bool(p.machine.dot) for p in self.placeable)

    def costs(
        self,
        # the network; a profile has other costs for values of 8 bits
        mod: tvm.IRModule | None = None,
        # the processors to place operators on; by default `placeable`
        left: Sequence[Processor] | None = None,
    ) -> Costs:
        """The costs of the processors."""
        able = self.placeable if left is None else left
        processors = [p if p in able else not_asked_for(p) for p in self.processors]
        shares = [processor.hardware.max_share for processor in self.processors]
        if self.profile is not None:
            value_bytes = 1 if mod is not None and _is_quantised(mod) else 4
            return twin_costs(self.profile, processors, value_bytes).with_pauses(shares)
        return planning_costs(processors).with_pauses(shares)

    def limited(self, shares: Mapping[int, float]) -> Site:
        """The site whose processors may be busy for a share of the time, by their places."""
        processors = [*self.processors]
        for place, share in shares.items():
            hardware = replace(processors[place].hardware, max_share=share)
            processors[place] = replace(processors[place], hardware=hardware)
        own = {processor.name: processor for processor in processors}
        placeable = [own[processor.name] for processor in self.placeable]
        return replace(self, processors=processors, placeable=placeable)

    def without(self, processor: Processor) -> Site:
        """The site as if it had no such processor."""
        return replace(
            self,
            processors=[p for p in self.processors if p is not processor],
            placeable=[p for p in self.placeable if p.name != processor.name],
        )

    def without_placing(self, name: str) -> Site:
        """The site that places nothing on a processor."""
        return replace(self, placeable=[p for p in self.placeable if p.name != name])

    def noted(self, note: str) -> Site:
        """The site with one more remark for people."""
        return replace(self, note="; ".join(filter(None, (self.note, note))))

    @property
    def without_float16(self) -> bool:
        """Whether a processor has no instructions for float16 arithmetic."""
        return not all(processor.arithmetic.half for processor in self.placeable)

    def in_precision(self, precision: str, quantised: bool, is_built: bool = True) -> Site:
        """The site with processors that compute a network in a precision, and a note about it.

        Args:
            precision: of a network without integers.
            quantised: whether the network has integers.
            is_built: whether the network is to run as it is; a plan alone is for its 8 bits.

        Raises:
            InputError: a profile predicts each processor in a precision of its own.
            TargetError: operators may be placed on a processor that does not compute in it.
        """
        if self.profile is not None and precision != "float32":
            raise InputError(
                "expected no precision for a device that is not here, got one; leave it out"
            )
        note, all_of_them, able = "", self.processors, self.placeable
        profile = self.profile
        if self.profile is not None:
            if quantised:
                names = [p.name for p in able]
                all_of_them, able = twin_processors(self.profile, names, quantised=True)
            precisions = {name: self.profile.processor(name).precision for name in self.names}
            own = [precisions[p.name] for p in able if p.arithmetic.prefers_half]
            if quantised and "float16" in own:
                precision = "float16"
            elif not quantised and is_built and self.profile.processor("cpu").float32_slowdown:
                profile = self.profile.in_floats()
            elif not quantised and "int8" in precisions.values():
                note = (
                    "the network is not quantised, but the profile predicts 8 bits: quantise it "
                    "(ts.quantize) to build what is predicted, and to see what is refused then"
                )
        processors, placeable = processors_in(precision, all_of_them, able, quantised=quantised)
        halves = [p.name for p in placeable if p.arithmetic.integers]
        if halves:
            note = f"integer operators are computed in {precision} on {', '.join(halves)}"
        if precision == BFLOAT:
            note = "dense layers and convolutions are computed in bfloat16, with float32 sums"
        note = "; ".join(filter(None, (self.note, note)))
        return replace(self, processors=processors, placeable=placeable, profile=profile, note=note)


def site_of(
    device: DeviceLike,  # the device; None for this machine
    targets: Targets,  # the wanted processors; by default all of the device, or this machine's CPU
    cpu_threads: int | None = None,  # the number of cores for CPU kernels
    *,
    may_drop: bool = False,  # whether targets whose device this machine lacks are left out
    # whether models are built; without, a profile's processors need no kernels of ours
    built: bool = True,
) -> Site:
    """The site that a caller's arguments name; processors refuse what failed in ``ts.tune.probe``.

    Raises:
        CostModelError: the device is neither known nor a profile.
        InputError: an argument has the wrong type.
        TargetError: a target is unknown, or the device does not have it.
    """
    remembered_device = remembered(device) if isinstance(device, str) else None
    if device is not None and remembered_device is None and not isinstance(device, Device):
        return _site_of_profile(device, targets, cpu_threads, built)
    place = device if isinstance(device, Device) else remembered_device
    note = ""
    if place is None and may_drop and targets is not None:
        targets, note = drop_absent(targets)
    processors, placeable = apply_verdicts(*processors_of(place, targets, cpu_threads))
    here = all(processor.hardware.runs_here for processor in placeable)
    take = place.load if isinstance(place, Device) else _here if here else None
    identity = describe_targets(targets) if here else ""
    note = note or _stand_ins(targets, [processor.name for processor in processors])
    return Site(
        processors, placeable, take, processors[0].hardware.device, note=note, identity=identity
    )


def _here(model: Model) -> Model:
    return model


def _site_of_profile(
    device: str | os.PathLike[str], targets: Targets, cpu_threads: int | None, built: bool
) -> Site:
    profile = load_profile(device)
    if cpu_threads is not None:
        raise InputError(
            f"expected no cpu_threads with a device, got {cpu_threads!r}; the profile of {device} "
            "says how many cores it uses"
        )
    names = [_there(profile, name) for name in _named_processors(profile, targets, built)]
    twins = twin_processors(profile, names, built=built)
    note = _stand_ins(targets, names)
    return Site(*twins, None, profile.device, profile, note)


def _there(profile: Profile, name: str) -> str:
    """The name of a device's processor; some kinds have another one's word where that is not."""
    names = [name, *(other for other in stand_ins(name) if other in profile.processors)]
    return name if name in profile.processors else names[-1]


def _stand_ins(targets: object, names: Sequence[str]) -> str:
    """Says which words of `targets` mean a processor of another name."""
    words = [targets] if isinstance(targets, str) else targets
    listed = words if isinstance(words, Sequence) else []
    plain = [word for word in listed if isinstance(word, str) and word not in names]
    pairs = [(word, other) for word in plain for other in stand_ins(word) if other in names]
    return "; ".join(f"{word} is the {other} of this device" for word, other in pairs)


def _named_processors(profile: Profile, targets: object, built: bool) -> list[str]:
    """The names that a user gave, one or several; a profile has all else about its processors."""
    if targets is None:
        kinds = {name: processor.target for name, processor in profile.processors.items()}
        if not built:
            return list(kinds)
        return [name for name, target in kinds.items() if target and kind_of(target).by_default]
    listed = [targets] if isinstance(targets, str) else targets
    if isinstance(listed, Sequence) and all(isinstance(item, str) for item in listed):
        return list(listed)
    raise InputError(
        f"expected names of processors for targets, got {targets!r}; a profile says the rest of "
        f"them: name some of {', '.join(profile.processors)}"
    )


def _is_quantised(mod: tvm.IRModule) -> bool:
    """Whether most of the network is computed in integers."""
    operators = [*Operators(mod["main"])]
    return 2 * sum(integer_of(op.call) is not None for op in operators) > len(operators)
