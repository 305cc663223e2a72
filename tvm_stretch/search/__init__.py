"""Which plans are worth building for a network: predicted, the most promising first.

    canonical module ── pieces.py ──> pieces between meeting points
        options.py, splitting.py       for each piece: {one processor, a scheduler's order, shares
                                       of output channels, bands of rows, shares of channels}
        chain.py                       dynamic programming over the chain, hand-overs included
        designed.py                    the branches of a stretched network on their processors
        realise.py                     plan: regions, predicted times, a scheduler's order

Costs come from `costs.py`: measured kernels of this machine, or typical processors. A plan never
ships because of a prediction alone: the compiler builds what comes from here and measures it.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm

from tvm_stretch.errors import UnsupportedError
from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.ir.operators import Operators
from tvm_stretch.plan.considered import Considered
from tvm_stretch.search.chain import Chain, ChainSearch
from tvm_stretch.search.costs import Costs, planning_costs
from tvm_stretch.search.designed import as_designed
from tvm_stretch.search.limits import NO_LIMITS, Limits
from tvm_stretch.search.options import Option, Options
from tvm_stretch.search.pieces import Network
from tvm_stretch.search.realise import Candidate, alone, realise
from tvm_stretch.targets.kernels.layers import Along

__all__ = ["Found", "planning_costs", "rank", "search", "uncollected"]

_DOUBT = (1.25, 1.02)
"""A plan is worth building if it is predicted to take at most this many times the best processor
alone, by costs that nobody measured, and by measured ones."""


_CLEARLY_LESS = (0.99, 0.97)
"""Splits and schedules go before shares alone, which compute nothing twice, only below this; again
by costs that nobody measured, where both are measured, and by measured ones, where one is."""

_NOT_FIRST = "not built: another one is predicted to be faster"


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        singles: everything on one processor, the fastest first; empty if none supports it all.
        rivals: plans for several processors that may be faster, the most promising first.
        notes: for people.
        passed: what else was looked at, and why it is not among them.
    """

    singles: tuple[Candidate, ...]
    rivals: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    passed: tuple[Considered, ...] = ()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Python's collector of cycles does not run meanwhile.

    A search makes many objects and no cycles among them; looking for some took a fifth of its time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def search(mod: tvm.IRModule, costs: Costs, most: int = 1, limits: Limits = NO_LIMITS) -> Found:
    """Plans for a canonical module.

    Args:
        mod: the module.
        costs: of the processors that operators may be placed on, in the model's order.
        most: how many plans for several processors to work out. By costs that nobody measured,
            shares alone always are among them.
        limits: what processors may compute at most.

    Raises:
        UnsupportedError: no processor supports one of the operators.
    """
    _require_support(Operators(mod["main"]), costs)
    network = Network(mod, costs.kernels)
    ranking = rank(network, costs, limits)
    free = filter(limits.may_do_all, range(len(costs.processors)))
    singles = [alone(network, costs, place) for place in free]
    ranked = sorted(filter(None, singles), key=lambda single: single.ns)
    if len(costs.processors) < 2:
        return Found(tuple(ranked), ())
    limit = _DOUBT[costs.trusted] * ranked[0].ns if ranked else float("inf")
    notes, passed = _unlike_measured(network, costs), list[Considered]()
    most = most if costs.trusted or ranking[0].only_shares else 2
    rivals = _work_out(network, costs, ranking, (limit, most), (notes, passed), limits)
    designed = as_designed(network, costs, limits)
    if isinstance(designed, Candidate):
        rivals.insert(0, designed)
    elif designed is not None:
        notes.append(f"branches as designed: {designed}")
    if not ranked and not rivals:
        rivals.append(_plain(network, costs, limits))
    return Found(tuple(ranked), tuple(rivals), tuple(dict.fromkeys(notes)), tuple(passed))


def _work_out(
    network: Network,
    costs: Costs,
    ranking: Sequence[Chain],
    limits: tuple[float, int],
    said: tuple[list[str], list[Considered]],
    allowed: Limits,
) -> list[Candidate]:
    """The plans of what is promising, the most promising first.

    Args:
        network: what is computed.
        costs: of its kernels.
        ranking: as `rank` gives it.
        limits: the longest predicted latency, and how many plans.
        said: notes, and what is passed over; both grow.
        allowed: what processors may compute at most.
    """
    (limit, most), (notes, passed) = limits, said
    clearly_less = _CLEARLY_LESS[costs.trusted]
    rivals: list[Candidate] = []
    for chain in ranking:
        what = _describe(chain.options)
        # Worked out, shares cost more: Winograd's tiles of all channels are read by each of them.
        disappointing = bool(rivals) and chain.ns < clearly_less * rivals[0].ns
        if not any(option.uses_several for option in chain.options) and limit < float("inf"):
            notes.append("no way to use several processors is predicted to be faster")
        elif chain.ns > limit:
            why = "not built: one processor is predicted to be faster"
            passed.append(Considered(what, chain.ns, costs.source, verdict=why))
        elif len(rivals) == most and not disappointing:
            passed.append(Considered(what, chain.ns, costs.source, verdict=_NOT_FIRST))
        else:
            rival = realise(network, costs, chain.options, what, allowed)
            if isinstance(rival, str):
                why = f"impossible: {rival}"
                passed.append(Considered(what, chain.ns, costs.source, verdict=why))
            else:
                rivals.append(rival)
    if len(rivals) > 1 and rivals[1].ns < clearly_less * rivals[0].ns:
        rivals.reverse()
        most = most if costs.trusted else 2
    passed += [one.considered(_NOT_FIRST) for one in rivals[most:]]
    return rivals[:most]


@uncollected()
def rank(network: Network, costs: Costs, limits: Limits = NO_LIMITS) -> list[Chain]:
    """Ways to compute a network on several processors, the most promising first.

    One of shares alone, and the best of all if it is another one. This takes at most two seconds
    for every network of the zoo; lowering comes before and after, and is not done again to build.
    """
    _ask_for_all(network, costs)
    if len(costs.processors) < 2:
        return []
    chains = ChainSearch(network, costs, limits=limits)
    shares, chosen = chains.best(splits=False), chains.best()
    if chosen.options == shares.options:
        return [shares]
    clearly = chosen.ns < _CLEARLY_LESS[costs.trusted] * shares.ns
    return [chosen, shares] if clearly else [shares, chosen]


def _ask_for_all(network: Network, costs: Costs) -> None:
    """All kernels in one batch, with the halves that the options of their piece will ask for."""
    wanted: dict[Group, Sequence[Along]] = {}
    for piece in network.pieces:
        halves: tuple[Along, ...] = ("outputs",)
        if piece.start:
            between = network.operators.between(piece.start, piece.end)
            ends_in_parts = any(operator.kind == "concat" for operator in between)
            halves = ("outputs", "rows") if ends_in_parts else ("outputs", "rows", "inputs")
        wanted.update(dict.fromkeys(piece.groups, halves))
    costs.ask_for(network.graph.groups, wanted)


def _unlike_measured(network: Network, costs: Costs) -> list[str]:
    groups = network.graph.groups
    unlike = costs.unlike_measured(groups) if costs.trusted else 0
    if not unlike:
        return []
    return [
        f"{unlike} of {len(groups)} kernels are unlike all that were measured here: "
        "ts.tune.measure(..., networks={...}) measures this network's"
    ]


def _plain(network: Network, costs: Costs, limits: Limits) -> Candidate:
    """Every kernel whole, where it is fastest: for processors that support little."""
    ways = Options(network, costs, limits)
    options = [next(ways.of_piece(piece, {})) for piece in network.pieces]
    found = realise(network, costs, options, "one by one", limits)
    if isinstance(found, str):
        raise UnsupportedError(
            f"expected a plan that these processors can run, got none: {found}; add a processor, "
            "or change the network"
        )
    return found


def _require_support(operators: Operators, costs: Costs) -> None:
    places = range(len(costs.processors))
    for operator in operators:
        if any(costs.kernels.supports(operator, place) for place in places):
            continue
        reasons = ((p.name, p.why_not(operator.call)) for p in costs.processors)
        texts = "; ".join(f"{operator.name} on {who}: {reason}" for who, reason in reasons)
        raise UnsupportedError(
            "expected operators that one of the processors supports, got others: "
            f"{texts}; replace them in the network"
        )


def _describe(options: Sequence[Option]) -> str:
    """``30 layers in shares, 2 segments in rows, 3 pieces scheduled``."""
    shared = sum(len(option.shares) for option in options)
    rows = sum(option.what.startswith("rows") for option in options)
    channels = sum(option.what.startswith("channels") for option in options)
    scheduled = sum(option.what.startswith("scheduled") for option in options)
    counts = (
        (shared, "layers in shares"),
        (rows, "segments in rows"),
        (channels, "segments in channels"),
        (scheduled, "segments scheduled"),
    )
    return ", ".join(f"{count} {words}" for count, words in counts if count) or "one by one"
