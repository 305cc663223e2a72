"""The plan that a stretched network was designed for: every branch on its processor.

conv_3.b1, relu_3.b1, ...   what passes/duplicate_and_scale.py recorded for opencl   -> opencl
stem, concat, classifier    everything else      -> the processor that is fastest with all of it
"""

from __future__ import annotations

from tvm_stretch.passes.duplicate_and_scale import branch_operators
from tvm_stretch.search.costs import Costs
from tvm_stretch.search.options import Option
from tvm_stretch.search.pieces import Network
from tvm_stretch.search.realise import Candidate, realise


def as_designed(network: Network, costs: Costs) -> Candidate | str | None:
    """The plan; None for a network without branches for these processors, or why it cannot be."""
    recorded = branch_operators(network.mod)
    names = [processor.name for processor in costs.processors]
    if not recorded or not set(recorded) <= set(names):
        return None
    owner = {name: names.index(who) for who, listed in recorded.items() for name in listed}
    groups = network.graph.groups
    placed = {group.name: owner.get(_known_part(group.name, owner)) for group in groups}
    rest = [group for group in groups if placed[group.name] is None]
    totals = {}
    for place in range(len(names)):
        times = [costs.whole(group, place) for group in rest]
        if None not in times:
            totals[place] = sum(ns for ns in times if ns is not None)
    if not totals:
        return "no processor runs everything outside of the branches"
    home = min(totals, key=totals.__getitem__)
    where = {name: home if place is None else place for name, place in placed.items()}
    return realise(network, costs, [Option("its branch", (), where)], "branches as designed")


def _known_part(name: str, known: dict[str, int]) -> str:
    """``conv.b1`` of ``conv.b1.add``, if only that is known."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name
