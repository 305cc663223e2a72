"""The plan that a stretched network was designed for: every branch on its processor.

conv_3.b1, relu_3.b1, ...   what passes/duplicate_and_scale.py recorded for opencl   -> opencl
concat between branches     on one processor, or each part where it is fastest
stem, classifier            as of any network: on one processor, or in shares of output channels
"""

from __future__ import annotations

from tvm_stretch.network.provenance import SOURCES, table_of
from tvm_stretch.passes.duplicate_and_scale import branch_operators
from tvm_stretch.plan.search.chain import ChainSearch
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.pieces import Network
from tvm_stretch.plan.search.realise import Candidate, realise


def as_designed(
    network: Network, costs: Costs, limits: Limits = NO_LIMITS
) -> Candidate | str | None:
    """The plan; None for a network without branches for these processors, or why it cannot be."""
    recorded = branch_operators(network.mod)
    names = [processor.name for processor in costs.processors]
    if not recorded or not set(recorded) <= set(names):
        return None
    owner = {name: names.index(who) for who, listed in recorded.items() for name in listed}
    sources = table_of(network.mod["main"], SOURCES)
    designed: dict[str, int] = {}
    for group in network.graph.groups:
        # a normalisation may have been folded into the bias of a convolution
        (source,) = sources[group.name].operators if group.name in sources else (group.name,)
        place = owner.get(group.name, owner.get(source))
        if place is None:
            continue
        if costs.whole(group, place) is None:
            return f"{group.name} on {names[place]}: {_refusal(network, costs, group.name, place)}"
        designed[group.name] = place
    chain = ChainSearch(network, costs, designed, limits).best(splits=False)
    shared = sum(len(option.shares) for option in chain.options)
    what = f"branches as designed, {shared} layers in shares" if shared else "branches as designed"
    return realise(network, costs, chain.options, what, limits)


def _refusal(network: Network, costs: Costs, name: str, place: int) -> str:
    group = next(group for group in network.graph.groups if group.name == name)
    reasons = (costs.processors[place].why_not(operator.call) for operator in group.operators)
    return next(filter(None, reasons), "refused")
