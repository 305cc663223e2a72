"""Which plans the members of a group take.

    deadlines      the plans that meet all of them and keep the busiest processor the least busy
    no deadlines   the same, or mixtures: of a member's runs, a share goes to each of some plans

A model whose plan for two processors makes it 1.5 times as fast as on one leaves a quarter of both
unused. Runs on one processor each, half of them here and half there, leave nothing, also where
members differ in length: no fixed plans would balance a model of 20 ms and one of 5 ms. The best
shares are the solution of a linear program, the least load of the busiest processor; prices of
processors find it, which rise where the load is large.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tvm_stretch.base.errors import InputError
from tvm_stretch.run.model import Model

_MOST_COMBINATIONS = 1 << 14

_STEPS, _PACE = 600, 0.5
"""Steps towards better prices, of which the second half counts."""

_LEAST_SHARE = 0.05
_BESIDE_OTHERS = 1.15
"""Processors that share memory slow each other down, and plans are measured alone: two halves of
one network took 1.17 times as long side by side (`benchmarks/log/two_processors.md`)."""


@dataclass(eq=False)
class Way:
    """One plan of a member, as an instance of its own that is pinned to it."""

    name: str  # of the plan
    model: Model
    uses: frozenset[str]  # the processors that work in a run
    seconds: float  # of a run that nothing disturbs
    rest: int = 0  # runs of the member before it is tried again after a failure


@dataclass(eq=False)
class Member:
    """One model of a group."""

    name: str  # the member's name
    ways: list[Way]  # its plans
    rate: float  # runs in a second, or relative to the other members
    priority: float  # runs of members with larger numbers go first
    deadline: float  # seconds from `submit` to the answer; infinite if there is none
    # the plans that were chosen for it, and how much of its runs each takes
    shares: dict[Way, float] = field(default_factory=dict)
    # how many runs of each plan were started
    started: Counter[Way] = field(default_factory=Counter)
    failure: str = ""  # why a run failed last, for people

    @property
    def way(self) -> Way:
        """The plan of most of its runs."""
        return max(self.shares, key=lambda way: self.shares[way])

    def behind(self, way: Way) -> float:
        """How many runs a plan has started less than its share, with the next run."""
        share = self.shares.get(way, -math.inf)
        return share * (1 + sum(self.started[other] for other in self.shares)) - self.started[way]

    @property
    def healthy(self) -> list[Way]:
        """The plans that did not fail lately, or all if each did."""
        return [way for way in self.ways if not way.rest] or self.ways


def choose_plans(members: Sequence[Member]) -> None:
    """Choose plans for each member; see the module docstring."""
    if math.prod(len(member.ways) for member in members) > _MOST_COMBINATIONS:
        raise InputError(
            f"expected fewer than {_MOST_COMBINATIONS} combinations of plans for a group, got "
            "more; leave some plans out"
        )

    def cost(ways: tuple[Way, ...]) -> tuple[float, float, float]:
        pairs = list(zip(members, ways, strict=True))
        late = sum(_lateness(m, w, pairs) for m, w in pairs)
        used = {p for way in ways for p in way.uses}
        loads = [sum(m.rate * w.seconds for m, w in pairs if p in w.uses) for p in used]
        return late, max(loads), sum(loads)

    chosen = min(itertools.product(*(member.ways for member in members)), key=cost)
    pairs = list(zip(members, chosen, strict=True))
    for member, way in pairs:
        longest = _longest(member, way, pairs)
        if _lateness(member, way, pairs):
            raise InputError(
                f"expected deadlines_ms that the group can meet, got {member.deadline * 1e3:.4g} "
                f"for {member.name}; allow {longest * 1e3:.4g}, or raise its priority"
            )
        member.shares = {way: 1.0}
    if any(member.deadline < math.inf for member in members):
        return
    mixtures = _mixtures(members)
    if _most(members, mixtures) * _BESIDE_OTHERS < max(loads_of(members).values()):
        for member, shares in zip(members, mixtures, strict=True):
            member.shares = shares


def loads_of(members: Sequence[Member]) -> dict[str, float]:
    """How much of its time each processor is leased, if members run at their rates."""
    loads = dict.fromkeys(sorted({p for m in members for way in m.ways for p in way.uses}), 0.0)
    for member in members:
        for way, share in member.shares.items():
            for processor in way.uses:
                loads[processor] += member.rate * share * way.seconds
    return loads


def _most(members: Sequence[Member], mixtures: Sequence[dict[Way, float]]) -> float:
    """The load of the busiest processor."""
    mixed = [replace(m, shares=shares) for m, shares in zip(members, mixtures, strict=True)]
    return max(loads_of(mixed).values())


def _mixtures(members: Sequence[Member]) -> list[dict[Way, float]]:
    """Shares of each member's plans that keep the busiest processor the least busy."""
    prices = dict.fromkeys({p for m in members for way in m.ways for p in way.uses}, 1.0)
    taken: list[Counter[Way]] = [Counter() for _ in members]
    scale = sum(member.rate * max(way.seconds for way in member.ways) for member in members)
    for step in range(_STEPS):
        loads = dict.fromkeys(prices, 0.0)
        for member, counts in zip(members, taken, strict=True):
            way = min(member.ways, key=lambda w: w.seconds * sum(prices[p] for p in w.uses))
            counts[way] += step >= _STEPS // 2
            for processor in way.uses:
                loads[processor] += member.rate * way.seconds
        mean = sum(loads.values()) / len(loads)
        for processor, load in loads.items():
            prices[processor] *= math.exp(_PACE / (1 + step) ** 0.5 * (load - mean) / scale)
    return [_without_crumbs(counts) for counts in taken]


def _without_crumbs(counts: Counter[Way]) -> dict[Way, float]:
    """Shares in proportion to the counts, without the smallest ones."""
    kept = {way: n for way, n in counts.items() if n > _LEAST_SHARE * counts.total()}
    return {way: n / sum(kept.values()) for way, n in kept.items()}


def _longest(member: Member, way: Way, pairs: Sequence[tuple[Member, Way]]) -> float:
    """How long a run may take: it waits for one run in progress, and for those that go first."""
    others = [(m, w) for m, w in pairs if m is not member and w.uses & way.uses]
    ahead = sum(w.seconds for m, w in others if m.priority >= member.priority)
    below = [w.seconds for m, w in others if m.priority < member.priority]
    return way.seconds + ahead + max(below, default=0.0)


def _lateness(member: Member, way: Way, pairs: Sequence[tuple[Member, Way]]) -> float:
    """By how much a run may miss its deadline."""
    late = _longest(member, way, pairs) - member.deadline
    return late if late > 1e-9 else 0.0
