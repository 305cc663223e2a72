"""Record a plan in the network: to which region and processor each operator belongs.

    main(x): conv2d, relu   ->   main(x), attribute "regions" = [["r0", "cpu", ["conv2d", "relu"]]]

A partitioner only tags; ``PartitionRegions`` then cuts along the tags. The tags are an attribute of
``main`` because operators cannot carry any.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import tvm
from tvm import relax

from tvm_stretch.base.errors import PlanError
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan

REGIONS = "regions"


@tvm.transform.module_pass(opt_level=0, name="TagOperators")
class TagOperators:
    """See the module docstring; the plan must fit the network (``check_plan``)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        tags = [[r.name, r.processor, list(r.operators)] for r in self.plan.regions]
        updated = mod.clone()
        updated["main"] = mod["main"].with_attr(REGIONS, tags)
        return updated


def check_plan(plan: Plan, main: relax.Function) -> None:
    """Check that every operator of ``main`` is planned once, after all operators that it reads.

    Call it before the pass, because an error that leaves a pass loses its type.
    """
    calls = Calls(main)
    planned = [name for region in plan.regions for name in region.operators]
    for name in planned:
        if name not in calls.calls:
            near = difflib.get_close_matches(name, calls.calls, 3) or list(calls.calls)[:3]
            raise PlanError(
                f"expected operators of the network for the plan, got {name!r}; "
                f"similar ones are {', '.join(near) or 'none'}{_or_leave_out(plan)}"
            )
    missing = sorted(set(calls.calls) - set(planned))
    if missing:
        raise PlanError(
            f"expected every operator of the network in the plan, got no region for "
            f"{_listed(missing)}; add them to a region{_or_leave_out(plan)}"
        )
    position = {name: index for index, name in enumerate(planned)}
    region_of = {name: r.name for r in plan.regions for name in r.operators}
    reads = {
        name: [leaf.var.name for leaf in calls.leaves(call) if leaf.var.name in position]
        for name, call in calls.calls.items()
    }
    for name in planned:
        for source in reads[name]:
            if position[source] >= position[name]:
                raise _misordered(source, name, region_of, reads)


def _or_leave_out(plan: Plan) -> str:
    """Advice for edited shares or splits, whose parts have other names than the plan's regions."""
    if not plan.shares and not plan.splits:
        return ""
    return ", or leave the plan's regions out: they are then formed from its shares and splits"


def _misordered(
    source: str, reader: str, region_of: Mapping[str, str], reads: Mapping[str, list[str]]
) -> PlanError:
    """The error that ``reader``, which reads ``source``, comes first."""
    first, second = region_of[source], region_of[reader]
    if first == second:
        return PlanError(
            f"expected {source!r} before {reader!r} in region {first!r}, got it after; "
            f"{reader!r} reads it: change their order"
        )
    needs: dict[str, set[str]] = {}
    for name, sources in reads.items():
        needs.setdefault(region_of[name], set()).update(region_of[other] for other in sources)
    if second in _reachable(first, needs):
        return PlanError(
            f"expected regions that can run one after the other, got {first!r} and {second!r} that "
            f"each need the other's results ({reader!r} reads {source!r}); split one of them"
        )
    return PlanError(
        f"expected region {first!r} before region {second!r}, got it after; "
        f"{reader!r} reads {source!r}: change their order"
    )


def _reachable(start: str, needs: Mapping[str, set[str]]) -> set[str]:
    """The regions that ``start`` needs, directly or through others."""
    reachable: set[str] = set()
    open_ends = [start]
    while open_ends:
        for other in needs.get(open_ends.pop(), set()) - reachable:
            reachable.add(other)
            open_ends.append(other)
    return reachable


def _listed(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
