"""How a caller of ``ts.compile`` wants a network compiled: checked once, before it is read.

ts.compile(network, options=ts.Options(precision="float16"), spare=True)
->   Options(precision="float16", spare=True)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path
from tvm_stretch.base.named_arguments import is_one_of
from tvm_stretch.make.precision import read_precision
from tvm_stretch.passes.carry_states import States
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.plan.scheduling.named import SchedulerLike, read_scheduler
from tvm_stretch.plan.search.decision import PlansLike, read_plans
from tvm_stretch.plan.search.limits import Limits, read_limits
from tvm_stretch.plan.search.objective import LATENCY, Objective, read_objective
from tvm_stretch.plan.search.site import DeviceLike, Site, Targets, site_of
from tvm_stretch.read.lengths import Lengths
from tvm_stretch.read.load import Shapes
from tvm_stretch.run.model import Model


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of ``ts.compile`` that several compiles may share, as one value; see there.

    Raises:
        InputError: an argument has another type than it should, or contradicts another one.
        PlanError: a plan is no plan's text, or names what the network lacks.

    Examples:
        >>> options = ts.Options(spare=True, cpu_threads=2)
        >>> ts.compile("resnet18.onnx", options=options, effort="low").plan.processors
        ('cpu',)
    """

    targets: Targets = None  # the wanted processors
    device: DeviceLike = None  # where the network is to run
    cpu_threads: int | None = None  # the number of cores for CPU kernels
    # shapes of inputs whose dimensions the network leaves open
    shapes: Shapes = None
    lengths: Lengths | None = None  # sizes of named dimensions, each of which the model takes
    states: States | None = None  # inputs that hold what outputs had after the last run
    precision: str = "float32"  # one of `PRECISIONS`
    plan: PlanLike | None = None  # the plan, or its file, if the caller chose it
    plans: PlansLike | None = None  # several plans by name, or whether there shall be several
    scheduler: SchedulerLike | None = None  # plans the whole network beside the search
    max_share: Mapping[str, float] | None = None  # the largest shares of processors, by name
    share_parts: int | None = None  # the denominator of shares
    objective: str | Objective = "latency"  # what the plan is to make small
    effort: str = "full"  # "low" for a known plan, or one that is not searched
    spare: bool = False  # whether the CPU gets kernels for all operators
    streams: bool = False  # whether frames of videos may reuse what did not change
    dump_dir: str | os.PathLike[str] | None = None  # folder for the IR after every phase
    debug: bool = False  # whether every phase is verified

    def __post_init__(self) -> None:
        object.__setattr__(self, "precision", read_precision(self.precision))
        if self.lengths is not None and self.plans:
            raise InputError(
                "expected no plans beside lengths, got some: a model of several lengths has one "
                "plan for each; leave one of them out"
            )
        for name in ("spare", "streams", "debug"):
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(
                    f"expected True or False for {name}, got {value!r:.100}; give one of them"
                )
        if self.dump_dir is not None:
            as_path(self.dump_dir, "the folder for the phases")
        if self.states is not None and not isinstance(self.states, Mapping):
            raise InputError(
                f"expected a dictionary for states, got {self.states!r:.100}; name the output of "
                "each input, such as {'past.*': 'present.*'}"
            )
        if self.plan is not None and self.named_plans is not None:
            raise InputError(
                "expected no plan beside plans by name, got one; name it in plans, as the first"
            )
        if self.first_plan is not None and read_objective(self.objective) != LATENCY:
            raise InputError(
                "expected no objective where a plan is given, got one; leave one of them out"
            )
        self._check_effort()
        if self.scheduler is not None and self.first_plan is not None:
            raise InputError(
                "expected no scheduler where a plan is given, got both; leave one of them out"
            )

    def _check_effort(self) -> None:
        """Refuse wishes that only a search can fulfil."""
        if not is_one_of(self.effort, ("full", "low")):
            raise InputError(
                f"expected 'full' or 'low' for effort, got {self.effort!r:.100}; give one of them"
            )
        wishes = {
            "max_share": self.max_share is not None,
            "share_parts": self.share_parts is not None,
            "scheduler": self.scheduler is not None,
            "plans": self.plans is True,
            "objective": read_objective(self.objective) != LATENCY,
        }
        given = [name for name, is_wished in wishes.items() if is_wished]
        if self.effort == "low" and self.first_plan is None and given:
            raise InputError(
                f"expected 'full' for effort beside {', '.join(given)}, got 'low', which searches "
                "no plan; leave one of them out"
            )

    @cached_property
    def named_plans(self) -> Mapping[str, Plan] | None:
        """Several plans, if the caller chose them."""
        return read_plans(self.plans)

    @cached_property
    def first_plan(self) -> Plan | None:
        """The plan to begin with, if the caller chose it."""
        if self.named_plans is not None:
            return next(iter(self.named_plans.values()))
        return None if self.plan is None else Plan.read(self.plan)

    def site(self) -> Site:
        """Where the network is to run."""
        may_drop = self.first_plan is None
        site = site_of(self.device, self.targets, self.cpu_threads, may_drop=may_drop)
        return self._for_streams(site) if self.streams else site

    def _for_streams(self, site: Site) -> Site:
        """The site whose CPU computes everything, and shares areas of frames with the others."""
        host, *others = site.processors
        is_limited = bool(others) and self.max_share is not None
        if self.plans or self.states or self.lengths or is_limited:
            raise InputError(
                "expected one plan, one length, no states and no max_share for streams, got more; "
                "leave out the others"
            )
        if host.name not in [processor.name for processor in site.placeable]:
            raise InputError(
                f"expected the CPU among the targets for streams, got {', '.join(site.names[1:])} "
                "alone; add 'llvm'"
            )
        for other in others:
            shares = other.code.areas is not None
            site = site.noted(
                f"{other.name} computes areas of frames beside the CPU"
                if shares
                else f"{other.name} has no part in streams, because its kernels are not the CPU's"
            )
        return replace(site, placeable=[host])

    def limits(self, site: Site) -> Limits:
        """What the search may do on the site."""
        given, is_planned = (self.max_share, self.share_parts), self.first_plan is not None
        read = read_limits(*given, site.processors, site.placeable, is_planned)
        objective = read_objective(self.objective)
        read = read if objective == LATENCY else replace(read, objective=objective)
        read = replace(read, searches=self.effort != "low")
        wanted = self.scheduler
        return read if wanted is None else replace(read, scheduler=read_scheduler(wanted))

    def checked(self, model: Model, limits: Limits) -> Model:
        """The model, which can pause the processors that the caller limits beside a plan."""
        if self.first_plan is not None and 0 in limits.caps and len(model.graph.processors) == 1:
            raise InputError(
                "expected a plan with another processor beside a CPU that max_share limits, got "
                "one for the CPU alone; leave the CPU out of max_share"
            )
        return model


def read_options(options: Options | None, arguments: Mapping[str, Any]) -> Options:
    """The options, with the arguments that have no default value in place of their own."""
    if not isinstance(options, Options | None):
        raise InputError(f"expected ts.Options for options, got {options!r:.100}; make some")
    defaults = {field.name: field.default for field in fields(Options)}
    given = {name: arguments[name] for name in defaults if arguments[name] is not defaults[name]}
    return replace(options or Options(), **given)
