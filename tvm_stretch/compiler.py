"""``compile()``: from a trained network to a model.

source --frontend--> canonical Relax --plan--> regions --each processor's phases--> kernels
       --lowering--> Model
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import tvm

from tvm_stretch.analysis.integer_summary import describe_integers
from tvm_stretch.arguments import named_arguments
from tvm_stretch.build.branching import Branching as Branches
from tvm_stretch.build.pipeline import Observer, build
from tvm_stretch.build.placement import fit_processors
from tvm_stretch.build.precision import network_in, processors_in, read_precision
from tvm_stretch.compiling import compiling
from tvm_stretch.cost.profile import Profile
from tvm_stretch.cost.profile_file import load_profile
from tvm_stretch.cost.verdicts import apply_verdicts
from tvm_stretch.errors import (
    DeviceError,
    InputError,
    StretchError,
    UnsupportedError,
    last_line,
)
from tvm_stretch.frontend import load_network, load_trainable, require_file
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.progress import Progress, reporting, say
from tvm_stretch.remote.description import Description
from tvm_stretch.remote.device import Device
from tvm_stretch.remote.processors import place_of, processors_of
from tvm_stretch.runtime.model import Model
from tvm_stretch.scheduling import Scheduler
from tvm_stretch.search.alternatives import (
    PlansLike,
    expected_seconds,
    read_plans,
    without_each,
)
from tvm_stretch.search.contest import MeasureError, trace
from tvm_stretch.search.costs import Costs, not_asked_for, planning_costs
from tvm_stretch.search.decide import Arena, arena_for, decide
from tvm_stretch.search.limits import NO_LIMITS, Limits, read_limits, refuse_limits
from tvm_stretch.search.realise import Candidate
from tvm_stretch.search.remembered import memory_of
from tvm_stretch.search.twin import (
    best_candidate,
    named_processors,
    refuse_threads_of,
    twin_costs,
    twin_processors,
    used_by_default,
)
from tvm_stretch.stretching.design_rules import Rules
from tvm_stretch.stretching.stretching import stretch_network
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import describe_targets, drop_absent
from tvm_stretch.targets.registry import TargetLike

Branching = Literal["exact", "stretch"]


@named_arguments
def compile(
    source: object,
    targets: Sequence[TargetLike] | TargetLike | None = None,
    *,
    device: Device | str | os.PathLike[str] | None = None,
    plan: PlanLike | None = None,
    plans: PlansLike | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    cpu_threads: int | None = None,
    branching: Branching = "exact",
    spare: bool = False,
    max_share: Mapping[str, float] | None = None,
    share_parts: int | None = None,
    precision: str = "float32",
    scheduler: Scheduler | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
    debug: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Compile a trained network for the given processors, without changing what it computes.

    Args:
        source: path or bytes of an ONNX file, ``onnx.ModelProto``, Relax ``IRModule``,
            ``torch.export.ExportedProgram`` or the path of a ``.pt2`` file of one.
        targets: processors that may run operators, as TVM targets: strings, dicts, tags or
            ``tvm.target.Target``; or as ``Processor``.  Plain ``"llvm"``, the default, means this
            machine's CPU with all its features, ``"opencl"`` its first OpenCL device. Operators
            that failed in ``ts.probe`` on a processor are refused there, and the plan says so.
        device: a device of ``ts.connect``: the network is compiled for its processors, all or those
            in `targets`, and plans are measured there. Or the name of a device that was connected
            before: plans are chosen by its cost models of ``ts.measure``, without measuring. Or the
            name of a phone with a profile, such as ``snapdragon-855``, or the path of a profile:
            plans are chosen by its predictions. Models can be exported, and loaded by the device
            (``Device.load``).
        plan: which processor runs which operators: a ``Plan``, the path of its JSON file, or a
            dict.  By default the fastest plan that the search proposes, measured here; it uses
            several processors only if they are faster than one. Targets whose device this machine
            lacks are then left out, and the plan says so.
        plans: makes a model with several plans, which can switch to the one that is fastest at
            present; see ``Model.adapt``. Either plans by name, or True for ``plan`` (or the fastest
            plan) and a plan without each of the processors. The plans share their weights.
        shapes: shapes of inputs whose dimensions the network leaves open.
        cpu_threads: the number of cores for CPU kernels; by default the cores that this process may
            use, without those of another processor's driver, and at most the environment variable
            TVM_NUM_THREADS.
        branching: ``"exact"`` computes what the network computes; ``"stretch"`` compiles the best
            design of ``ts.stretch`` instead, an architecture with untrained weights, which is only
            good for measuring latency. A network that cannot be stretched is compiled unchanged.
        spare: whether the artifact also has CPU kernels for all operators. If another processor
            fails, or is absent when the artifact is loaded, the CPU runs the whole network again
            and all later runs; `Model.lost` says why.
        max_share: the largest share of the network's multiply-adds that a processor may compute, by
            name: ``{"opencl": 0.7}``. Operators that no other processor supports are not counted.
        share_parts: the denominator of shares of layers and segments: 8 for whole eighths. By
            default shares are as fine as kernels allow.
        precision: ``"float16"`` computes in float16 between the network's inputs and outputs, on
            processors that support it; operators that need more precision stay in float32, and the
            plan names them. ``"float16+float32"`` accumulates the sums of layers in float32.
        scheduler: schedules segments whose operators may run at the same time: a function that
            takes a ``scheduling.Problem`` and returns a ``scheduling.Result``, which is checked.
            By default ``scheduling.schedule_heft``; what it answers competes with other options.
        dump_dir: folder that receives the IR after every phase, one numbered file each.
        debug: check the rules of the intermediate representation after every phase.
        progress: receives a line of text after every step, such as ``kernel 17 of 63``; by default
            a terminal shows the last line.

    Returns:
        A model that can be called, measured and exported.
    """
    require_file(source)
    named = read_plans(plans)
    if named is not None:
        if plan is not None:
            raise InputError(
                "expected no plan beside plans by name, got one; name it in plans, as the first"
            )
        plan = next(iter(named.values()))
    if plan is not None:
        refuse_limits(max_share, share_parts, "where plans are given")
    _check_scheduler(scheduler, plan)
    _check_branching(branching, plan)
    precision = read_precision(precision)
    with reporting(progress), compiling():
        place = place_of(device)
        if isinstance(place, Profile):
            refuse_threads_of(device, cpu_threads)
            phone = _Phone(place, targets)
            if plans or precision != "float32":
                raise InputError(
                    "expected neither plans nor a precision for a device that is not here, got "
                    "one; leave them out"
                )
            known = phone.processors, phone.placeable
            phone.limits = _with(scheduler, read_limits(max_share, share_parts, *known))
            return _compile_for(phone, source, plan, shapes, branching, spare, dump_dir, debug)
        machine = _machine_of(place, targets, cpu_threads, plan is None)
        known = processors_in(precision, machine.processors, machine.placeable)
        limits = _with(scheduler, read_limits(max_share, share_parts, *known))
        machine = replace(
            machine, processors=known[0], placeable=known[1], precision=precision, limits=limits
        )
        if scheduler is not None:  # what it answers may be another plan every time
            machine = replace(machine, described="")
        several = named if named is not None else bool(plans)
        return _compile(source, machine, plan, several, shapes, branching, spare, dump_dir, debug)


@dataclass(frozen=True)
class _Machine:
    """The processors that a network is compiled for.

    Attributes:
        processors: all processors, the CPU first.
        placeable: the processors that operators may be placed on.
        arena: where plans are measured; None for this machine, or nowhere.
        said: a note for the plan's reason.
        limits: limits of the processors' shares.
        precision: the precision of computation.
        described: a text that identifies these processors of this machine; empty for other
            machines, and for a processor that the user wrote, which may do anything.
    """

    processors: Sequence[Processor]
    placeable: Sequence[Processor]
    arena: Arena | None = None
    said: str = ""
    limits: Limits = NO_LIMITS
    precision: str = "float32"
    described: str = ""


def _machine_of(
    place: Device | Description | None,
    targets: Sequence[TargetLike] | TargetLike | None,
    cpu_threads: int | None,
    may_drop: bool,
) -> _Machine:
    """A machine whose processors refuse operators that failed in ``ts.probe``.

    Args:
        place: the device; None for this machine.
        targets: the wanted processors.
        cpu_threads: the number of cores for CPU kernels.
        may_drop: whether targets whose device this machine lacks are left out.
    """
    said = ""
    if place is None and may_drop and targets is not None:
        targets, said = drop_absent(targets)
    found = processors_of(place, targets, cpu_threads)
    arena = place.load if isinstance(place, Device) else None
    described = describe_targets(targets) if all(p.runs_here for p in found[1]) else ""
    return _Machine(*apply_verdicts(*found), arena, said, described=described)


def _check_branching(branching: str, plan: PlanLike | None) -> None:
    if branching not in ("exact", "stretch"):
        raise InputError(
            f"expected 'exact' or 'stretch' for branching, got {branching!r}; see ts.compile"
        )
    if branching == "stretch" and plan is not None:
        raise InputError(
            "expected no plan with branching='stretch', got one; compile the module of ts.stretch "
            "with a plan for it"
        )


def _check_scheduler(scheduler: object, plan: PlanLike | None) -> None:
    if scheduler is not None and not callable(scheduler):
        raise InputError(
            f"expected a function from Problem to Result for scheduler, got {scheduler!r:.100}; "
            "see tutorials/03_writing_a_scheduler.py"
        )
    if scheduler is not None and plan is not None:
        raise InputError(
            "expected no scheduler where a plan is given, got both; leave one of them out"
        )


def _with(scheduler: Scheduler | None, limits: Limits) -> Limits:
    return limits if scheduler is None else replace(limits, scheduler=scheduler)


def _network(
    source: object,
    shapes: Mapping[str, Sequence[int]] | None,
    branching: str,
    placeable: Sequence[Processor],
    costs: Callable[[], Costs],
) -> tuple[tvm.IRModule, str]:
    """The network or the best design of its stretching, canonical; and a note for the plan."""
    say("reading the network")
    if branching == "exact":
        mod = load_network(source, shapes)
        return mod, describe_integers(mod["main"])
    known, names = costs(), [processor.name for processor in placeable]
    places = [i for i, processor in enumerate(known.processors) if processor.name in names]
    try:
        found = stretch_network(load_trainable(source, shapes), known, places, Rules())
        best = found.best
    except UnsupportedError as error:
        return load_network(source, shapes), f"not stretched: {error}"
    warnings.warn(
        "branching='stretch' compiles another architecture, whose weights were not trained: its "
        "answers mean nothing yet. Train the module of ts.stretch(...) and compile that",
        stacklevel=5,
    )
    return load_network(found.module()), f"stretched, weights not trained: {best.design}"


@named_arguments
def predict(
    source: object,
    targets: Sequence[TargetLike] | TargetLike | None = None,
    *,
    device: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Predict the fastest plan for a phone that is not connected.

    Args:
        source: as for `compile`.
        targets: the processors that may run operators, for example ``["llvm", "hexagon"]``; by
            default all, including processors without kernels yet.
        device: the phone's name, or the path of its profile.
        shapes: as for `compile`.
        progress: as for `compile`.

    Returns:
        A plan whose regions have predicted times.
    """
    with reporting(progress), compiling():
        phone = _Phone(load_profile(device), targets, unbuilt=True)
        say("reading the network")
        return phone.plan(load_network(source, shapes))[0]


class _Phone:
    """A device that is not connected, with the processors that may run operators."""

    def __init__(
        self,
        profile: Profile,
        targets: Sequence[TargetLike] | TargetLike | None,
        unbuilt: bool = False,
    ) -> None:
        self.profile = profile
        self.limits = NO_LIMITS
        names = list(profile.processors) if unbuilt else used_by_default(profile)
        if targets is not None:
            names = named_processors(profile, targets)
        self.processors, self.placeable = twin_processors(profile, names, built=not unbuilt)

    def plan(self, mod: tvm.IRModule) -> tuple[Plan, Branches | None]:
        """The predicted plan, and its branches if they are known.

        The search is heuristic: with three processors it may miss a plan that it finds with two, so
        it also tries to leave out each processor.
        """
        say("searching for plans")
        candidate, branched = self._best(mod, self.processors), None
        if len(self.processors) > 2 and self.limits == NO_LIMITS:
            for left_out in self.processors[1:]:
                fewer = [p for p in self.processors if p is not left_out]
                with suppress(UnsupportedError):
                    other = self._best(mod, fewer)
                    candidate = min(candidate, other, key=lambda found: found.ns)
        names = [processor.name for processor in self.processors]
        plan = fit_processors(candidate.plan, names, self.placeable)
        if plan.processors == candidate.plan.processors:
            branched = candidate.branched
        reason = f"{candidate.what}; predicted for {self.profile.device}, not measured"
        return replace(plan, reason=_join(reason, self.limits.said)), branched

    def _best(self, mod: tvm.IRModule, processors: Sequence[Processor]) -> Candidate:
        return best_candidate(mod, twin_costs(self.profile, processors, mod), self.limits)


def _compile_for(
    phone: _Phone,
    source: object,
    plan: PlanLike | None,
    shapes: Mapping[str, Sequence[int]] | None,
    branching: str,
    spare: bool,
    dump_dir: str | os.PathLike[str] | None,
    debug: bool,
) -> Model:
    """A model for a phone, with the given plan or the one that is predicted to be fastest."""
    observer = Observer(dump_dir, phone.processors if debug else None)
    costs = partial(twin_costs, phone.profile, phone.processors)
    mod, said = _network(source, shapes, branching, phone.placeable, costs)
    observer.see("canonical", mod)
    if plan is not None:
        chosen, branched = Plan.read(plan), None
    else:
        chosen, branched = phone.plan(mod)
    model = build(mod, chosen, phone.processors, phone.placeable, observer, branched, spare=spare)
    return model.with_reason(_join(chosen.reason, said))


def _compile(
    source: object,
    machine: _Machine,
    plan: PlanLike | None,
    plans: Mapping[str, Plan] | bool,
    shapes: Mapping[str, Sequence[int]] | None,
    branching: str,
    spare: bool,
    dump_dir: str | os.PathLike[str] | None,
    debug: bool,
) -> Model:
    processors, placeable = machine.processors, machine.placeable
    observer = Observer(dump_dir, processors if debug else None)
    costs = partial(planning_costs, processors)
    mod, said = _network(source, shapes, branching, placeable, costs)
    mod, halves = network_in(machine.precision, mod)
    observer.see("canonical", mod)
    if plan is not None or len(placeable) == 1:
        requested = None if plan is None else Plan.read(plan)
        model = build(mod, requested, processors, placeable, observer, spare=spare)
    else:
        model = _fastest(mod, machine, observer)
        # Only now, because spare kernels would hide failures while plans are measured.
        if spare and len(model.graph.processors) > 1:
            plan = model.plan
            model = build(mod, plan, processors, placeable, observer, spare=True)
            model = model.with_reason(plan.reason)
    if plans and len(placeable) > 1:
        model, added = _with_plans(mod, model, plans, machine, observer, spare)
        said = _join(said, added)
    said = _join(said, halves, machine.said, machine.limits.said)
    return model.with_reason(_join(model.plan.reason, said)) if said else model


def _with_plans(
    mod: tvm.IRModule,
    model: Model,
    plans: Mapping[str, Plan] | bool,
    machine: _Machine,
    observer: Observer,
    spare: bool,
) -> tuple[Model, str]:
    """A model with several plans, and a note about them."""
    processors, placeable = machine.processors, machine.placeable
    notes: list[str] = []
    has_names = not isinstance(plans, bool)
    if isinstance(plans, bool):

        def costs_of(left: Sequence[Processor]) -> Costs:
            return planning_costs([p if p in left else not_asked_for(p) for p in processors])

        say("searching for plans without each processor")
        plans, notes = without_each(mod, model.plan, placeable, costs_of, machine.limits)
    first, *others = plans.values()
    if not others:
        return model.with_plans(list(plans), [0.0]) if has_names else model, _join(*notes)
    say(f"building {len(plans)} plans")
    built = build(mod, first, processors, placeable, observer, spare=spare, others=others)
    arena = arena_for(placeable, machine.arena)
    expected = [0.0] * len(plans)
    if arena is not None:
        say(f"measuring {len(plans)} plans in turns")
        expected = expected_seconds(built, arena)
    built = built.with_plans(list(plans), expected).with_reason(model.plan.reason)
    return built, _join(*notes)


def _fastest(mod: tvm.IRModule, machine: _Machine, observer: Observer) -> Model:
    """The winner of `decide`; if a device fails meanwhile, a model for the CPU alone.

    Raises:
        DeviceError: the remote device failed, and its CPU with it.
    """
    processors, placeable = machine.processors, machine.placeable
    said = f"{machine.described} {machine.limits}"
    memory = memory_of(mod, processors, said) if machine.described else None
    known = None if memory is None else memory.find()
    if known is not None:
        say("building the plan that won before")
        try:
            model = build(mod, known, processors, placeable, observer)
            trace(model, 1)
        except StretchError as error:  # the user did not request that plan, so search again
            say(f"the plan that won before is not taken: {last_line(error)}")
        else:
            return model.with_reason(f"{known.reason}; measured before, not again")

    def built(network: tvm.IRModule, candidate: Candidate) -> Model:
        say(f"building {candidate.what}")
        lowered = None if candidate.level is None else candidate.level.mod
        seen = observer if network is mod else None
        return build(
            network, candidate.plan, processors, placeable, seen, candidate.branched, lowered
        )

    try:
        return decide(mod, processors, placeable, built, machine.arena, machine.limits, memory)
    except MeasureError as error:
        if machine.arena is not None and isinstance(error.__cause__, DeviceError):
            raise error.__cause__ from error
        left = [p for p in placeable if p.is_host and machine.limits.may_do_all(0)]
        if not left:
            raise
        model = build(mod, None, left, left, observer)
        return model.with_reason(f"cpu alone: measuring the others failed: {error}")


def _join(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))
