"""Proposes plans for a network, with predicted times, the most promising first.

    canonical module ── pieces.py ──> pieces between meeting points
        options.py, splitting.py       for each piece: {one processor, a scheduler's order, shares
                                       of output channels, bands of rows, shares of channels}
        chain.py                       dynamic programming over the chain, hand-overs included
        realise.py                     plan: regions, predicted times, the order of kernels

Costs come from `costs.py`: measured kernels of this machine, or typical processors. A prediction
alone never decides: the compiler builds the proposed plans and measures them.
"""

from __future__ import annotations

import tvm
from tvm import relax

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.search.candidates import Found, find_candidates, least_ns
from tvm_stretch.plan.search.chain import rank, rank_by_price
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.pieces import Network

__all__ = ["Found", "planning_costs", "rank", "search"]


def search(mod: tvm.IRModule, costs: Costs, most: int = 1, limits: Limits = NO_LIMITS) -> Found:
    """Plans for a canonical module.

    Args:
        costs: of the processors that operators may be placed on, in the model's order.
        most: how many plans for several processors to work out. If costs were not measured, a plan
            of shares alone is always among them.

    Raises:
        UnsupportedError: no processor supports one of the operators.
    """
    _require_support(costs.kernels.operators(mod), costs)
    network = Network(mod, costs.kernels)
    chains = [*rank(network, costs, limits), *rank_by_price(network, costs, limits)]
    candidates = find_candidates(network, costs, list(dict.fromkeys(chains)), most, limits)
    places = range(len(costs.processors))
    times = [tuple(costs.whole(group, p) for p in places) for group in network.graph.groups]
    # kernels that a processor joins take less than the bound counts for them
    latencies = [candidate.cost.ns for candidate in (*candidates.singles, *candidates.rivals)]
    return candidates.bounded(min([least_ns(times), *latencies]))


def _require_support(operators: Operators, costs: Costs) -> None:
    places = range(len(costs.processors))
    calls = [op.binding.value for op in operators if isinstance(op.binding.value, relax.Call)]
    for processor in costs.processors:
        processor.operators.foresee(calls)
    for operator in operators:
        if any(costs.kernels.supports(operator, place) for place in places):
            continue
        reasons = ((p.name, p.why_not(operator.call)) for p in costs.processors)
        texts = "; ".join(f"{operator.name} on {who}: {reason}" for who, reason in reasons)
        raise UnsupportedError(
            "expected operators that one of the processors supports, got others: "
            f"{texts}; replace them in the network"
        )
