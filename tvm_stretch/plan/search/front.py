"""The plans of a network of which no other one is both faster and thriftier.

front = ts.plan_front("resnet50.onnx", device="snapdragon-855")
print(front)        # ms, mJ and processors of each plan
front[0]            # the fastest
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.realise import Candidate


class PlanFront(tuple[Plan, ...]):
    """Plans, the fastest first; printing it shows a table."""

    def __str__(self) -> str:
        """Latency, energy and what each plan does, in Markdown."""
        rows = [
            f"| {(plan.predicted_ns or 0) / 1e6:.2f} | {plan.predicted_mj or 0:.1f} "
            f"| {plan.reason} |"
            for plan in self
        ]
        return "\n".join(("| ms | mJ | plan |", "| --- | --- | --- |", *rows))


def front_of(candidates: Iterable[Candidate]) -> PlanFront:
    """The front of candidates whose energy is known."""
    best: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (c.cost.ns, c.cost.millijoules)):
        energy = one.cost.millijoules
        assert energy is not None
        if not best or energy < (best[-1].cost.millijoules or 0.0):
            best.append(one)
    return PlanFront(_named(one) for one in best)


def _named(candidate: Candidate) -> Plan:
    used = dict.fromkeys(region.processor for region in candidate.plan.regions)
    return replace(candidate.plan, reason=f"{candidate.what} on {' + '.join(used)}")
