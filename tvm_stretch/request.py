"""How a caller of ``ts.compile`` wants a network compiled: checked once, before it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tvm_stretch.build.precision import read_precision
from tvm_stretch.errors import InputError
from tvm_stretch.files import as_path
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.scheduling import Scheduler
from tvm_stretch.search.alternatives import PlansLike, read_plans
from tvm_stretch.search.limits import Limits, read_limits, refuse_limits
from tvm_stretch.search.site import DeviceLike, Site, Targets, site_of


@dataclass(frozen=True)
class Request:
    """The arguments of ``ts.compile`` but the network; see there.

    Attributes:
        targets: the wanted processors.
        device: where the network is to run.
        cpu_threads: the number of cores for CPU kernels.
        shapes: shapes of inputs whose dimensions the network leaves open.
        precision: one of `PRECISIONS`.
        plan: the plan, if the caller chose it.
        plans: several plans by name, if the caller chose them.
        has_plans: whether the model has several plans.
        scheduler: schedules segments with branches; None for HEFT.
        max_share: the largest shares of processors, by name.
        share_parts: the denominator of shares.
        spare: whether the CPU gets kernels for all operators.
        dump_dir: folder for the IR after every phase.
        debug: whether every phase is verified.
    """

    targets: Targets = None
    device: DeviceLike = None
    cpu_threads: int | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    precision: str = "float32"
    plan: Plan | None = None
    plans: Mapping[str, Plan] | None = None
    has_plans: bool = False
    scheduler: Scheduler | None = None
    max_share: Mapping[str, float] | None = None
    share_parts: int | None = None
    spare: bool = False
    dump_dir: str | os.PathLike[str] | None = None
    debug: bool = False

    def site(self) -> Site:
        """Where the network is to run."""
        may_drop = self.plan is None
        return site_of(self.device, self.targets, self.cpu_threads, may_drop=may_drop)

    def limits(self, site: Site) -> Limits:
        """What the search may do on the site."""
        read = read_limits(self.max_share, self.share_parts, site.processors, site.placeable)
        return read if self.scheduler is None else replace(read, scheduler=self.scheduler)


def request_of(
    *,
    plan: PlanLike | None,
    plans: PlansLike | None,
    precision: str,
    scheduler: Scheduler | None,
    max_share: Mapping[str, float] | None,
    share_parts: int | None,
    dump_dir: str | os.PathLike[str] | None,
    **others: object,
) -> Request:
    """The request of a caller's arguments.

    Raises:
        InputError: an argument is nothing of the kind, or contradicts another one.
        PlanError: a plan is none.
    """
    named = read_plans(plans)
    if named is not None:
        if plan is not None:
            raise InputError(
                "expected no plan beside plans by name, got one; name it in plans, as the first"
            )
        plan = next(iter(named.values()))
    if plan is not None:
        refuse_limits(max_share, share_parts, "where plans are given")
    if scheduler is not None and not callable(scheduler):
        raise InputError(
            f"expected a function from Problem to Result for scheduler, got {scheduler!r:.100}; "
            "see tutorials/03_writing_a_scheduler.py"
        )
    if scheduler is not None and plan is not None:
        raise InputError(
            "expected no scheduler where a plan is given, got both; leave one of them out"
        )
    return Request(
        plan=None if plan is None else Plan.read(plan),
        plans=named,
        has_plans=bool(plans),
        precision=read_precision(precision),
        scheduler=scheduler,
        max_share=max_share,
        share_parts=share_parts,
        dump_dir=None if dump_dir is None else as_path(dump_dir, "the folder for the phases"),
        **others,  # type: ignore[arg-type]  # checked by the signature of `compile`
    )
